import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import Rejection
from gateway.receive import Vanished, receive_delivery


def feed(*messages: dict[str, Any], then: float = 0) -> Callable[[], Any]:
    queue = list(messages)

    async def receive() -> dict[str, Any]:
        if not queue:
            await asyncio.sleep(then)
            return {"type": "http.disconnect"}
        return queue.pop(0)

    return receive


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def take(*messages: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = (), then: float = 0) -> Any:
    scope = {"type": "http", "headers": list(headers), "query_string": b"q=1"}
    return await receive_delivery(
        scope, feed(*messages, then=then), delivery="d", source="s", limit_bytes=10, deadline_s=0.05
    )


async def test_joins_chunks_and_keeps_header_pairs() -> None:
    raw = await take(chunk(b"ab", more=True), chunk(b"cd"), headers=((b"x-a", b"1"), (b"x-a", b"2")))
    assert (raw.body, raw.query) == (b"abcd", b"q=1")
    assert raw.headers == ((b"x-a", b"1"), (b"x-a", b"2"))
    with pytest.raises(Rejection, match="header-repeated"):
        raw.header("x-a")
    assert raw.header("x-b") is None


@pytest.mark.parametrize(
    ("messages", "headers", "reason", "status"),
    [
        ([chunk(b"")], ((b"content-encoding", b"gzip"),), "content-encoding", 415),
        ([chunk(b"")], ((b"content-length", b"11"),), "body-too-large", 413),
        ([chunk(b"")], ((b"content-length", b"9" * 5000),), "body-too-large", 413),
        ([chunk(b"123456", more=True), chunk(b"78901")], (), "body-too-large", 413),
        ([chunk(b"")], ((b"content-length", b"1"), (b"transfer-encoding", b"chunked")), "body-framing", 400),
    ],
)
async def test_refusals(messages: Any, headers: Any, reason: str, status: int) -> None:
    with pytest.raises(Rejection) as caught:
        await take(*messages, headers=headers)
    assert (caught.value.reason, caught.value.status) == (reason, status)


async def test_slow_and_vanished() -> None:
    with pytest.raises(Rejection, match="body-too-slow"):
        await take(chunk(b"a", more=True), then=1)
    with pytest.raises(Vanished):
        await take(chunk(b"a", more=True))
