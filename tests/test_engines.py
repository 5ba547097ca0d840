"""The servers below the application: what each does with a connection that asks for nothing."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway import engines, uvicorn_engine


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def served(seconds: int) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stop = asyncio.Event()
    serving = asyncio.create_task(
        uvicorn_engine.serve(app, listener, stop, keep_alive_s=seconds, drain_s=2, head_bytes=1000)
    )
    try:
        yield port
    finally:
        stop.set()
        await asyncio.wait_for(serving, 10)


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_uvicorn_waits_for_a_head_only_so_long(before: bytes) -> None:
    async with served(1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        if before:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        writer.write(b"POST / HTTP/1.1\r\nhost")
        for _ in range(200):  # a byte now and then does not prolong it
            if reader.at_eof():
                break
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
                await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.1)
        assert 0.5 < time.monotonic() - began < 15
        assert reader.at_eof()
        writer.close()


async def test_uvicorn_lets_a_request_at_work_take_its_time() -> None:
    async with served(1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n")
        for _ in range(20):
            writer.write(b"a" * 100)
            await asyncio.sleep(0.1)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def echo(scope: Any, _: Any, send: Any) -> None:
    """Answer with the path, the query and the Host names that the application is given."""
    hosts = b",".join(value for name, value in scope["headers"] if name == b"host")
    body = b" ".join((scope["path"].encode(), scope["query_string"], hosts))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("engine", engines.ENGINES)
@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://hooks.example/hooks/x", "/hooks/x", ""),
        ("HTTPS://hooks.example:8443/hooks/a%20b?c=http://d/e", "/hooks/a b", "c=http://d/e"),
        ("/http://hooks.example/hooks/x", "/http://hooks.example/hooks/x", ""),
        ("/hooks/x?a=b", "/hooks/x", "a=b"),
    ],
)
async def test_a_target_in_absolute_form_is_its_path(engine: str, target: str, path: str, query: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port, stop = listener.getsockname()[1], asyncio.Event()
    serving = asyncio.create_task(engines.ENGINES[engine](echo, listener, stop))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nhost: hooks.example\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        writer.close()
    finally:
        stop.set()
        await asyncio.wait_for(serving, 30)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body.decode().rpartition(" ")[0] == f"{path} {query}"


async def test_the_admin_sides_host_is_the_targets_authority() -> None:
    """RFC 9112 3.2.2: the Host beside a target in absolute form counts for nothing, so a foreign target stays foreign."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, stop = listener.getsockname()[1], asyncio.Event()
    serving = asyncio.create_task(engines.hypercorn(echo, listener, stop))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://evil.example:1/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")[2]
        writer.close()
    finally:
        stop.set()
        await asyncio.wait_for(serving, 30)
    assert body == b"/  evil.example:1"
