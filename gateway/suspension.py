"""Which subscriptions are suspended: nothing is queued or sent for them, and the record says so. Why is a slug in the store."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from gateway.events import Event
from gateway.match import Considered, Match
from gateway.store import Store
from gateway.structs import replace

SUSPENDED: Final = "suspended"
FRESH_S: Final = 1.0

PENDING: Final = "workflow-pending"
"""It was enrolled before its workflow was merged."""
SUPERSEDED: Final = "workflow-superseded"
"""Another digest of the same workflow took its place."""

KEPT_S: Final = 30 * 86_400
"""How long a revocation is known: longer than any process goes on without reading its folder."""

State = Literal["active", "suspended", "mismatched"]

Found = tuple[Event, tuple[Match, ...], tuple[Considered, ...]]


def state_of(reason: str | None) -> State:
    """Return the state that a suspension's reason means: what waits for its workflow, or gave way to another, is mismatched."""
    if reason is None:
        return "active"
    return "mismatched" if reason in (PENDING, SUPERSEDED) else "suspended"


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
    """Take the matches of suspended subscriptions out; what was considered names them with the test `suspended`.

    A superseded one beside a match is not named: the event went where it belongs.
    """
    if not suspended:
        return list(found)
    return [_without(*one, suspended) for one in found]


def _without(
    event: Event, matches: tuple[Match, ...], considered: tuple[Considered, ...], suspended: Mapping[str, str]
) -> Found:
    left = tuple(match for match in matches if match.enrolled.subscription.digest not in suspended)
    told = tuple(
        replace(one, matched=False, test=SUSPENDED) if one.matched and one.digest in suspended else one
        for one in considered
        if not (left and one.matched and suspended.get(one.digest) == SUPERSEDED)
    )
    return event, left, told
