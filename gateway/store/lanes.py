"""What waits and why: the lanes of a source with the batch at the head of each."""

from typing import Any

from gateway.store.client import Client, prefix
from gateway.store.queue import read_dispatch
from gateway.store.types import Dispatch
from gateway.structs import Value


class Lane(Value):
    """One subscription's trigger with work: when its next turn is due, what waits, the batch at its head (None: not sealed)."""

    source: str
    digest: str
    trigger: str
    due: float
    waiting: int
    sealed: int
    head: Dispatch | None


class Lanes:
    """Reads lanes; changes nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def lanes(self, source: str, limit: int = 200) -> list[Lane]:
        """Return up to `limit` lanes with work, the one that is due first before the others."""
        start = prefix(source)

        async def named(redis: Any) -> list[tuple[str, float]]:
            found: list[tuple[str, float]] = await redis.zrange(f"{start}ready", 0, limit - 1, withscores=True)
            return found

        async def sizes(redis: Any) -> list[Any]:
            pipe = redis.pipeline(transaction=False)
            for lane, _ in lanes:
                pipe.llen(f"{start}lane:{lane}")
                pipe.llen(f"{start}sealed:{lane}")
                pipe.lindex(f"{start}sealed:{lane}", 0)
            found: list[Any] = await pipe.execute()
            return found

        async def rows(redis: Any) -> list[dict[str, str]]:
            pipe = redis.pipeline(transaction=False)
            for ident in heads:
                pipe.hgetall(f"{start}dispatch:{ident}")
            found: list[dict[str, str]] = await pipe.execute()
            return found

        lanes = await self._client.call(named)
        counted = await self._client.call(sizes) if lanes else []
        heads = [ident for ident in counted[2::3] if ident]
        read = await self._client.call(rows) if heads else []
        known = {ident: read_dispatch(ident, source, row) for ident, row in zip(heads, read, strict=True) if row}
        return [
            Lane(source, *_parts(lane), due / 1000, waiting, sealed, known.get(head))
            for (lane, due), waiting, sealed, head in zip(
                lanes, counted[::3], counted[1::3], counted[2::3], strict=True
            )
        ]


def _parts(lane: str) -> tuple[str, str]:
    digest, _, trigger = lane.rpartition(":")
    return digest, trigger
