"""Connections are counted by address, never take every descriptor, speak HTTP/1.1 alone and end when they should."""

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.protocol.h11 import H11Protocol

from gateway import connections as ours
from gateway import engines
from gateway.connections import Connections, raise_limit

KEEP_S = 1


async def test_one_address_gets_half_and_there_is_room_for_another(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(100)
    taken = sum(connections.take("a") for _ in range(100))
    assert taken == 50
    assert connections.take("b")
    assert not connections.take("a")
    for _ in range(taken):
        connections.give("a")
    assert sum(connections.take("c") for _ in range(100)) == 50
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message for record in said] == ["too-many-connections"]  # once a minute, however many are refused


def test_as_many_descriptors_as_we_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], before[1], 512), before[1]))
    try:
        assert raise_limit() <= before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Served:
    """Hypercorn with our connections; `GET /slow` takes three times the keep-alive time."""

    def __init__(self, port: int, stop: asyncio.Event) -> None:
        self.port, self.stop, self.asked = port, stop, asyncio.Event()
        self.seen: list[Any] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError  # no lifespan
        self.seen.append(scope)
        self.asked.set()
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/slow":
            await asyncio.sleep(3 * KEEP_S)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, *lines: str, line: str = "GET / HTTP/1.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("".join(f"{one}\r\n" for one in (line, "host: x", *lines, "")).encode())
        return reader, writer


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(engines, "KEEP_ALIVE_S", KEEP_S)
    monkeypatch.setattr("hypercorn.asyncio.run.TCPServer", TCPServer)  # put back what `install` replaces
    monkeypatch.setattr("hypercorn.protocol.H11Protocol", H11Protocol)
    ours.install()
    listener = socket.create_server(("127.0.0.1", 0))
    one = Served(listener.getsockname()[1], asyncio.Event())
    serving = asyncio.create_task(engines.hypercorn(one.app, listener, one.stop))
    yield one
    one.stop.set()
    await asyncio.wait_for(serving, 30)


async def answered(reader: asyncio.StreamReader) -> bytes:
    return (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).split(b"\r\n")[0]


async def ended_after_s(reader: asyncio.StreamReader) -> float:
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    return time.monotonic() - began


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_connection_that_asks_for_nothing_ends(served: Served, before: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for _ in range(before):
        await asyncio.sleep(0.7 * KEEP_S)  # each answer starts the time anew
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await answered(reader) == b"HTTP/1.1 200 "
    writer.write(b"POST / HTTP/1.1\r\nho")  # the start of a head prolongs nothing
    assert 0.8 * KEEP_S < await ended_after_s(reader) < 10
    writer.close()


async def test_a_request_at_work_takes_its_time_and_the_next_is_served(served: Served) -> None:
    reader, writer = await served.ask(line="GET /slow HTTP/1.1")
    assert await answered(reader) == b"HTTP/1.1 200 "
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await answered(reader) == b"HTTP/1.1 200 "
    assert 0.8 * KEEP_S < await ended_after_s(reader) < 10
    writer.close()


async def test_a_stop_ends_who_waits_at_once_and_who_is_served_with_the_answer(served: Served) -> None:
    idle, idler = await asyncio.open_connection("127.0.0.1", served.port)
    busy, writer = await served.ask(line="GET /slow HTTP/1.1")
    await asyncio.wait_for(served.asked.wait(), 10)
    served.stop.set()
    assert await ended_after_s(idle) < 0.8 * KEEP_S
    assert await answered(busy) == b"HTTP/1.1 200 "
    assert await ended_after_s(busy) < 10
    idler.close()
    writer.close()


async def test_a_served_request_leaves_nothing_behind(served: Served) -> None:
    reader, writer = await served.ask()
    assert await answered(reader) == b"HTTP/1.1 200 "
    before = len(asyncio.all_tasks())
    for _ in range(50):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
        assert await answered(reader) == b"HTTP/1.1 200 "
    assert len(asyncio.all_tasks()) <= before
    writer.close()


@pytest.mark.parametrize(
    "lines",
    [
        ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA"),
        (
            "connection: Upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==",
        ),
    ],
    ids=["h2c", "websocket"],
)
async def test_no_wish_to_upgrade_is_granted(served: Served, lines: tuple[str, ...]) -> None:
    reader, writer = await served.ask(*lines)
    assert await answered(reader) == b"HTTP/1.1 200 "
    assert served.seen[-1]["type"] == "http"
    writer.close()


async def test_http_2_unasked_is_refused_before_the_application(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    assert b"200" not in await asyncio.wait_for(reader.read(100), 10)
    assert served.seen == []
    writer.close()


async def test_names_of_headers_reach_the_application_in_lower_case(served: Served) -> None:
    reader, writer = await served.ask("X-Hub-Signature-256: sha256=AbC", "X-Twice: 1", "x-twice: 2")
    assert await answered(reader) == b"HTTP/1.1 200 "
    names = [(b"host", b"x"), (b"x-hub-signature-256", b"sha256=AbC"), (b"x-twice", b"1"), (b"x-twice", b"2")]
    assert served.seen[-1]["headers"] == names
    writer.close()
