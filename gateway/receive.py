"""Request -> `RawDelivery`, under a size cap and a deadline. Refuses before buffering; knows nothing of providers."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

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
    charge: Callable[[int], None] = lambda _size: None,
) -> RawDelivery:
    """Read one request; `charge` is told the size of each piece as it arrives, and may raise.

    Raises Rejection: `content-encoding` 415, `body-too-large` 413 (declared or streamed), `body-framing` 400 (both
    framings at once, which proxies read differently: request smuggling), `body-too-slow` 408. Raises Vanished.
    """
    headers = tuple(scope["headers"])  # ASGI: names are in lower case
    first = dict(headers)
    if b"content-encoding" in first and any(
        name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in headers
    ):
        raise Rejection("content-encoding", 415)  # a signature covers the bytes sent; no provider compresses
    declared = first.get(b"content-length", b"0")
    if b"transfer-encoding" in first and b"content-length" in first:
        raise Rejection("body-framing", 400)
    if declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise Rejection("body-too-large", 413)
    try:
        with _Deadline(deadline_s):
            body = await _read(receive, limit_bytes, charge)
    except TimeoutError:
        raise Rejection("body-too-slow", 408) from None
    return RawDelivery(delivery, source, time.time(), headers, scope.get("query_string", b""), body)


async def _read(receive: Receive, limit_bytes: int, charge: Callable[[int], None]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Vanished
        chunk = message.get("body", b"")
        if chunk:
            charge(len(chunk))
            size += len(chunk)
            if size > limit_bytes:
                raise Rejection("body-too-large", 413)
            chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Deadline:
    """`asyncio.timeout` without what it does for being rescheduled and nested: a fifth of its cost, and one a delivery."""

    __slots__ = ("_before", "_handle", "_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def _expire(self) -> None:
        self._over = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        if self._over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:  # ours alone
            raise TimeoutError from error
