"""The double holds GitHub's rules, so that a client that breaks one fails here and not in production."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.doubles.github import Running, running
from gateway.doubles.github.process import main

APP_ID = 4711
KEY = rsa.generate_private_key(65537, 2048)
OTHER_KEY = rsa.generate_private_key(65537, 2048)
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
INSTALLATIONS = {11: ["acme/web", "acme/api"]}
DISPATCH = {"event_type": "x", "client_payload": {"gateway": {"version": 2}}}


@pytest.fixture
async def github() -> AsyncIterator[Running]:
    async with running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS) as double:
        yield double


@pytest.fixture
async def http(github: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(github.address) as session:
        yield session


def app_jwt(key: Any = KEY, algorithm: str = "RS256", **changed: Any) -> dict[str, str]:
    now = int(time.time())
    claims = {"iat": now - 60, "exp": now + 500, "iss": str(APP_ID), **changed}
    claims = {name: value for name, value in claims.items() if value is not None}
    return {"Authorization": f"Bearer {jwt.encode(claims, key, algorithm=algorithm)}"}


async def issue(http: aiohttp.ClientSession, **asked: Any) -> dict[str, str]:
    async with http.post("/app/installations/11/access_tokens", json=asked, headers=app_jwt()) as response:
        assert response.status == 201, await response.text()
        body = await response.json()
    assert body["token"].startswith("ghs_")
    return {"Authorization": f"Bearer {body['token']}"}


async def status(http: aiohttp.ClientSession, method: str, path: str, **more: Any) -> int:
    async with http.request(method, path, allow_redirects=False, **more) as response:
        return response.status


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic eA=="},
        {"Authorization": "Bearer nonsense"},
        app_jwt(OTHER_KEY),
        app_jwt("0123456789abcdef0123456789abcdef", "HS256"),
        app_jwt(iss="4712"),
        app_jwt(iat=int(time.time()) + 600),
        app_jwt(exp=int(time.time()) - 10),
        app_jwt(exp=int(time.time()) + 5_000),
        app_jwt(exp=None),
        app_jwt(iat=None),
    ],
)
async def test_a_bad_app_jwt_is_401(http: aiohttp.ClientSession, headers: dict[str, str]) -> None:
    assert await status(http, "POST", "/app/installations/11/access_tokens", headers=headers) == 401
    assert await status(http, "GET", "/app", headers=headers) == 401


async def test_the_app_and_its_bot(http: aiohttp.ClientSession) -> None:
    async with http.get("/app", headers=app_jwt()) as response:
        assert (await response.json())["slug"] == "gateway-double"
    async with http.get("/users/gateway-double[bot]") as response:
        assert (await response.json())["id"] == 200_000_001
    assert await status(http, "GET", "/users/someone") == 404


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"repositories": ["web"], "permissions": {"contents": "write"}}, 201),
        ({}, 201),
        ({"repositories": ["elsewhere"]}, 422),
        ({"repositories": "web"}, 422),
        ({"permissions": {"administration": "write"}}, 422),
        ([], 422),
    ],
)
async def test_what_a_token_may_be_asked_for(http: aiohttp.ClientSession, asked: Any, expected: int) -> None:
    assert await status(http, "POST", "/app/installations/11/access_tokens", json=asked, headers=app_jwt()) == expected


async def test_a_token_request_that_is_no_json_or_for_nobody(http: aiohttp.ClientSession) -> None:
    assert await status(http, "POST", "/app/installations/11/access_tokens", data=b"{", headers=app_jwt()) == 400
    assert await status(http, "POST", "/app/installations/12/access_tokens", headers=app_jwt()) == 404


async def test_a_dispatch_is_kept(http: aiohttp.ClientSession) -> None:
    token = await issue(http, repositories=["web"], permissions={"contents": "write"})
    assert await status(http, "POST", "/repos/acme/web/dispatches", json=DISPATCH, headers=token) == 204
    async with http.get("/_double/dispatches") as response:
        (kept,) = (await response.json())["dispatches"]
    assert (kept["repo"], kept["installation"], kept["event_type"]) == ("acme/web", 11, "x")
    assert kept["body"] == json.loads(kept["raw"]) == DISPATCH
    async with http.get("/_double/state") as response:
        assert (await response.json())["dispatches"] == 1
    assert await status(http, "DELETE", "/_double/state") == 204
    assert await status(http, "POST", "/repos/acme/web/dispatches", json=DISPATCH, headers=token) == 401


async def test_a_token_reaches_what_it_is_for(http: aiohttp.ClientSession) -> None:
    token = await issue(http, repositories=["web"], permissions={"contents": "read"})
    assert await status(http, "POST", "/repos/acme/web/dispatches", json=DISPATCH, headers=token) == 403
    assert await status(http, "POST", "/repos/acme/api/dispatches", json=DISPATCH, headers=token) == 404
    assert await status(http, "GET", "/repos/acme/web", headers=token) == 200
    assert await status(http, "GET", "/repos/acme/web") == 401


async def test_an_expired_token_is_401() -> None:
    double = running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS, token_life_s=0)
    async with double as github, aiohttp.ClientSession(github.address) as http:
        token = await issue(http)
        assert await status(http, "GET", "/repos/acme/web", headers=token) == 401


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"{}", 422),
        (json.dumps({"event_type": "x" * 101}).encode(), 422),
        (json.dumps({"event_type": "x" * 100}).encode(), 204),
        (json.dumps({"event_type": "x", "other": 1}).encode(), 422),
        (json.dumps({"event_type": "x", "client_payload": []}).encode(), 422),
        (json.dumps({"event_type": "x", "client_payload": {str(n): n for n in range(11)}}).encode(), 422),
        (json.dumps({"event_type": "x", "client_payload": {str(n): n for n in range(10)}}).encode(), 204),
        (json.dumps({"event_type": "x", "client_payload": {"a": "x" * 65_536}}).encode(), 422),
    ],
)
async def test_limits_of_a_dispatch(http: aiohttp.ClientSession, body: bytes, expected: int) -> None:
    token = await issue(http)
    assert await status(http, "POST", "/repos/acme/web/dispatches", data=body, headers=token) == expected


async def test_scripted_answers_are_consumed_in_order(http: aiohttp.ClientSession, github: Running) -> None:
    token = await issue(http)
    answers = [
        {"status": 500},
        {"status": 403, "headers": {"Retry-After": "7"}, "body": {"message": "slow"}},
        {"cut": True},
        {"delay_s": 0.05},
    ]
    assert await status(http, "POST", "/_double/script", json={"repo": "acme/web", "answers": answers}) == 204
    send = {"json": DISPATCH, "headers": token}
    assert await status(http, "POST", "/repos/acme/api/dispatches", **send) == 204
    assert await status(http, "POST", "/repos/acme/web/dispatches", **send) == 500
    async with http.post("/repos/acme/web/dispatches", json=DISPATCH, headers=token) as response:
        assert (response.status, response.headers["Retry-After"]) == (403, "7")
        assert await response.json() == {"message": "slow"}
    with pytest.raises(aiohttp.ClientError):
        await status(http, "POST", "/repos/acme/web/dispatches", **send)
    assert [kept["repo"] for kept in github.double.dispatches] == ["acme/api"]
    began = time.monotonic()
    assert await status(http, "POST", "/repos/acme/web/dispatches", **send) == 204
    assert time.monotonic() - began >= 0.05


async def test_an_unknown_outcome_can_be_scripted(http: aiohttp.ClientSession, github: Running) -> None:
    token = await issue(http)
    github.double.script("acme/web", {"cut": True, "taken": True})
    with pytest.raises(aiohttp.ClientError):
        await status(http, "POST", "/repos/acme/web/dispatches", json=DISPATCH, headers=token)
    assert len(github.double.dispatches) == 1


async def test_other_calls_can_be_scripted(http: aiohttp.ClientSession, github: Running) -> None:
    github.double.script("acme/web", {"status": 502}, on="token")
    github.double.script("acme/web", {"status": 503}, on="repository")
    github.double.script("acme/web", {"status": 504}, on="contents")
    assert (
        await status(
            http, "POST", "/app/installations/11/access_tokens", json={"repositories": ["web"]}, headers=app_jwt()
        )
        == 502
    )
    token = await issue(http)
    assert await status(http, "GET", "/repos/acme/web", headers=token) == 503
    assert await status(http, "GET", "/repos/acme/web/contents/x", headers=token) == 504


async def test_a_bad_script_is_400(http: aiohttp.ClientSession) -> None:
    assert await status(http, "POST", "/_double/script", json={"repo": "acme/web", "answers": [{"stat": 1}]}) == 400


async def test_contents_by_ref(http: aiohttp.ClientSession) -> None:
    token = await issue(http)
    raw = {**token, "Accept": "application/vnd.github.raw+json"}
    for change in ({"path": "a/b.md", "text": "any"}, {"path": "a/b.md", "ref": "c0ffee", "text": "that"}):
        assert await status(http, "POST", "/_double/contents", json={"repo": "acme/web", **change}) == 204
    async with http.get("/repos/acme/web/contents/a/b.md", params={"ref": "c0ffee"}, headers=raw) as response:
        assert await response.read() == b"that"
    async with http.get("/repos/acme/web/contents/a/b.md", headers=raw) as response:
        assert await response.read() == b"any"
    assert await status(http, "GET", "/repos/acme/web/contents/a/b.md", headers=token) == 415
    assert (
        await status(http, "POST", "/_double/contents", json={"repo": "acme/web", "path": "a/b.md", "text": None})
        == 204
    )
    assert await status(http, "GET", "/repos/acme/web/contents/a/b.md", headers=raw) == 404


async def test_a_repository_moves_and_goes(http: aiohttp.ClientSession) -> None:
    token = await issue(http)
    assert (
        await status(
            http,
            "POST",
            "/_double/repository",
            json={"repo": "acme/web", "moved_to": "acme/site", "default_branch": "trunk"},
        )
        == 204
    )
    assert await status(http, "POST", "/repos/acme/web/dispatches", json=DISPATCH, headers=token) == 301
    assert (
        await status(
            http, "POST", "/app/installations/11/access_tokens", json={"repositories": ["web"]}, headers=app_jwt()
        )
        == 422
    )
    assert await status(http, "GET", "/repos/acme/site", headers=await issue(http, repositories=["site"])) == 200
    assert await status(http, "POST", "/_double/repository", json={"repo": "acme/api", "gone": True}) == 204
    assert await status(http, "GET", "/repos/acme/api", headers=token) == 404


async def test_an_installation_is_suspended_and_goes(http: aiohttp.ClientSession) -> None:
    where = "/app/installations/12/access_tokens"
    made = {"id": 12, "repositories": ["acme/new"], "permissions": {"metadata": "read"}}
    assert await status(http, "POST", "/_double/installation", json=made) == 204
    assert await status(http, "POST", where, headers=app_jwt()) == 201
    assert await status(http, "POST", where, json={"permissions": {"contents": "read"}}, headers=app_jwt()) == 422
    assert await status(http, "POST", "/_double/installation", json={"id": 12, "suspended": True}) == 204
    assert await status(http, "POST", where, headers=app_jwt()) == 403
    assert await status(http, "POST", "/_double/installation", json={"id": 12, "gone": True}) == 204
    assert await status(http, "POST", where, headers=app_jwt()) == 404


async def test_a_caller_without_a_user_agent_is_403(http: aiohttp.ClientSession) -> None:
    assert await status(http, "GET", "/app", headers={**app_jwt(), "User-Agent": ""}) == 403


async def test_the_process_says_its_address_and_ends_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_bytes(PUBLIC)
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "gateway.doubles.github",
            "--app-id",
            str(APP_ID),
            "--public-key",
            str(tmp_path / "app.pem"),
        ),
        *("--installation", "11=acme/web", "--installation", "11=acme/api"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline())
    async with aiohttp.ClientSession(said["address"]) as http:
        token = await issue(http, repositories=["api"])
        assert await status(http, "POST", "/repos/acme/api/dispatches", json=DISPATCH, headers=token) == 204
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 5) == 0


def test_a_key_that_is_none_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1())
    keys = (b"nonsense", elliptic.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for pem in keys:
        (tmp_path / "app.pem").write_bytes(pem)
        assert main(["--app-id", "1", "--public-key", str(tmp_path / "app.pem")]) == 2
    assert "PEM file" in capsys.readouterr().err


async def test_a_taken_port_is_exit_3(github: Running, tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_bytes(PUBLIC)
    port = github.address.rpartition(":")[2]
    arguments = ["--app-id", "1", "--public-key", str(tmp_path / "app.pem"), "--port", port]
    assert await asyncio.to_thread(_main_in_thread, arguments) == 3


def _main_in_thread(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "gateway.doubles.github", *arguments], check=False, capture_output=True
    ).returncode


def test_an_installation_is_written_id_equals_repository(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--app-id", "1", "--public-key", "x", "--installation", "acme/web"])
    assert error.value.code == 2
    assert "ID=OWNER/NAME" in capsys.readouterr().err
