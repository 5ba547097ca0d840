"""Which subscriptions are suspended, as the receiving side sees it: nothing is queued for them, and the record says so."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway.events import Event
from gateway.match import Considered, Match
from gateway.store import Store

SUSPENDED: Final = "suspended"
FRESH_S: Final = 1.0

Found = tuple[Event, tuple[Match, ...], tuple[Considered, ...]]


class Suspensions:
    """The store's suspensions, at most a second old; concurrent deliveries ask once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Mapping[str, str] = {}
        self._at = float("-inf")
        self._lock = asyncio.Lock()

    async def current(self) -> Mapping[str, str]:
        """Return digest to reason. Raises Unavailable where the store does not answer."""
        if time.monotonic() - self._at > FRESH_S:
            began = time.monotonic()
            async with self._lock:
                if self._at < began - FRESH_S:  # nobody asked while we waited
                    self._known = await self._store.suspended()
                    self._at = time.monotonic()
        return self._known


def without_suspended(found: Sequence[Found], suspended: Mapping[str, str]) -> list[Found]:
    """Take the matches of suspended subscriptions out; what was considered names them with the test `suspended`."""
    if not suspended:
        return list(found)
    return [
        (
            event,
            tuple(match for match in matches if match.enrolled.subscription.digest not in suspended),
            tuple(
                replace(one, matched=False, test=SUSPENDED) if one.matched and one.digest in suspended else one
                for one in considered
            ),
        )
        for event, matches, considered in found
    ]
