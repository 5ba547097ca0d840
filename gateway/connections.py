"""The connections of this process: HTTP/1.1 alone, ended with their peers, and never so many that no descriptor is left.

Hypercorn 0.18 keeps a connection whose peer is gone until its keep-alive runs out: a sender that opens one a delivery would
leave all of them behind for a minute (https://github.com/pgjones/hypercorn/issues/241). And it takes what the kernel has for
it; a process without a descriptor can read no file and reach no store.
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
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from gateway import log

RESERVED = 256  # descriptors for the store, GitHub, providers and files
ENOUGH = 1_048_576
SAID_S = 60.0
CLOSE_S = 5.0  # for the rest of the last answer: at most 64 KiB, besides what the kernel holds
LAST = {h11.MUST_CLOSE, h11.CLOSED, h11.ERROR}  # of a peer: nothing more is to be read from it


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

    async def handle(self, event: Event) -> None:
        """Take what was read; what follows a last request is no request: https://www.rfc-editor.org/rfc/rfc9112#section-9.6."""
        if not (isinstance(event, RawData) and self.connection.their_state in LAST):
            await super().handle(event)
        if isinstance(event, Closed):
            await self.can_read.set()  # no answer comes that would

    async def _handle_events(self) -> None:
        """Hypercorn's waits for ever for a request's end that was before, and answers 400 for what follows a last one."""
        while self.connection.their_state not in LAST:
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                if self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                    await self._send_error_response(error.error_status_hint)
                await self.send(Closed())
                return
            if isinstance(event, h11.Request):
                await self.send(Updated(idle=False))
                await self._create_stream(event)
            elif self.stream is None or event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return  # without a request that is on nobody would wake us
            elif event is h11.PAUSED:
                await self.can_read.clear()
                await self.can_read.wait()
                if self.connection.our_state is not h11.IDLE:
                    return  # the connection ended with the answer
            elif isinstance(event, h11.Data):
                await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))

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
        await connection._close()  # noqa: SLF001 (in this task: what Hypercorn shields outlives its connection)


def install() -> Connections:
    """Have Hypercorn's connections of this process counted, ended, and of HTTP/1.1."""
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
            except asyncio.CancelledError:
                log.event("connection-cut", logging.WARNING)  # the drain is over
            except Exception:  # noqa: BLE001 (one that got out would end the drain of all others)
                log.LOGGER.exception("connection-bug", extra={"event": "connection-bug"})
            finally:
                connections.give(address)

        async def _close(self) -> None:
            late = self.loop.call_later(CLOSE_S, self.writer.transport.abort)
            try:
                with contextlib.suppress(OSError):  # also the TimeoutError of one that the kernel gave up
                    await super()._close()
            finally:
                late.cancel()

        async def _read_data(self) -> None:
            await super()._read_data()
            self.idle_task.end()  # it read to the end: nothing to wait for

        async def protocol_send(self, event: Event) -> None:
            if isinstance(event, RawData) and not event.data:
                return  # the end of a body of known length has no bytes
            try:
                await super().protocol_send(event)
            except OSError:
                await self.protocol.handle(Closed())
            if isinstance(event, Updated) and event.idle and self.reader.at_eof():
                self.idle_task.end()

    hypercorn_run.TCPServer = Connection  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = Http11  # type: ignore[attr-defined]
    return connections
