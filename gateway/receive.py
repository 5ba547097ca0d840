"""Request -> `RawDelivery`, under a size cap and a deadline. Refuses before buffering; knows nothing of providers."""

import asyncio
import time

from starlette.types import Receive, Scope

from gateway.delivery import RawDelivery
from gateway.errors import Rejection


class Vanished(Exception):  # noqa: N818 (the client left; nobody is to be answered)
    """The client disconnected before its request was whole."""


async def receive_delivery(
    scope: Scope,
    receive: Receive,
    *,
    delivery: str,
    source: str,
    limit_bytes: int,
    deadline_s: float,
) -> RawDelivery:
    """Read one request.

    Raises Rejection: `content-encoding` 415, `body-too-large` 413 (declared or streamed), `body-framing` 400 (both
    framings at once, which proxies read differently: request smuggling), `body-too-slow` 408. Raises Vanished.
    """
    headers = tuple((name.lower(), value) for name, value in scope["headers"])
    names = [name for name, _ in headers]
    if any(name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in headers):
        raise Rejection("content-encoding", 415)  # a signature covers the bytes sent; no provider compresses
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Rejection("body-framing", 400)
    declared = next((value for name, value in headers if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise Rejection("body-too-large", 413)
    try:
        async with asyncio.timeout(deadline_s):
            body = await _read(receive, limit_bytes)
    except TimeoutError:
        raise Rejection("body-too-slow", 408) from None
    return RawDelivery(delivery, source, time.time(), headers, scope.get("query_string", b""), body)


async def _read(receive: Receive, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Vanished
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise Rejection("body-too-large", 413)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks) if len(chunks) > 1 else chunk
