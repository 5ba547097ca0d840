"""The runner's double: what it says where there is nothing to run, and that a log is shown as GitHub shows it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

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
    document, nobody = tmp_path / "triage.json", f"http://127.0.0.1:{free_port()}"
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for text in (
        "{}",
        '{"workflow": null}',
        '{"workflow": "a\\u0000b"}',
        '{"workflow": "\\ud800"}',
        "[" * 60_000,
        "[1]",
    ):
        document.write_text(text)
        for path in (document, tmp_path / "zero.json"):
            assert await run(nobody, path) == (3, f"runner double: {path} is no compiled subscription\n")
    workflow = ".github/workflows/x.yml"
    document.write_text(json.dumps({"workflow": workflow}))
    assert await run(nobody, document) == (3, f"runner double: {nobody}: no double answers there\n")
    async with running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS) as github:
        said = f"runner double: {github.address}: there is no such dispatch\n"
        assert await run(github.address, document) == (3, said)
        github.double.dispatches.append(
            {"repo": "acme/web", "installation": 11, "event_type": "gateway-x", "client_payload": {}}
        )
        contents = github.double.add_repository("acme/web").contents
        for data in (None, b"on: {repository_dispatch: {types: [gateway-y]}}"):
            if data is not None:
                contents[(workflow, None)] = data
            code, said = await run(github.address, document)
            assert (code, "GitHub starts no run" in said) == (3, True)
        contents[(workflow, None)] = b"on: {repository_dispatch: {types: [gateway-x]}}"
        code, said = await run(github.address, document)
        assert (code, "no double answers there" in said) == (3, True)  # the issuer


async def test_an_answer_of_something_else_is_no_double(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response([1])

    app = web.Application()
    app.add_routes([web.get("/_double/event", answer)])
    site = web.AppRunner(app)
    await site.setup()
    await web.TCPSite(site, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{site.addresses[0][1]}"
    document = tmp_path / "x.json"
    document.write_text('{"workflow": ".github/workflows/x.yml"}')
    assert await run(address, document) == (3, f"runner double: {address}: no double answers there\n")
    await site.cleanup()


async def test_the_event_of_a_dispatch_is_found_among_those_of_others() -> None:
    async with running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS) as github:
        sent = {"installation": 11, "event_type": "x"}
        ours = {"gateway": {"dispatch": "d"}}
        for repo, payload in (("acme/web", ours), ("acme/web", {"gateway": "no"}), ("acme/web", {}), ("acme/gone", {})):
            github.double.dispatches.append({**sent, "repo": repo, "client_payload": payload})
        async with aiohttp.ClientSession(github.address) as session:
            for asked, expected in (({"dispatch": "d"}, ours), ({}, {})):
                async with session.get("/_double/event", params=asked) as response:
                    assert (await response.json())["client_payload"] == expected


def test_an_empty_environment_and_an_installed_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("PATH")
    assert runner.Run("acme/web", 1, "x", "1", "u", "t").environment()["PATH"] == os.defpath
    monkeypatch.setattr(runner, "ACTION", tmp_path / "missing")
    nobody = "http://127.0.0.1:1"
    assert runner.main(["--github", nobody, "--issuer", nobody, "--receiver", nobody, "--subscription", "x"]) == 3
    assert "of a clone" in capsys.readouterr().err
