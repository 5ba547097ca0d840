"""The HTTP servers below the application: Hypercorn, or Uvicorn where the operator chose it. Both get the same plain ASGI app."""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote

from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config

DRAIN_S: Final = 20.0  # above the body deadline (8) plus the store's time (2), so that no request is cut off
KEEP_ALIVE_S: Final = 60
HEAD_BYTES: Final = 32_768
ABSOLUTE: Final = re.compile(rb"https?://(?P<authority>[^/?#]+)(?P<path>/.*)?\Z", re.IGNORECASE)

Engine = Callable[[Any, socket.socket, asyncio.Event], Coroutine[Any, Any, None]]


async def hypercorn(app: Any, listener: socket.socket, stop: asyncio.Event, read_timeout_s: int | None = None) -> None:
    """Serve with Hypercorn until `stop`, then drain.

    Without `read_timeout_s` whatever reads must have a deadline of its own, as deliveries and admissions have; a head
    must be whole within the keep-alive time of the connection's start or the last answer. A timer for each read costs 7 us.
    """
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]  # detached: Hypercorn owns and closes it
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_date_header = False
    config.include_server_header = False
    config.graceful_timeout = DRAIN_S
    config.read_timeout = read_timeout_s
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = 1_000_000
    config.h11_max_incomplete_size = HEAD_BYTES
    await hypercorn_serve(guard(app), config, shutdown_trigger=stop.wait)


async def uvicorn(app: Any, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve with Uvicorn until `stop`, then drain."""
    from gateway.uvicorn_engine import serve  # noqa: PLC0415 (an optional dependency)

    await serve(guard(app), listener, stop, keep_alive_s=KEEP_ALIVE_S, drain_s=DRAIN_S, head_bytes=HEAD_BYTES)


ENGINES: Final[dict[str, Engine]] = {"hypercorn": hypercorn, "uvicorn": uvicorn}


def guard(app: Any) -> Any:
    """Keep from the application what the server below would let happen.

    HTTP/2 without a negotiation is refused; its preface reads as a request of that version.
    A body that the application leaves before its end, answered or not, is read on until it or its connection ends: the
    server's queue of ten pieces would fill, its reader and the request's end would wait for each other, and the connection
    and its descriptor would never be freed.
    A target in absolute form is brought to its path.
    """
    beside: set[asyncio.Task[None]] = set()  # a loop keeps no task alive by itself

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        ended = discarding = False

        async def counted() -> Any:
            nonlocal ended
            message = await receive()
            ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def discard() -> None:
            while not ended:
                await counted()

        def read_on() -> None:
            nonlocal discarding
            if not discarding and not ended:
                discarding = True
                task = asyncio.create_task(discard())
                beside.add(task)
                task.add_done_callback(beside.discard)

        async def answering(message: Any) -> None:
            read_on()
            await send(message)

        if scope["http_version"].startswith("2"):
            await answering({"type": "http.response.start", "status": 505, "headers": [(b"content-length", b"0")]})
            await answering({"type": "http.response.body", "body": b""})
            return
        try:
            await app(origin_form(scope), counted, answering)
        finally:
            read_on()

    return guarded


def origin_form(scope: Any) -> Any:
    """Bring a target like `http://host/path` to its path; its authority stands for Host: RFC 9112 3.2.2.

    https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2. Uvicorn's parser has dropped scheme and authority by itself.
    """
    found = ABSOLUTE.match(scope["raw_path"])
    if found is None:
        return scope
    path = found["path"] or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
    headers.append((b"host", found["authority"]))
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}
