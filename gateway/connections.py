"""The connections of this process: HTTP/1.1 alone, ended with their peers, and never so many that no descriptor is left.

Hypercorn 0.18 keeps a connection whose peer is gone until its keep-alive runs out: a sender that opens one a delivery would
leave all of them behind for a minute (https://github.com/pgjones/hypercorn/issues/241). And it takes what the kernel has for it; a process without a descriptor can read no
file and reach no store.
"""

import asyncio
import contextlib
import logging
import resource
from collections import Counter
from typing import Any

import h11
import hypercorn.protocol
from hypercorn.asyncio import run as hypercorn_run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, RawData, Updated
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from gateway import log

RESERVED = 256  # descriptors for the store, GitHub, providers and files
ENOUGH = 1_048_576
SAID_S = 60.0


class Connections:
    """Counts connections by address. One may be open while all, plus those of its address, are under the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: Counter[str] = Counter()
        self._total = 0  # counted beside: a sum over all addresses at each new connection would be a flood's own help
        self._said = -SAID_S

    def take(self, address: str) -> bool:
        """Count one more; False where there is no room."""
        if self._total + self._open[address] >= self.limit:
            self._say()
            return False
        self._open[address] += 1
        self._total += 1
        return True

    def give(self, address: str) -> None:
        """One ended."""
        self._open[address] -= 1
        self._total -= 1
        if not self._open[address]:
            del self._open[address]

    def _say(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said >= SAID_S:
            self._said = now
            log.event("too-many-connections", logging.WARNING, open=self._total, limit=self.limit)


def raise_limit() -> int:
    """Use as many descriptors as we may, and return how many: the usual first limit of 1,024 is as many idle connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return ENOUGH if most == resource.RLIM_INFINITY else min(most, ENOUGH)


class Http11(H11Protocol):
    """Hypercorn's, without what a connection could change to: neither HTTP/2 nor WebSocket is served here.

    A wish to upgrade is passed over, as https://www.rfc-editor.org/rfc/rfc9110#section-7.8 allows. To look for one took three
    passes over the head, a tenth of what the server does for a request.
    """

    async def _check_protocol(self, event: h11.Request) -> None:
        """Stay with HTTP/1.1."""

    async def _create_stream(self, request: h11.Request) -> None:
        stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.stream = stream
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=[(name.lower(), value) for name, value in request.headers.raw_items()],
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()


class Idle:
    """The idle time of one connection, in the place of Hypercorn's: one task for its life, where that makes two a request."""

    def __init__(self, connection: TCPServer) -> None:
        self._connection = connection
        self._since: float | None = None  # None: a request is on
        self._task: asyncio.Task[None] | None = None

    async def restart(self, task_group: Any, _action: object) -> None:
        """The connection began, or its request has been answered."""
        self._since = self._connection.loop.time()
        if self._task is None:
            self._task = task_group._task_group.create_task(self._watch())  # noqa: SLF001 (as Hypercorn's own does)

    async def stop(self) -> None:
        """A request is on."""
        self._since = None

    def end(self) -> None:
        """Nothing more will be read."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        connection, keep = self._connection, self._connection.config.keep_alive_timeout
        left = keep
        while left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await connection.context.terminated.wait()
                if self._since is None:
                    return  # it is closed with its answer
                break
            left = keep if self._since is None else self._since + keep - connection.loop.time()
        await asyncio.shield(connection._initiate_server_close())  # noqa: SLF001 (what its own calls)


def install() -> Connections:
    """Have Hypercorn's connections of this process counted and ended."""
    most = raise_limit()
    connections = Connections(max(most - RESERVED, most // 2))

    class Connection(TCPServer):
        """Hypercorn's, with an end, and with less to do for each request."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.idle_task: Idle = Idle(self)  # type: ignore[assignment]

        async def run(self) -> None:
            peer: Any = self.writer.get_extra_info("peername")
            address = str(peer[0]) if peer else ""
            if not connections.take(address):
                self.writer.transport.abort()
                return
            try:
                await super().run()
            finally:
                connections.give(address)

        async def _read_data(self) -> None:
            await super()._read_data()
            self.idle_task.end()  # it read to the end: nothing to wait for

        async def protocol_send(self, event: Event) -> None:
            if isinstance(event, RawData) and not event.data:
                return  # the end of a body of known length has no bytes
            await super().protocol_send(event)
            if isinstance(event, Updated) and event.idle and self.reader.at_eof():
                self.idle_task.end()

    hypercorn_run.TCPServer = Connection  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = Http11  # type: ignore[attr-defined]
    return connections
