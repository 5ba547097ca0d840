"""One run at a time changes a source's hooks: two that look at once would both find none and make two.

A fact in the store with a short life, kept up while its owner works: a run that is killed blocks the next for seconds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from gateway.errors import Unavailable

TURN_S = 15


class Turns(Protocol):
    """What this wants of a store."""

    async def remember_first(self, name: str, value: str, ttl_s: int) -> bool:
        """Keep a fact only where none is kept."""
        ...

    async def remember(self, name: str, value: str, ttl_s: int) -> None:
        """Keep a fact."""
        ...

    async def recall(self, name: str) -> str | None:
        """Return a remembered fact."""
        ...

    async def forget(self, name: str) -> None:
        """Forget a fact."""
        ...


@asynccontextmanager
async def alone(store: Turns, source: str, me: str) -> AsyncIterator[None]:
    """Have a source's hooks for oneself. Raises Unavailable `another-run-is-wiring`."""
    name = f"wiring:{source}"
    if not await store.remember_first(name, me, TURN_S):
        raise Unavailable("another-run-is-wiring", TURN_S)
    keeping = asyncio.create_task(_keep(store, name, me))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with contextlib.suppress(Unavailable):  # it ends by itself
            if await store.recall(name) == me:
                await store.forget(name)


async def _keep(store: Turns, name: str, me: str) -> None:
    while True:
        await asyncio.sleep(TURN_S / 3)
        with contextlib.suppress(Unavailable):  # the next time
            await store.remember(name, me, TURN_S)
