"""Uvicorn (https://www.uvicorn.org/) with the bounds that Hypercorn has: a head's time and size. Imported where it was chosen."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


async def serve(
    app: Any, listener: socket.socket, stop: asyncio.Event, *, keep_alive_s: int, drain_s: float, head_bytes: int
) -> None:
    """Serve until `stop`, then drain. A head must be whole `keep_alive_s` after the connection or the last answer."""
    config = Config(
        app,
        http=_bounded(keep_alive_s, head_bytes),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # who may be believed is the application's setting
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=int(drain_s),
    )
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


class _Quiet(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the gateway."""
        yield


def _bounded(seconds: float, size: int) -> type[HttpToolsProtocol]:
    class Bounded(HttpToolsProtocol):
        """Ends a connection whose next head is not whole in time, or that sends on and on without ending it.

        The parser below it bounds neither (https://github.com/nodejs/llhttp): a client could hold a connection for nothing
        and fill the memory with one header.
        """

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its parent
            super().connection_made(transport)
            self._since: float | None = self.loop.time()  # a head is awaited; None: a request is at work
            self._begun, self._got = False, 0
            self._timer = self.loop.call_later(seconds, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """One timer a connection, not one a request."""
            now = self.loop.time()
            if self._since is not None and now - self._since >= seconds:
                self.transport.close()
                return
            self._timer = self.loop.call_later(
                seconds if self._since is None else self._since + seconds - now, self._look
            )

        def data_received(self, data: bytes) -> None:
            if self._begun:
                self._got += len(data)
                if self._got > size:
                    self.send_400_response("The head is too large.")
                    return
            super().data_received(data)

        def on_message_begin(self) -> None:
            self._begun, self._got = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._begun, self._since = False, None
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            self._since = self.loop.time()
            super().on_response_complete()

    return Bounded
