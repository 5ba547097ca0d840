"""The connections of this process: ended with their peers, and never so many that no descriptor is left for anything else.

Hypercorn 0.18 keeps a connection whose peer is gone until its keep-alive runs out: a sender that opens one a delivery would
leave all of them behind for a minute (https://github.com/pgjones/hypercorn/issues/241). And it takes what the kernel has for it; a process without a descriptor can read no
file and reach no store.
"""

import asyncio
import logging
import resource
from collections import Counter
from typing import Any

from hypercorn.asyncio import run as hypercorn_run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, Updated

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


def install() -> Connections:
    """Have Hypercorn's connections of this process counted and ended."""
    most = raise_limit()
    connections = Connections(max(most - RESERVED, most // 2))

    class Connection(TCPServer):
        """Hypercorn's, with an end."""

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
            await self.idle_task.stop()  # it read to the end: nothing to wait for

        async def protocol_send(self, event: Event) -> None:
            await super().protocol_send(event)
            if isinstance(event, Updated) and event.idle and self.reader.at_eof():
                await self.idle_task.stop()

    hypercorn_run.TCPServer = Connection  # type: ignore[attr-defined]
    return connections
