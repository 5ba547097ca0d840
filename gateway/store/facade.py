"""`Store`: the one thing that knows a key name. Its parts are admission, queue, records, flow and shared state."""

import asyncio
import contextlib
from typing import Self

from gateway.errors import ConfigError, Problem, Unavailable
from gateway.store.admission import GroupCommit
from gateway.store.client import Client, bounded
from gateway.store.connect import client_for
from gateway.store.flow import Flows
from gateway.store.lanes import Lanes
from gateway.store.queue import Queue
from gateway.store.records import Records
from gateway.store.state import SharedState
from gateway.store.trail import Trail
from gateway.store.types import Admit, Admitted, Limits

NO_WAIT = (
    "cannot be kept on a Cluster: a slot that moves between the write and the wait would be counted on another node",
    "remove it, or use redis+sentinel:// with replicas",
)


class Store(Queue, Records, SharedState, Trail, Flows, Lanes):
    """The durable store. Every method that asks the server takes two seconds at most for each exchange, else raises Unavailable.

    After an Unavailable nothing has happened or all of it has; asking again is always right. Connections are made anew
    as the server comes back.
    """

    def __init__(self, client: Client, limits: Limits) -> None:
        Queue.__init__(self, client, limits)
        Records.__init__(self, client, limits)
        self.client = client
        self.queued = asyncio.Event()
        self._group = GroupCommit(client, limits, self.queued)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        file: str = "gateway.toml",
        relaxed: bool = False,
        wait_replicas: int = 0,
        limits: Limits | None = None,
        require: bool = False,
    ) -> Self:
        """Open the store at `url`. ConfigError: the address, the schema version or the durability is not acceptable.

        Where nobody answers the store opens all the same and is checked at the first exchange, unless `require`.
        """
        if wait_replicas and url.startswith("redis+cluster:"):
            raise ConfigError([Problem(file, "store.wait_replicas", *NO_WAIT)])
        client = Client(client_for(url, file), file=file, relaxed=relaxed, wait_replicas=wait_replicas)
        try:
            with contextlib.nullcontext() if require else contextlib.suppress(Unavailable):
                await client.check()
        except BaseException:
            await client.close()
            raise
        return cls(client, limits or Limits())

    async def close(self) -> None:
        """Let calls in flight end, write the last records, close the connections."""
        await self._group.close()
        await self._drain()
        await self.client.close()

    def clock(self) -> float:
        """Return the time by which what is due is judged: the store's, whatever this machine's clock says."""
        return self.client.clock()

    async def ping(self) -> None:
        """Return when the server answers and is fit to use, else raise Unavailable."""
        await self.client.call(lambda redis: redis.ping())

    async def admit(self, admit: Admit) -> Admitted:
        """Dedupe and enqueue a whole delivery and write its record, in one step; concurrent ones share a round trip."""
        if not self.knows(admit.source):
            await bounded(lambda: self.know(admit.source))
        return await self._group.admit(admit)
