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

KEEP_S = 2


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
    """Hypercorn with our connections. `/slow` takes longer than the keep-alive time; see `app` for the other paths."""

    def __init__(self, port: int, stop: asyncio.Event) -> None:
        self.port, self.stop, self.asked = port, stop, asyncio.Event()
        self.seen: list[Any] = []
        self.serving: asyncio.Task[None]

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        self.seen.append(scope)
        self.asked.set()
        if scope["path"] == "/leaves":  # without an answer and with the body unread
            await asyncio.sleep(0.3)
            return
        if scope["path"] == "/raises":
            await asyncio.sleep(0.3)
            raise RuntimeError("a bug with the body unread")
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/slow":
            await asyncio.sleep(1.5 * KEEP_S)
        length = {"/big": 50_000_000, "/half": 10}.get(scope["path"], 0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % length)]})
        if scope["path"] == "/half":
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
            raise RuntimeError("a bug with three bytes of ten sent")
        await send({"type": "http.response.body", "body": b"a" * length})

    async def ask(self, *lines: str, line: str = "GET / HTTP/1.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("".join(f"{one}\r\n" for one in (line, "host: x", *lines, "")).encode())
        return reader, writer


@pytest.fixture
async def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(engines, "KEEP_ALIVE_S", KEEP_S)
    monkeypatch.setattr(ours, "CLOSE_S", 0.5, raising=False)
    monkeypatch.setattr(engines, "DRAIN_S", 8.0)
    monkeypatch.setattr("hypercorn.asyncio.run.TCPServer", TCPServer)  # put back what `install` replaces
    monkeypatch.setattr("hypercorn.protocol.H11Protocol", H11Protocol)
    ours.install()
    listener = socket.create_server(("127.0.0.1", 0))
    one = Served(listener.getsockname()[1], asyncio.Event())
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, getattr(request, "param", 0) * 1000)
    one.serving = asyncio.create_task(engines.hypercorn(one.app, listener, one.stop))
    yield one
    one.stop.set()
    done, _ = await asyncio.wait({one.serving}, timeout=30)
    assert done
    assert one.serving.exception() is None


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
        await asyncio.sleep(0.4 * KEEP_S)  # each answer starts the time anew
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await answered(reader) == b"HTTP/1.1 200 "
    writer.write(b"POST / HTTP/1.1\r\nho")  # the start of a head prolongs nothing
    assert 0.5 * KEEP_S < await ended_after_s(reader) < 20
    writer.close()


async def test_a_request_at_work_takes_its_time_and_the_next_is_served(served: Served) -> None:
    reader, writer = await served.ask(line="GET /slow HTTP/1.1")
    assert await answered(reader) == b"HTTP/1.1 200 "
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await answered(reader) == b"HTTP/1.1 200 "
    assert 0.5 * KEEP_S < await ended_after_s(reader) < 20
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


def no_reader(port: int, *lines: bytes) -> socket.socket:
    """Ask, and read nothing of the answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(b"\r\n".join((*lines, b"host: x", b"", b"")))
    return client


async def until_gone(before: set[asyncio.Task[Any]], within_s: float) -> None:
    """Nothing of a connection is left: no task, and so no descriptor."""
    _, left = await asyncio.wait(asyncio.all_tasks() - before, timeout=within_s)
    assert not left


@pytest.mark.parametrize(
    "more", [b"\r\n", b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n", b"\x00" * 9], ids=["end", "request", "junk"]
)
@pytest.mark.parametrize(
    "last", [b"GET / HTTP/1.1\r\nconnection: close", b"GET /slow HTTP/1.1\r\nconnection: close", b"GET / HTTP/1.0"]
)
async def test_what_follows_a_last_request_changes_nothing(served: Served, last: bytes, more: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(last + b"\r\nhost: x\r\n\r\n" + more)
    await asyncio.sleep(0.1)
    writer.write(more)
    with contextlib.suppress(ConnectionError):
        got = await asyncio.wait_for(reader.read(), 10)
    assert [line[9:12] for line in got.split(b"\r\n") if line.startswith(b"HTTP/")] == [b"200"]
    assert len(served.seen) == 1
    writer.close()


async def test_a_request_behind_a_broken_answer_leaves_nothing_behind(served: Served) -> None:
    before = asyncio.all_tasks()
    for _ in range(20):
        _, writer = await served.ask("", "GET / HTTP/1.1", "host: x", line="GET /half HTTP/1.1")
        writer.close()
    await until_gone(before, 10)


async def test_a_request_behind_the_last_answer_of_a_drain_holds_nothing_up(served: Served) -> None:
    reader, writer = await served.ask("", "GET /b HTTP/1.1", "host: x", line="GET /slow HTTP/1.1")
    await asyncio.wait_for(served.asked.wait(), 10)
    served.stop.set()
    assert await answered(reader) == b"HTTP/1.1 200 "
    await asyncio.wait({served.serving}, timeout=3)  # far from what a drain may take
    assert served.serving.done()
    assert len(served.seen) == 1
    writer.close()


@pytest.mark.parametrize("path", ["/leaves", "/raises"])
async def test_a_body_that_the_application_leaves_is_read_to_its_end(served: Served, path: str) -> None:
    before = asyncio.all_tasks()
    reader, writer = await served.ask("transfer-encoding: chunked", line=f"POST {path} HTTP/1.1")
    writer.write(b"2\r\naa\r\n" * 5_000)  # far more pieces than the server's queue takes
    assert await answered(reader) == b"HTTP/1.1 500 "
    await until_gone(before, 10)
    writer.close()


@pytest.mark.parametrize("how", [b"", b"connection: close"])
async def test_who_reads_nothing_ends_with_the_drain(
    served: Served, how: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = no_reader(served.port, b"GET /big HTTP/1.1", *filter(None, [how]))
    await asyncio.wait_for(served.asked.wait(), 10)
    served.stop.set()
    await asyncio.wait({served.serving}, timeout=20)
    assert served.serving.done()
    assert "connection-cut" in caplog.messages
    assert not [record for record in caplog.records if record.name == "asyncio"]
    client.close()


@pytest.mark.parametrize(
    "served", [1], indirect=True
)  # the kernel's word for an answer that could not even be buffered
async def test_who_read_none_of_its_answers_ends_with_its_idle_time(served: Served) -> None:
    before = asyncio.all_tasks()
    with contextlib.closing(no_reader(served.port, b"GET / HTTP/1.1")) as client:
        client.setblocking(False)
        rest = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000
        for _ in range(4_000):
            with contextlib.suppress(BlockingIOError):
                rest = rest[client.send(rest[:1400]) :]
            await asyncio.sleep(0)
        await until_gone(before, 20)


@pytest.mark.parametrize("served", [1], indirect=True)
async def test_who_is_cut_off_by_the_kernel_ends_alone(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """With TimeoutError, which Hypercorn let through: the drain ended for all."""
    busy, writer = await served.ask(line="GET /slow HTTP/1.1")
    client = no_reader(served.port, b"GET /big HTTP/1.1")
    await asyncio.sleep(0.2)
    served.stop.set()
    assert await answered(busy) == b"HTTP/1.1 200 "
    await asyncio.wait({served.serving}, timeout=20)
    assert served.serving.done()
    assert not [
        record for record in caplog.records if record.levelno >= logging.ERROR and record.name != "hypercorn.error"
    ]
    writer.close()
    client.close()


async def test_a_bug_on_one_connection_ends_it_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = ours.Http11._create_stream

    async def broken(self: ours.Http11, request: Any) -> None:
        if request.target == b"/bug":
            raise ZeroDivisionError
        await create(self, request)

    monkeypatch.setattr(ours.Http11, "_create_stream", broken)
    busy, writer = await served.ask(line="GET /slow HTTP/1.1")
    await asyncio.wait_for(served.asked.wait(), 10)
    _, other = await served.ask(line="GET /bug HTTP/1.1")
    served.stop.set()
    assert await answered(busy) == b"HTTP/1.1 200 "
    assert "connection-bug" in caplog.messages
    writer.close()
    other.close()
