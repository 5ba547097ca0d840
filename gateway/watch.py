"""`Watch`: told of every boundary decision. It counts, adds to the flow of the last hours, and traces; it decides nothing.

The calls cost microseconds and never wait: what goes to the store goes there every few seconds, by a task of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from gateway.admission import Run
from gateway.delivery import Outcome
from gateway.errors import Unavailable
from gateway.health import UNPROVEN
from gateway.metrics import Gauges, Metrics
from gateway.store import Batch, Store
from gateway.store.records import UNPROVEN_HANDSHAKE
from gateway.tracing import Traces

FLUSH_S = 2.0


class Watch:
    """One process's metrics, flow and traces."""

    def __init__(self, traces: Traces | None = None, *, worker: str = "0", group: str | None = None) -> None:
        self.metrics = Metrics(worker)
        self.traces = traces
        self._worker, self._group = worker, group  # of several processes on one machine, one is scraped for all
        self._flow: dict[str, dict[str, tuple[int, float]]] = {}
        self._dropped = 0

    def delivery(
        self,
        source: str,
        delivery: str,
        outcome: Outcome,
        reason: str | None,
        *,
        key: str | None,
        triggers: Iterable[str],
        began: float,
        status: int,
    ) -> None:
        """A delivery was judged and is about to be answered; `key` is the position of the secret that proved it."""
        now = time.time()
        self.metrics.delivery(source, outcome, now - began)
        if outcome is Outcome.REJECTED:
            self.metrics.refused(source, reason or "unknown")
        elif outcome is Outcome.UNAVAILABLE:
            self.metrics.unavailable(source, reason or "unknown")
        if key:
            self.metrics.proven(source, _position(key))
        self.metrics.matched(source, triggers)
        self._add(source, UNPROVEN if reason == UNPROVEN_HANDSHAKE else outcome, now)
        if self.traces is not None:
            failed = outcome in {Outcome.REJECTED, Outcome.UNAVAILABLE}
            facts = {"source": source, "delivery": delivery, "outcome": outcome, "reason": reason, "status": status}
            self.traces.received(delivery, began, now, failed=failed, **facts)

    def settled(
        self, batch: Batch, result: str, reason: str, *, status: int | None, took_s: float, until: float | None = None
    ) -> None:
        """A batch had its turn: done, retry, park (until when), dead or hold."""
        now = time.time()
        if until is not None:
            self.metrics.parked(until - now)
        self.metrics.dispatched(result, reason, took_s, sent=status is not None)
        if result in {"done", "dead"}:
            self._add(batch.source, "sent" if result == "done" else "dead", now)
        if self.traces is not None and result != "hold":
            facts = {"source": batch.source, "dispatch": batch.dispatch, "result": result, "reason": reason}
            began, events = now - took_s, len(batch.events)
            failed = result != "done"
            self.traces.dispatched(batch.deliveries, began, now, failed=failed, status=status, events=events, **facts)

    def admission(self, run: Run | None, reason: str, began: float) -> None:
        """A run asked for admission; None where it was refused."""
        result = "refused" if run is None else "admitted"
        self.metrics.admission(result, reason)
        if self.traces is not None and run is not None and run.delivery is not None:
            facts = {"dispatch": run.dispatch, "result": result, "run": run.run_id}
            self.traces.admitted(run.delivery, began, time.time(), **facts)

    def _add(self, source: str, kind: str, at: float) -> None:
        kinds = self._flow.setdefault(source, {})
        kinds[kind] = (kinds.get(kind, (0, 0.0))[0] + 1, at)

    async def flush(self, store: Store) -> None:
        """Add what was counted to the store's flow; what it does not take is kept for the next time."""
        self.metrics.dropped(store.dropped - self._dropped)
        self._dropped = store.dropped
        flow, self._flow = self._flow, {}
        for source, seen in flow.items():
            try:
                await store.add_flow(source, seen, time.time())
            except Unavailable:
                for kind, (count, at) in seen.items():
                    before = self._flow.setdefault(source, {}).get(kind, (0, 0.0))
                    self._flow[source][kind] = (before[0] + count, max(before[1], at))

        if self._group is not None:
            with suppress(Unavailable):  # the next flush brings it
                await store.keep_metrics(self._group, self._worker, self.metrics.export())

    async def present(self, store: Store, gauges: Gauges) -> bytes:
        """Return the metrics page: this process's counters, those of the others on this machine, and the gauges."""
        others: dict[str, str] = {}
        if self._group is not None:
            with suppress(Unavailable):
                others = await store.metrics_of(self._group)
        others.pop(self._worker, None)
        return self.metrics.present(gauges, others)

    @asynccontextmanager
    async def running(self, store: Store) -> AsyncIterator[None]:
        """Flush every few seconds inside the context, and a last time at its end."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(FLUSH_S)
                await self.flush(store)

        task = asyncio.create_task(loop())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.flush(store)
            if self.traces is not None:
                await asyncio.to_thread(self.traces.close)


def _position(key: str) -> str:
    """The place of a secret in its list: keys are `0` or `SUBSCRIPTION/0`. A JWT's key id is its provider's text: no label."""
    place = key.rpartition("/")[2]
    return place if place.isdecimal() and len(place) <= 2 else "provider"
