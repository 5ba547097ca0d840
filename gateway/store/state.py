"""What all processes share beside the queue: parked installations, suspended subscriptions, remembered facts."""

import time
from typing import Any

from gateway.store.client import Client

PARK_KEY = "gw:park"
SUSPENDED_KEY = "gw:suspended"


class SharedState:
    """Small shared facts under keys without a source."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def park(self, installation: int, until: float, reason: str, now: float | None = None) -> None:
        """Send nothing through this installation before `until`, in any process. A later end stands."""
        at = time.time() if now is None else now
        args = (str(installation), int(until * 1000), reason, int(at * 1000))
        await self._client.run("park", PARK_KEY, *args)

    async def unpark(self, installation: int) -> None:
        """Lift a park."""

        async def work(redis: Any) -> None:
            await redis.hdel(PARK_KEY, str(installation))

        await self._client.call(work)

    async def parked(self, now: float | None = None) -> dict[int, float]:
        """Return the parked installations and when each park ends."""
        at = time.time() if now is None else now

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(PARK_KEY)
            return found

        rows = await self._client.call(work)
        ends = {int(installation): int(row.partition(" ")[0]) / 1000 for installation, row in rows.items()}
        return {installation: until for installation, until in ends.items() if until > at}

    async def suspend(self, digest: str, reason: str) -> None:
        """Suspend a subscription in all processes, until `resume`. One field a subscription bounds the key."""

        async def work(redis: Any) -> None:
            await redis.hset(SUSPENDED_KEY, digest, reason)

        await self._client.call(work)

    async def resume(self, digest: str) -> bool:
        """Lift a suspension. False: there was none."""

        async def work(redis: Any) -> bool:
            return bool(await redis.hdel(SUSPENDED_KEY, digest))

        return await self._client.call(work)

    async def suspended(self) -> dict[str, str]:
        """Return the suspended subscriptions' digests, each with its reason."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(SUSPENDED_KEY)
            return found

        return await self._client.call(work)

    async def remember(self, name: str, value: str, ttl_s: int) -> None:
        """Keep a fact (a last known id, a cached branch) for `ttl_s`, for all processes and the next start."""

        async def work(redis: Any) -> None:
            await redis.set(f"gw:fact:{name}", value, ex=ttl_s)

        await self._client.call(work)

    async def remember_first(self, name: str, value: str, ttl_s: int) -> bool:
        """Keep a fact only where none is kept. False: there was one; `recall` has it."""

        async def work(redis: Any) -> bool:
            return bool(await redis.set(f"gw:fact:{name}", value, ex=ttl_s, nx=True))

        return await self._client.call(work)

    async def recall(self, name: str) -> str | None:
        """Return a remembered fact."""

        async def work(redis: Any) -> str | None:
            found: str | None = await redis.get(f"gw:fact:{name}")
            return found

        return await self._client.call(work)

    async def forget(self, name: str) -> None:
        """Forget a fact."""

        async def work(redis: Any) -> None:
            await redis.delete(f"gw:fact:{name}")

        await self._client.call(work)
