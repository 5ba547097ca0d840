"""What was queued or sent for a superseded subscription goes on under the one that took its place.

Each dispatch is carried over at most once (its id is the dedupe key), whole or not at all: every event has to be within the
new subscription, so that nothing is widened. A dispatch whose run was admitted stays as it is.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import orjson

from gateway import log, provenance
from gateway.envelope import EnvelopeEvent
from gateway.store import Admit, AdmitItem, Batch, QueueEntry, Store
from gateway.subscriptions import Enrolled
from gateway.suspension import SUPERSEDED

KNOWN_S: Final = 40 * 86_400  # longer than any dispatch is known

Carried = Literal["carried", "unfit", "wait"]


class Rollover:
    """Carries batches and refused dispatches over, for one process."""

    def __init__(
        self,
        store: Store,
        enrolled: Callable[[], Sequence[Enrolled]],
        wake: Callable[[str], None] = lambda _source: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._enrolled, self._wake, self._clock = store, enrolled, wake, clock

    async def carry(self, batch: Batch, old: Enrolled) -> Carried:
        """Queue a leased batch's events anew. `wait`: nothing has taken its place. `unfit`: what did does not grant them."""
        new = await self._successor(old)
        if new is None:
            return "wait"
        known = await self._store.dispatch(batch.dispatch)
        if known is not None and known.run is not None:
            return "carried"
        return await self._queue(batch.source, batch.dispatch, batch.trigger, batch.events, new)

    async def refused(self, old: Enrolled, dispatch: str) -> None:
        """Queue the events of a dispatch anew that was sent, but whose run is of the new workflow and was refused."""
        if (await self._store.suspended()).get(old.subscription.digest) != SUPERSEDED:
            return
        known, new = await self._store.dispatch(dispatch), await self._successor(old)
        if new is None or known is None or known.digest != old.subscription.digest:
            return
        if known.status != "sent" or known.run is not None:
            return  # what is not settled is carried over by the dispatcher
        events: dict[str, None] = {}
        for delivery in known.deliveries:
            entries = await self._store.projected(known.source, delivery)
            events |= {entry.event: None for entry in entries if entry.lane == known.lane}
        if events:
            await self._queue(known.source, dispatch, known.trigger, tuple(events), new)

    async def _successor(self, old: Enrolled) -> Enrolled | None:
        """Return the one active enrollment of the same workflow, connector and source."""
        suspended = await self._store.suspended()
        found = [
            one
            for one in self._enrolled()
            if _place(one) == _place(old) and one.subscription.digest not in {old.subscription.digest, *suspended}
        ]
        return found[0] if len(found) == 1 else None

    async def _queue(self, source: str, dispatch: str, trigger: str, events: Sequence[str], new: Enrolled) -> Carried:
        try:
            for event in events:
                provenance.check_event(EnvelopeEvent.from_queue(event, trigger).to_json(), new.subscription)
        except ValueError:
            return "unfit"
        digest, now = new.subscription.digest, self._clock()
        entries = tuple(QueueEntry(f"{digest}:{trigger}", event, dispatch) for event in events)
        item = AdmitItem((f"rollover:{dispatch}",), KNOWN_S, None, entries)
        admitted = await self._store.admit(
            Admit(source, dispatch, (item,), _record(source, dispatch, digest, trigger, now), now)
        )
        if admitted.items[0].status == "queued":
            log.event("rolled-over", dispatch=dispatch, subscription=digest, source=source, events=len(events))
            self._wake(source)
        return "carried"


def _place(one: Enrolled) -> tuple[str, str, str, str]:
    subscription = one.subscription
    return subscription.repository.lower(), subscription.workflow, subscription.connector, one.source


def _record(source: str, dispatch: str, digest: str, trigger: str, now: float) -> str:
    """Return a record that is found by the superseded dispatch's id."""
    considered = {"digest": digest, "trigger": trigger, "matched": True, "test": None, "pointer": None}
    kept: dict[str, Any] = {
        "id": dispatch,
        "source": source,
        "received_at": round(now, 3),
        "outcome": "forwarded",
        "reason": "rollover",
        "subscriptions": [considered],
    }
    return orjson.dumps(kept).decode()
