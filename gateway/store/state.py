"""What all processes share beside the queue: parked installations, suspended subscriptions, remembered facts."""

import time
from collections.abc import Collection
from typing import Any, Final

from gateway.store.client import Client

PARK_KEY = "gw:park"
SUSPENDED_KEY = "gw:suspended"
REVOKED: Final = "revoked"
"""The reason of what an operator revoked: processes that have not read their folder since know it from here."""
_MARK = "revoked:"  # before the digest, a field beside that of a suspension: what settles one never touches the other


class SharedState:
    """Small shared facts under keys without a source."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def park(self, installation: int, until: float, reason: str, now: float | None = None) -> None:
        """Send nothing through this installation before `until`, in any process. A later end stands."""
        at = time.time() if now is None else now
        args = (str(installation), int(until * 1000), reason, int(at * 1000))
        await self._client.run("park", PARK_KEY, *args)

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
        """Lift a suspension. False: there was none. What was revoked stays so."""

        async def work(redis: Any) -> bool:
            return bool(await redis.hdel(SUSPENDED_KEY, digest))

        return await self._client.call(work)

    async def suspended(self) -> dict[str, str]:
        """Return the digests of suspended and of revoked subscriptions, each with its reason."""
        found, marks = await self._both()
        return found | dict.fromkeys(marks, REVOKED)

    async def revoke(self, digest: str, now: float | None = None) -> bool:
        """Mark a subscription as revoked in all processes, until `enroll_anew` or `forget_revoked`. True: it was active."""
        at = time.time() if now is None else now

        async def work(redis: Any) -> bool:
            # The mark comes first: between the two it is suspended, never active.
            marked = await redis.hset(SUSPENDED_KEY, _MARK + digest, int(at))
            suspended = await redis.hdel(SUSPENDED_KEY, digest)
            return bool(marked) and not suspended

        return await self._client.call(work)

    async def enroll_anew(self, digest: str) -> None:
        """Make of a revoked subscription one that is suspended, as `revoked`: the enrollment that follows may lift that.

        A revocation that comes while it does is another mark, which it does not lift.
        """

        async def work(redis: Any) -> None:
            if await redis.hexists(SUSPENDED_KEY, _MARK + digest):
                await redis.hset(SUSPENDED_KEY, digest, REVOKED)
                await redis.hdel(SUSPENDED_KEY, _MARK + digest)

        await self._client.call(work)

    async def forget_revoked(
        self, before: float, keep: Collection[str] = (), only: Collection[str] | None = None
    ) -> None:
        """Forget revocations until `before`: of all subscriptions or of `only` some, in any case not of those to `keep`."""
        _, marks = await self._both()
        wanted = set(marks if only is None else only) - set(keep)
        old = [digest for digest, at in marks.items() if at <= before and digest in wanted]

        async def work(redis: Any) -> None:
            # what was under way at its revocation may have suspended it since: that goes first
            await redis.hdel(SUSPENDED_KEY, *old, *(_MARK + digest for digest in old))

        if old:
            await self._client.call(work)

    async def _both(self) -> tuple[dict[str, str], dict[str, int]]:
        """Return the reasons of what is suspended, and when what is revoked was."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(SUSPENDED_KEY)
            return found

        found = await self._client.call(work)
        marks = [field for field in found if field.startswith(_MARK)]
        return found, {field.removeprefix(_MARK): int(found.pop(field)) for field in marks}

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
