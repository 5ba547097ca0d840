import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.demo import KID, public_jwk
from gateway.environment import data_folder
from gateway.errors import Unavailable
from gateway.keys import Jwks, Keys, SecretValue, fetch_jwks
from gateway.profiles import Source, load_profiles
from gateway.settings import Settings

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Server:
    """A JWKS endpoint over a real socket whose answer the test sets."""

    def __init__(self) -> None:
        self.document: Any = {"keys": [public_jwk(KEY)]}
        self.status = 200
        self.calls = 0
        self.url = ""
        self.slow_s = 0.0

    async def answer(self, _request: web.Request) -> web.Response:
        self.calls += 1
        await asyncio.sleep(self.slow_s)
        if isinstance(self.document, bytes):
            return web.Response(body=self.document, status=self.status)
        return web.json_response(self.document, status=self.status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    state = Server()
    app = web.Application()
    app.router.add_get("/jwks", state.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    state.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    yield state
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("gateway.keys.time.monotonic", lambda: now[0])
    return now


async def test_jwks_is_cached_refreshed_on_an_unknown_kid_and_cooled_down(
    server: Server, session: aiohttp.ClientSession, clock: list[float]
) -> None:
    jwks = Jwks(lambda: session)
    assert set(await jwks.keys(server.url, KID)) == {KID}
    assert set(await jwks.keys(server.url, "other")) == {KID}
    assert server.calls == 1  # an unknown kid within the minute asks nobody
    clock[0] += 61
    await jwks.keys(server.url, "other")
    assert server.calls == 2
    await jwks.keys(server.url, KID)
    assert server.calls == 2
    clock[0] += 3601
    await jwks.keys(server.url, KID)
    assert server.calls == 3


async def test_stale_keys_serve_for_six_hours_and_no_longer(
    server: Server, session: aiohttp.ClientSession, clock: list[float]
) -> None:
    jwks = Jwks(lambda: session)
    await jwks.keys(server.url, KID)
    server.status = 500
    clock[0] += 6 * 3600 - 10
    assert set(await jwks.keys(server.url, KID)) == {KID}
    clock[0] += 20
    with pytest.raises(Unavailable, match="jwks-unavailable"):
        await jwks.keys(server.url, KID)
    server.status = 200
    clock[0] += 61
    assert set(await jwks.keys(server.url, KID)) == {KID}


async def test_many_callers_at_a_failing_endpoint_ask_it_once_a_minute(
    server: Server, session: aiohttp.ClientSession, clock: list[float]
) -> None:
    jwks = Jwks(lambda: session)
    await jwks.keys(server.url, KID)
    clock[0] += 3601
    server.status = 500
    answers = await asyncio.gather(*(jwks.keys(server.url, KID) for _ in range(20)))
    assert [set(answer) for answer in answers] == [{KID}] * 20
    assert server.calls == 2


async def test_a_slow_endpoint_holds_its_callers_for_two_seconds_once(
    server: Server, session: aiohttp.ClientSession
) -> None:
    server.slow_s = 10
    jwks = Jwks(lambda: session)
    began = time.monotonic()
    answers = await asyncio.gather(*(jwks.keys(server.url, KID) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert time.monotonic() - began < 8  # less than the endpoint takes
    assert server.calls == 1


async def test_an_unknown_kid_is_undecided_while_the_last_try_failed(
    server: Server, session: aiohttp.ClientSession, clock: list[float]
) -> None:
    """The key may be a new one: who cannot look says so (503), and does not call the token a forgery (401)."""
    jwks = Jwks(lambda: session)
    await jwks.keys(server.url, KID)
    clock[0] += 61
    server.status = 503
    for _ in range(2):
        with pytest.raises(Unavailable, match="jwks-unavailable"):
            await jwks.keys(server.url, "new")
        assert set(await jwks.keys(server.url, KID)) == {KID}
        assert set(await jwks.keys(server.url, None)) == {KID}  # a token without a usable key id names no new key
    server.status, server.document = 200, {"keys": [public_jwk(KEY), {**public_jwk(KEY), "kid": "new"}]}
    clock[0] += 61
    assert set(await jwks.keys(server.url, "new")) == {KID, "new"}


async def test_a_token_without_a_usable_key_id_asks_nobody(
    server: Server, session: aiohttp.ClientSession, clock: list[float]
) -> None:
    jwks = Jwks(lambda: session)
    await jwks.keys(server.url, KID)
    clock[0] += 61
    await jwks.keys(server.url, None)
    assert server.calls == 1


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        ({"keys": []}, 200, "jwks-empty"),
        ({"keys": [{"kid": "a", "kty": "oct", "k": "AAAA"}]}, 200, "jwks-empty"),
        ({"keys": [{**public_jwk(KEY), "alg": "HS256"}]}, 200, "jwks-empty"),
        ({"keys": [{**public_jwk(KEY), "n": "!"}]}, 200, "jwks-malformed"),
        (b"not json", 200, "jwks-malformed"),
        (b"[]", 200, "jwks-malformed"),
        (b" " * 300_000, 200, "jwks-too-large"),
        ({}, 302, "jwks-status"),
    ],
)
async def test_what_is_no_key_set(
    server: Server, session: aiohttp.ClientSession, document: Any, status: int, reason: str
) -> None:
    server.document, server.status = document, status
    with pytest.raises(Unavailable, match=reason):
        await fetch_jwks(session, server.url)
    with pytest.raises(Unavailable, match="jwks-unavailable"):
        await Jwks(lambda: session).keys(server.url, KID)


async def test_an_unreachable_jwks(session: aiohttp.ClientSession) -> None:
    with pytest.raises(Unavailable, match="jwks-unreachable"):
        await fetch_jwks(session, "http://127.0.0.1:9/jwks")


def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_last(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one\n")
    secret = SecretValue(f"file:{file}")
    file.write_text("two\n")
    os.utime(file, (1, 1))
    secret.refresh()
    assert secret.value == b"two"
    file.write_text("")
    secret.refresh()
    assert secret.value == b"two"
    file.unlink()
    secret.refresh()
    assert secret.value == b"two"


async def test_rings_follow_the_file(tmp_path: Path, session: aiohttp.ClientSession, clock: list[float]) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")
    second.write_text("new")
    settings = Settings.model_validate(
        {
            "store": {"embedded": "x"},
            "github": {"app_id": 1, "private_key": f"file:{first}"},
            "sources": {"s": {"profile": "github", "secrets": (f"file:{first}", f"file:{second}")}},
        }
    )
    keys = Keys(settings, lambda: session)
    source = Source("s", load_profiles(data_folder("profiles"))["github"])
    assert [s.value for s in (await keys.ring(source)).secrets] == [b"old", b"new"]
    first.write_text("newest")
    clock[0] += 2
    assert [s.value for s in (await keys.ring(source)).secrets] == [b"newest", b"new"]
    assert "newest" not in repr(await keys.ring(source))
