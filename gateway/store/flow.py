"""The flow of the last hours: how many of each kind in each stretch of time, and when each kind was last seen.

Processes add their counts every few seconds, so one that is killed loses the last of them; nothing is decided by these
numbers. The times of the last ones outlive the delivery records: "no delivery for three weeks" can still be said.
"""

from collections.abc import Mapping
from typing import Any

from gateway.store.client import Client, prefix
from gateway.structs import Value

METRICS_S = 60
BUCKET_S = 600
BUCKETS = 144  # 24 hours
FLOW_S = 180 * 86_400


class Flow(Value):
    """Counts by kind, oldest stretch first and the current one last, and the last time of each kind (Unix seconds)."""

    counts: Mapping[str, tuple[int, ...]]
    last: Mapping[str, float]

    def total(self, kind: str, buckets: int = BUCKETS) -> int:
        """Return how many of a kind were seen in the last `buckets` stretches, the current one included."""
        return sum(self.counts.get(kind, ())[-buckets:])


class Flows:
    """One hash a source."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def add_flow(self, source: str, seen: Mapping[str, tuple[int, float]], now: float) -> None:
        """Add `seen` (kind to count and time of the last) to the current stretch."""
        bucket = int(now // BUCKET_S)
        triples = [part for kind, (count, at) in seen.items() for part in (kind, count, int(at * 1000))]
        await self._client.run("flow", prefix(source), bucket, bucket - BUCKETS + 1, FLOW_S, *triples)

    async def keep_metrics(self, group: str, worker: str, text: str) -> None:
        """Keep one process's metrics page for the one of its machine that is scraped."""

        async def work(redis: Any) -> None:
            await redis.set(f"gw:metrics:{{{group}}}:{worker}", text, ex=METRICS_S)
            await redis.sadd(f"gw:metrics:{{{group}}}", worker)
            await redis.expire(f"gw:metrics:{{{group}}}", METRICS_S)

        await self._client.call(work)

    async def metrics_of(self, group: str) -> dict[str, str]:
        """Return the pages of a machine's processes; one that ended is gone within a minute."""

        async def work(redis: Any) -> dict[str, str]:
            workers = sorted(await redis.smembers(f"gw:metrics:{{{group}}}"))
            pages = await redis.mget([f"gw:metrics:{{{group}}}:{worker}" for worker in workers]) if workers else []
            return {worker: page for worker, page in zip(workers, pages, strict=True) if page}

        return await self._client.call(work)

    async def flow(self, source: str, now: float) -> Flow:
        """Return the last 24 hours of a source."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(f"{prefix(source)}flow")
            return found

        first = int(now // BUCKET_S) - BUCKETS + 1
        counts: dict[str, list[int]] = {}
        last: dict[str, float] = {}
        for field, value in (await self._client.call(work)).items():
            head, _, kind = field.partition(" ")
            if head == "last":
                last[kind] = int(value) / 1000
            elif kind and 0 <= (place := int(head) - first) < BUCKETS:
                counts.setdefault(kind, [0] * BUCKETS)[place] = int(value)
        return Flow({kind: tuple(row) for kind, row in counts.items()}, last)
