"""Tricks with the request of `POST /admission`, over a real socket: each gets a closed refusal, and none admits anybody."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.destination_house import House, house, receiving
from tests.valkey import PrivateValkey


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server) as made:
        yield made


async def send(address: str, *parts: bytes, pause_s: float = 0) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; return status, headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        length = headers.get("content-length")
        body = await reader.readexactly(int(length)) if length else await reader.read(65_536)
        return int(head[0].split()[1]), headers, body
    finally:
        writer.close()


def request(body: bytes, *headers: bytes, length: bool = True) -> bytes:
    lines = [b"POST /admission HTTP/1.1", b"Host: x", b"Connection: close", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def test_tricks_with_the_body_and_the_headers(home: House) -> None:
    dispatch = await home.dispatch()
    good = json.dumps({"dispatch": dispatch, "subscription": home.digest}).encode()
    bearer = b"Authorization: Bearer " + home.token(run_id="7").encode()
    twice = good[:-1] + b', "dispatch": "' + dispatch.encode() + b'"}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(good), good)
    endless = b"1000\r\n" + b" " * 4096 + b"\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n0\r\n\r\n"
    encoding = b"Transfer-Encoding: chunked"
    tricks = {
        "a key twice": (400, "request", request(twice, bearer)),
        "a huge body": (413, "body-too-large", request(good + b" " * 4096, bearer)),
        "a huge chunked body": (413, "body-too-large", request(endless, bearer, encoding, length=False)),
        "a compressed body": (415, "content-encoding", request(good, bearer, b"Content-Encoding: gzip")),
        "UTF-16": (400, "request", request(good.decode().encode("utf-16"), bearer)),
        "no UTF-8": (400, "request", request(good.replace(b"sha256", b"sha\xff56"), bearer)),
        "nested": (400, "request", request(b'{"dispatch": {"x": "y"}, "subscription": ["z"]}', bearer)),
        "deep": (400, "request", request(b"[" * 2000 + b"]" * 2000, bearer)),
        "another digest's spelling": (403, "not-enrolled", request(good.replace(b"sha256:", b"SHA256:"), bearer)),
        "a dispatch in capitals": (404, "unknown-dispatch", request(good.replace(dispatch.encode(), dispatch.upper().encode()), bearer)),
        "a dispatch that is a key of the store": (404, "unknown-dispatch", request(good.replace(dispatch.encode(), b"*"), bearer)),
        "two tokens": (401, "header-repeated", request(good, bearer, bearer)),
        "no token": (401, "token", request(good)),
        "another scheme": (401, "token", request(good, bearer.replace(b"Bearer", b"bearer"))),
        "two spaces": (401, "token", request(good, bearer.replace(b"Bearer ", b"Bearer  "))),
        "a token of other letters": (401, "token", request(good, b"Authorization: Bearer \xc3\xa9.\xc3\xa9.\xc3\xa9")),
        "a huge token": (401, "token", request(good, b"Authorization: Bearer " + b"a" * 20_000 + b".a.a")),
        "a token in the query alone": (
            401,
            "token",
            request(good).replace(b"/admission", b"/admission?access_token=" + home.token().encode()),
        ),
    }  # fmt: skip
    async with receiving(home) as address:
        for name, (status, reason, sent) in tricks.items():
            answer = await send(address, sent)
            assert (answer[0], json.loads(answer[2])) == (status, {"admitted": False, "reason": reason}), name
            assert answer[1]["cache-control"] == "no-store", name
            assert ("www-authenticate" in answer[1]) is (status == 401), name
        status, _, _ = await send(address, request(good, bearer, encoding))  # both framings: smuggling
        assert status == 400
        known = await home.store.dispatch(dispatch)
        assert known is not None
        assert known.run is None
        status, _, body = await send(address, request(chunked, bearer, encoding, length=False))
        assert (status, json.loads(body)["run_id"]) == (200, "7")


async def test_a_slow_or_vanishing_client_holds_nothing(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admission_route.DEADLINE_S", 0.3)
    dispatch = await home.dispatch()
    good = json.dumps({"dispatch": dispatch, "subscription": home.digest}).encode()
    whole = request(good, b"Authorization: Bearer " + home.token(run_id="7").encode())
    async with receiving(home) as address:
        began = time.monotonic()
        status, _, body = await send(address, whole[:-20])
        assert (status, json.loads(body)["reason"]) == (408, "body-too-slow")
        assert time.monotonic() - began < 15  # without the deadline it would wait for ever
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
        writer.write(whole[:-20])
        await writer.drain()
        writer.transport.abort()
        await asyncio.sleep(0.1)
        known = await home.store.dispatch(dispatch)
        assert known is not None
        assert known.run is None
        assert (await send(address, whole[:50], whole[50:-20], whole[-20:], pause_s=0.05))[0] == 200
