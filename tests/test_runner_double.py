"""The runner's double: what it says where there is nothing to run, and that a log is shown as GitHub shows it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo import free_port
from gateway.doubles import runner
from gateway.doubles.github import running
from tests.test_github_double import APP_ID, INSTALLATIONS, PUBLIC


def test_a_masked_value_is_not_shown() -> None:
    assert runner.masked("one\n::add-mask::secret\ntwo secret three\n") == "one\ntwo *** three"


def test_every_double_shows_an_example_and_what_it_answers() -> None:
    for name in ("runner", "oidc", "github", "providers"):
        command = [sys.executable, "-m", f"gateway.doubles.{name}", "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        assert f"Example: python -m gateway.doubles.{name}" in shown
        assert name == "runner" or "/_double/" in shown


def test_a_claim_that_no_token_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--claim", "audience=x"])
    assert "NAME is one of actor, actor_id, aud," in capsys.readouterr().err


async def run(github: str, document: Path) -> tuple[int, str]:
    addresses = ("--github", github, "--issuer", f"http://127.0.0.1:{free_port()}", "--receiver", "http://127.0.0.1:1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.doubles.runner", *addresses, "--subscription", str(document),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    document = tmp_path / "triage.json"
    document.write_text("{}")
    nobody = f"http://127.0.0.1:{free_port()}"
    assert await run(nobody, document) == (3, f"runner double: {nobody}: no double answers there\n")
    async with running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS) as github:
        said = f"runner double: {github.address}: there is no such dispatch\n"
        assert await run(github.address, document) == (3, said)
        github.double.dispatches.append(
            {"repo": "acme/web", "installation": 11, "event_type": "x", "client_payload": {}}
        )
        assert await run(github.address, document) == (3, f"runner double: {document} is no compiled subscription\n")
        document.write_text('{"workflow": ".github/workflows/x.md"}')
        code, said = await run(github.address, document)
        assert (code, "no double answers there" in said) == (3, True)
