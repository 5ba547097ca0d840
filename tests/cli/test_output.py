"""What the commands write, wherever it goes: a closed pipe, a full disk, no terminal, an old one; and shell completion."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway import audit

LISTS = (
    ("profiles", "list"),
    ("connectors", "show", "linear"),
    ("envelope", "schema"),
    ("--help",),
    ("profiles", "list", "--json"),
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def run(
    *arguments: str, environment: Mapping[str, str] | None = None, stdout: int | None = subprocess.PIPE
) -> tuple[int, str, str]:
    done = subprocess.run(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_pipe_that_is_closed_is_no_error_to_read_about(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        _, _, err = run(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert err == ""


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_full_disk_is_said_in_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, err = run(*arguments, stdout=full.fileno())
    assert (code, err) == (3, "failed: No space left on device\n")


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    consumer = Path(__file__).parents[2] / "subscriptions/examples/.github/workflows/linear-issue-created.md"
    code, _, err = run("compile", str(consumer), "--repo", "acme/app", "-o", str(tmp_path / "file" / "out.json"))
    assert (code, err.splitlines()[1:]) == (3, [f"failed: {tmp_path}/file: File exists"])  # after a warning


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"COLUMNS": "10"},
    ],
    ids=lambda environment: " ".join(f"{key}={value}" for key, value in environment.items()),
)
def test_any_terminal_shows_it(environment: dict[str, str]) -> None:
    for arguments in (
        *LISTS,
        ("wire", "--help"),
        ("doctor", "--config", "/nonexistent-\N{LATIN SMALL LETTER E WITH ACUTE}"),
    ):
        code, out, err = run(*arguments, environment=environment)
        assert code == (2 if "doctor" in arguments else 0), err
        assert "Traceback" not in err
        assert "\x1b" not in out + err
        assert out


def test_without_standard_input_or_output() -> None:
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command("profiles", "list")],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), closed


@pytest.mark.parametrize("name", ["kim\n2026-01-01 root  revoke", "kim\x1b[2J", "kim\u202e", "k" * 1000])
def test_no_operators_name_is_another_line_of_the_trail(name: str) -> None:
    shown = audit.plain(name)
    assert shown.isprintable()
    assert len(shown) <= 200
    assert shown.startswith("k")


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder for PATH with the installed command's name."""
    script = tmp_path / "gateway"
    script.write_text(f"#!{sys.executable}\nfrom gateway.cli import main\nmain()\n")
    script.chmod(0o755)
    return tmp_path


def completed(shell: Path, **environment: str) -> str:
    root = Path(__file__).parents[2]
    given = {**os.environ, "PATH": f"{shell}:{os.environ['PATH']}", "PYTHONPATH": str(root), **environment}
    return subprocess.run(["gateway"], env=given, capture_output=True, timeout=60, check=True, text=True).stdout


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_every_documented_shell_gets_its_script_and_its_answers(shell: Path, kind: str) -> None:
    documented = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    assert f"_GATEWAY_COMPLETE={kind}_source gateway" in documented
    script = completed(shell, _GATEWAY_COMPLETE=f"{kind}_source")
    assert f"_GATEWAY_COMPLETE={kind}_complete" in script
    word = {"fish": "conn"}.get(kind, "1")  # fish gives the word, the others its place
    answers = completed(shell, _GATEWAY_COMPLETE=f"{kind}_complete", COMP_WORDS="gateway conn", COMP_CWORD=word)
    assert "connectors" in answers
    assert "enroll" not in answers


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes(shell: Path) -> None:
    script = (
        'eval "$(_GATEWAY_COMPLETE=bash_source gateway)"; complete -p gateway; '
        'COMP_WORDS=(gateway wire --c); COMP_CWORD=2; _gateway_completion gateway; echo "${COMPREPLY[@]}"'
    )
    given = {**os.environ, "PATH": f"{shell}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["bash", "-c", script], env=given, capture_output=True, timeout=60, check=True, text=True)
    assert done.stdout.splitlines()[0].endswith("gateway")
    assert set(done.stdout.splitlines()[-1].split()) == {"--check", "--config"}
