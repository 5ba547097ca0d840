"""What was queued or sent for a superseded subscription goes on under the one that took its place.

Each dispatch is carried over at most once (its id is the dedupe key), whole or not at all: every event has to be within the
new subscription, so that nothing is widened. A dispatch whose run was admitted stays as it is, and no run is admitted to one
that was carried over.
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final, Literal

import orjson

from gateway import envelope, log, provenance
from gateway.envelope import EnvelopeEvent
from gateway.store import Admit, AdmitItem, Batch, Dispatch, QueueEntry, Store
from gateway.structs import Value
from gateway.subscriptions import Enrolled
from gateway.suspension import SUPERSEDED

KNOWN_S: Final = 40 * 86_400  # longer than any dispatch is known

ROLLOVER: Final = "rollover"
LOOKED_AT: Final = 200  # entries of a lane that one batch may merge, as `seal.lua` does
FROM: Final = 20  # deliveries that a record names; equal events merge, so a batch may have more

Carried = Literal["carried", "unfit", "wait"]


class _Left(Value):
    """What a superseded subscription left: a dispatch with its events and the deliveries that they came from."""

    source: str
    dispatch: str
    digest: str
    trigger: str
    events: Sequence[str]
    deliveries: Sequence[str]


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
        left = _Left(batch.source, batch.dispatch, batch.digest, batch.trigger, batch.events, batch.deliveries)
        return await self._queue(left, new)

    async def refused(self, old: Enrolled, dispatch: str) -> None:
        """Queue the events of a dispatch anew that was sent, but whose run was refused: of the new workflow, or too late."""
        if (await self._store.suspended()).get(old.subscription.digest) != SUPERSEDED:
            return
        known, new = await self._store.dispatch(dispatch), await self._successor(old)
        if new is None or known is None or known.digest != old.subscription.digest:
            return
        if known.status != "sent" or known.run is not None:
            return  # what is not settled is carried over by the dispatcher
        found: list[str] = []
        for delivery in known.deliveries:
            entries = await self._store.projected(known.source, delivery)
            found += [entry.event for entry in entries if entry.lane == known.lane]
        if found:
            events = await asyncio.to_thread(_own, known, found)
            left = _Left(known.source, dispatch, known.digest, known.trigger, events, known.deliveries)
            await self._queue(left, new)

    async def _successor(self, old: Enrolled) -> Enrolled | None:
        return successor(old, self._enrolled(), await self._store.suspended())

    async def _queue(self, left: _Left, new: Enrolled) -> Carried:
        if not grants(new, left.trigger, left.events):
            return "unfit"
        digest, now = new.subscription.digest, self._clock()
        entries = tuple(QueueEntry(f"{digest}:{left.trigger}", event, left.dispatch) for event in left.events)
        item = AdmitItem((f"rollover:{left.dispatch}",), KNOWN_S, None, entries)
        record = _record(left, digest, now)
        admitted = await self._store.admit(Admit(left.source, left.dispatch, (item,), record, now, left.dispatch))
        # Each refused run comes here, and the store takes the repeat of what it queued already for success. What is not
        # queued has a run.
        if admitted.items[0].status != "queued":
            return "carried"
        if await self._store.remember_first(f"rolled-over:{left.dispatch}", digest, KNOWN_S):
            events = len(left.events)
            log.event("rolled-over", dispatch=left.dispatch, subscription=digest, source=left.source, events=events)
        self._wake(left.source)
        return "carried"


def _own(known: Dispatch, found: Sequence[str]) -> Sequence[str]:
    """Return the events of a dispatch among all that its deliveries queued in its lane: a large one filled others too.

    A batch is a stretch of its lane, and the digest of what was sent tells which. Where no stretch has it (a record was
    trimmed), all go on: rather twice than never.
    """
    events = tuple(dict.fromkeys(found))
    if len(events) <= known.count:
        return events
    read = {text: EnvelopeEvent.from_queue(text, known.trigger).to_json() for text in events}
    for start in range(len(found)):
        texts = tuple(dict.fromkeys(found[start : start + LOOKED_AT]))[: known.count]
        payload = envelope.client_payload(known.digest, known.id, [read[text] for text in texts])
        if envelope.envelope_digest(payload) == known.envelope_digest:
            return texts
    return events


def successor(old: Enrolled, enrolled: Iterable[Enrolled], suspended: Container[str]) -> Enrolled | None:
    """Return the one active enrollment of the same workflow, connector and source."""
    found = [
        one
        for one in enrolled
        if _place(one) == _place(old)
        and one.subscription.digest != old.subscription.digest
        and one.subscription.digest not in suspended
    ]
    return found[0] if len(found) == 1 else None


def grants(new: Enrolled, trigger: str, events: Iterable[str]) -> bool:
    """Whether every queued event of a trigger is within a subscription."""
    try:
        for event in events:
            provenance.check_event(EnvelopeEvent.from_queue(event, trigger).to_json(), new.subscription)
    except ValueError:
        return False
    return True


def _place(one: Enrolled) -> tuple[str, str, str, str]:
    subscription = one.subscription
    return subscription.repository.lower(), subscription.workflow, subscription.connector, one.source


def _record(left: _Left, digest: str, now: float) -> str:
    """Return a record that is found by the superseded dispatch's id, and says where it came from."""
    considered = {"digest": digest, "trigger": left.trigger, "matched": True, "test": None, "pointer": None}
    kept: dict[str, Any] = {
        "id": left.dispatch,
        "source": left.source,
        "received_at": round(now, 3),
        "outcome": "forwarded",
        "reason": ROLLOVER,
        "subscriptions": [considered],
        "carried_from": {"subscription": left.digest, "deliveries": left.deliveries[:FROM]},
    }
    return orjson.dumps(kept).decode()
