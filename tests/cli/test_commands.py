import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.cli import main
from gateway.configuration import load_configuration
from gateway.envelope import EnvelopeEvent, build
from gateway.environment import data_folder
from gateway.errors import Unavailable
from gateway.subscriptions import load_subscription

EXAMPLES = data_folder("subscriptions") / "examples"


def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments, input=stdin)
    return result.exit_code, result.output


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_SECRET", "planted-secret-value")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "app.pem").write_bytes(pem)
    (tmp_path / "app.pem").chmod(0o600)
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[store]\nembedded = "store"\n[github]\napp_id = 1\n'
        f'private_key = "file:{tmp_path}/app.pem"\n'
        '[sources.github-acme]\nprofile = "github"\nsecrets = ["env:TEST_SECRET"]\n',
    )
    return path


def test_every_command_has_help_with_an_example() -> None:
    def walk(command: object, path: tuple[str, ...]) -> None:
        subcommands = getattr(command, "commands", None)
        status, text = run(*path, "--help")
        assert status == 0
        if subcommands is None:
            assert "Example: gateway " in text, path
        for name, child in (subcommands or {}).items():
            walk(child, (*path, name))

    walk(main, ())


def test_a_start_reads_the_profiles_of_its_sources_and_check_all(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "profiles"
    shutil.copytree(data_folder("profiles"), shipped)
    (shipped / "linear.yaml").write_text("name: [")
    monkeypatch.setattr("gateway.configuration.data_folder", lambda _: shipped)
    monkeypatch.setattr("gateway.cli.check.data_folder", lambda _: shipped)
    assert list(load_configuration(config).profiles) == ["github"]
    status, text = run("check", "--config", str(config))
    assert (status, "linear.yaml" in text) == (2, True)


def test_check_says_good_or_lists_every_problem(config: Path) -> None:
    assert run("check", "--config", str(config)) == (
        0,
        f"{config}: good. Sources: 1, enrolled subscriptions: 0.\n",
    )
    assert json.loads(run("check", "--json", "--config", str(config))[1]) == {"problems": []}
    config.write_text(config.read_text().replace('"github"', '"gihtub"').replace("app_id = 1", "app_id = 0"))
    status, text = run("check", "--config", str(config))
    assert status == 2
    assert "github.app_id" in text
    assert "fix: " in text
    status, text = run("check", "--json", "--config", str(config))
    assert status == 2
    assert set(json.loads(text)["problems"][0]) == {"file", "key", "problem", "fix"}


def test_check_warns_of_secrets_that_others_read_or_guess(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.pem").chmod(0o644)
    monkeypatch.setenv("TEST_SECRET", "planted")
    status, text = run("check", "--config", str(config))
    assert status == 0
    assert "github.private_key: " in text
    assert f"chmod o= {tmp_path}/app.pem" in text
    assert "sources.github-acme.secrets.0: env:TEST_SECRET has fewer than 16 bytes" in text
    assert "planted" not in text


def test_check_finds_what_a_start_would_refuse(config: Path, tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text("hi")
    config.write_text('[server]\nbind = "127.0.0.1:8081"\n' + config.read_text())
    document = json.loads((EXAMPLES / "linear-issue-created.json").read_text())
    folder = tmp_path / "subscriptions" / "enrolled"
    folder.mkdir(parents=True)
    (folder / "linear.json").write_text(json.dumps(document))
    entry = f'[[enrollments]]\nsubscription = "{document["digest"]}"\nsource = "github-acme"\ninstallation = 1\n'
    (folder / "linear.toml").write_text(entry)
    status, text = run("check", "--json", "--config", str(config))
    keys = [problem["key"] for problem in json.loads(text)["problems"]]
    assert status == 2
    assert keys == [f"enrollments ({document['digest']})", "github.private_key", "server.admin_bind"]


def test_check_never_shows_a_secret(config: Path) -> None:
    config.write_text(config.read_text().replace("env:TEST_SECRET", "planted-secret-value"))
    status, text = run("check", "--config", str(config))
    assert status == 2
    assert "planted-secret-value" not in text


def test_envelope_schema_and_check(tmp_path: Path) -> None:
    status, text = run("envelope", "schema")
    assert status == 0
    assert json.loads(text)["$schema"].endswith("2020-12/schema")
    bad = tmp_path / "bad.json"
    for content in (b"{}", b"{", b'{"a":1,"a":1}'):
        bad.write_bytes(content)
        status, text = run("envelope", "check", str(bad))
        assert (status, text.startswith("not an envelope: ")) == (1, True)


HOSTILE = "\x1b]0;owned\x07secret"


def test_envelope_check_says_nothing_that_was_sent_and_never_hangs(tmp_path: Path) -> None:
    document = EXAMPLES / "linear-issue-created.json"
    compiled = load_subscription(document.read_bytes(), str(document))
    event = EnvelopeEvent("https://linear.app/acme/issue/ENG-42", "issue-created", {})
    body = build(compiled.digest, compiled.event_type, "01890a5d-ac96-774b-bcce-b302099a8057", [event])
    values: list[Any] = [[1], [], {}, [HOSTILE, HOSTILE]]
    for value in values:
        body["client_payload"]["gateway"]["events"][0]["filters"] = {HOSTILE: value}
        for more in ([], ["--subscription", str(document)]):
            status, text = run("envelope", "check", "-", *more, stdin=json.dumps(body).encode())
            assert (status, text[:17]) == (1, "not an envelope: ")
            assert text.strip().isprintable()
            assert "secret" not in text
    good = tmp_path / "body.json"
    good.write_bytes(b"{}")
    for arguments in (
        ["envelope", "check", "/dev/zero"],
        ["envelope", "check", str(good), "--subscription", "/dev/zero"],
        ["envelope", "check", str(tmp_path)],
    ):
        assert run(*arguments)[0] == 2
    assert "larger than" in run("envelope", "check", "-", stdin=b" " * 1_048_577)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("envelope", "check", "-"), "standard input is closed"), (("enroll", "--interactive"), "needs a terminal")],
)
def test_a_standard_input_that_is_closed_is_no_empty_one(arguments: tuple[str, ...], said: str) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "gateway", *arguments]
    closed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (closed.returncode, said in closed.stderr) == (2, True)


def test_a_file_without_an_end_is_refused(config: Path) -> None:
    """A device, or a link to one, at the place of a file that is given."""
    endless = "/dev/zero"
    for arguments in (
        ["enroll", endless, "--source", "github-acme", "--installation", "1"],
        ["explain", "--source", "github-acme", "--file", endless],
        ["explain", "--source", "github-acme", "--file", str(config), "--headers", endless],
        ["deliver", "github-acme", "--file", endless],
        ["deliver", "github-acme", "--key", endless],
    ):
        status, text = run(*arguments, "--config", str(config))
        assert (status in {1, 2}, "larger than" in text) == (True, True), (arguments, text)


def test_profiles(config: Path) -> None:
    assert config.exists()
    listed = json.loads(run("profiles", "list", "--json")[1])["profiles"]
    assert {"github", "linear", "slack", "microsoft-graph", "forge"} <= {row["name"] for row in listed}
    assert "linear" in run("profiles", "list")[1]
    status, text = run("profiles", "show", "linear")
    assert status == 0
    assert 'identity = { organization = ["..."] }' in text
    assert json.loads(run("profiles", "show", "forge", "--json")[1])["profiles"][0]["secrets"] is False
    assert run("profiles", "show", "nobody")[0] == 2


def test_compile_is_the_shipped_example_byte_for_byte(tmp_path: Path) -> None:
    consumer = EXAMPLES / ".github" / "workflows" / "linear-issue-created.md"
    command = ("compile", str(consumer), "--repo", "acme/app", "--repository-id", "1296269")
    output = tmp_path / "deep" / "linear.json"
    status, text = run(*command, "-o", str(output))
    assert (status, "sha256:" in text) == (0, True)
    assert output.read_bytes() == (EXAMPLES / "linear-issue-created.json").read_bytes()
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout_bytes) == (0, output.read_bytes())
    assert re.fullmatch(r"warning: .*linear\.md: linear is experimental; its triggers may change\n", result.stderr)


COMPILE = ("compile", str(EXAMPLES / ".github/workflows/linear-issue-created.md"), "--repo", "acme/app", "-o")


def test_a_document_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "file"
    folder.mkdir()
    file.write_bytes(b"before")
    for target, words in (
        (folder, "Is a directory"),
        (file / "x.json", "exists"),
        (Path("/dev/full"), "No space left"),
    ):
        status, text = run(*COMPILE, str(target))
        assert (status, "Traceback" in text) == (3, False)
        assert words in text
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    assert list(folder.iterdir()) == []
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert run(*COMPILE, str(link))[0] == 0
    assert link.is_symlink()
    assert file.read_bytes().startswith(b"{")
    assert run(*COMPILE, "/dev/null")[0] == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        (b'{"a": "\\ud800"}', "no object of texts"),
        (b'[["a", "b\\r\\nc: d"]]', "no object of texts"),
        (b'[["a"]]', "no object of texts"),
        (b'{"a": "b", "a": "c"}', "is no JSON"),
    ],
)
def test_headers_that_are_none_are_a_usage_error(config: Path, tmp_path: Path, content: bytes, words: str) -> None:
    body, headers = tmp_path / "body.json", tmp_path / "headers.json"
    body.write_bytes(b"{}")
    headers.write_bytes(content)
    for command in (("explain", "--source", "github-acme"), ("deliver", "github-acme")):
        files = ("--file", str(body), "--headers", str(headers), "--config", str(config))
        status, text = run(*command, *files)
        assert status == 2
        assert words in text


def test_a_name_that_is_no_utf_8_is_shown_all_the_same(config: Path, tmp_path: Path) -> None:
    (tmp_path / "subscriptions/enrolled").mkdir(parents=True)
    for name in (b"\xff.json", b"\x1b[31m.json"):
        Path(os.fsdecode(os.fsencode(tmp_path / "subscriptions/enrolled") + b"/" + name)).write_bytes(b"{}")
    for more in ((), ("--json",)):
        result = CliRunner().invoke(main, ["subscriptions", "--config", str(config), *more])
        assert result.exit_code == 0, result.output
        assert "udcff.json" in result.output
        assert "\x1b" not in result.output


def test_compile_refuses_with_the_reason(tmp_path: Path) -> None:
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    consumer = workflows / "x.md"
    consumer.write_text("---\non:\n  gateway-dispatch:\n    nobody: [a]\n---\n")
    status, text = run("compile", str(consumer), "--repo", "acme/app")
    assert status == 1
    assert "fix: " in text


def test_something_outside_failed_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_folder: Path) -> None:
        raise Unavailable("store-away", 5)

    monkeypatch.setattr(import_module("gateway.cli.profiles"), "load_profiles", away)
    status, text = run("profiles", "list")
    assert status == 3
    assert "try again in 5 s" in text


def test_unknown_commands_and_options_are_usage_errors() -> None:
    assert run("nonsense")[0] == 2
    assert run("check", "--nonsense")[0] == 2


def test_envelope_check_against_a_subscription(tmp_path: Path) -> None:

    file = EXAMPLES / "linear-issue-created.json"
    document = json.loads(file.read_text())
    scope = {name: values[0] for name, values in document["grants"].items()}
    event = EnvelopeEvent("https://linear.app/acme/issue/ENG-1", "issue-created", scope)
    ident = "0196f0c0-0000-7000-8000-000000000000"
    good = build(document["digest"], document["event_type"], ident, [event])

    def check(body: object, against: Path = file) -> tuple[int, str]:
        return run("envelope", "check", "-", "--subscription", str(against), stdin=json.dumps(body).encode())

    assert check(good) == (0, "a valid envelope of this subscription\n")
    started = {"action": good["event_type"], "client_payload": good["client_payload"], "sender": {"id": 1}}
    assert check(started)[0] == 0  # a run's event file
    assert check({**started, "action": "gateway-other"})[0] == 1
    assert "fails required (event_type, client_payload)" in check({"sender": {"id": 1}})[1]
    other = build(document["digest"], document["event_type"], ident, [EnvelopeEvent(event.url, "issue-closed", scope)])
    assert run("envelope", "check", "-", stdin=json.dumps(other).encode())[0] == 0
    status, text = check(other)
    assert (status, "types: is no trigger" in text) == (1, True)
    assert check(good, EXAMPLES / "github-issue-opened.json")[0] == 1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({**document, "grants": {}}))
    assert check(good, broken)[0] == 2


def test_reconcile_refuses_a_digest_that_is_not_enrolled(config: Path) -> None:
    status, text = run("reconcile", "sha256:" + "0" * 64, "--config", str(config))
    assert (status, "is not enrolled" in text) == (2, True)
