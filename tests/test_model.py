"""A model of admit, seal and settle: two receivers, two dispatchers, and a crash between any two commands.

Hypothesis chooses the interleaving; the store is real. After every step the auditor looks at all that was accepted and at
the store's own structure; at the end a healthy dispatcher must be able to send what is left, and nothing may remain that
is kept for ever. A crash is an answer that nobody reads: the script ran, its caller forgot everything.
"""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from gateway.store import Admit, AdmitItem, Batch, Limits, QueueEntry, Store
from tests import snapshots
from tests.auditor import Dispatched, History, Posted, audit, structure
from tests.valkey import PrivateValkey

SOURCE = "s"
DIGEST = "sha256:" + "d" * 64
LANES = (f"{DIGEST}:opened", f"{DIGEST}:closed")
LEASE_S = 30.0

who = st.integers(0, 1)
crash = st.booleans()
numbers = st.integers(0, 11)


@dataclass
class Held:
    """A batch in a dispatcher's memory: `started` says that it may be sent, `tried` that it was."""

    batch: Batch
    started: bool = False
    tried: bool = False


@dataclass
class Kept:
    """What the world outside of the store knows."""

    posted: dict[str, Posted] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)
    taken: list[Dispatched] = field(default_factory=list)
    given_up: list[Dispatched] = field(default_factory=list)
    admitted: dict[str, str] = field(default_factory=dict)


class Model(RuleBasedStateMachine):
    server: PrivateValkey

    def __init__(self) -> None:
        super().__init__()
        self.client: Redis = self.server.client()
        self.client.flushall()
        self.runner = asyncio.Runner()
        self.stores = [self.runner.run(self._open()) for _ in range(2)]
        self.kept = Kept()
        self.held: list[list[Held]] = [[], []]
        self.now = 1_790_000_000.0
        self.count = 0

    async def _open(self) -> Store:
        return await Store.open(self.server.url, require=True, limits=Limits(batch_events=3))

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            for store in self.stores:
                self.runner.run(store.close())
            self.runner.close()
            self.client.close()

    def _tick(self) -> float:
        self.now += 0.01
        return self.now

    # -- receivers

    def _admit(self, number: int, delivery: str) -> Admit:
        event = f'{{"n":{number}}}'
        entry = QueueEntry(LANES[number % 2], event, delivery)
        self.kept.posted.setdefault(event, Posted(event, entry.lane, self._tick(), None))
        item = AdmitItem((f"id:{number}", f"body:{number}"), 3600, None, (entry,))
        record = f'{{"id":"{delivery}","source":"s","received_at":{self.now},"outcome":"forwarded","reason":null}}'
        return Admit(SOURCE, delivery, (item,), record, self.now)

    def _answered(self, number: int, delivery: str, result: Any) -> None:
        event = f'{{"n":{number}}}'
        (item,) = result.items
        assert item.status in {"queued", "duplicate"}
        self.kept.answers.setdefault(event, []).append(delivery if item.status == "queued" else item.first)
        known = self.kept.posted[event]
        if known.answered is None:
            self.kept.posted[event] = Posted(event, known.lane, known.posted, self._tick())

    @rule(receiver=who, number=numbers, dies=crash)
    def deliver(self, receiver: int, number: int, dies: bool) -> None:
        """A provider sends an event, for the first time or again; the receiver may die before it answers."""
        self.count += 1
        delivery = f"d{self.count}"
        result = self.runner.run(self.stores[receiver].admit(self._admit(number, delivery)))
        if not dies:
            self._answered(number, delivery, result)

    @rule(number=numbers)
    def deliver_at_once(self, number: int) -> None:
        """Both receivers get copies of one event at the same time, and one of them asks twice for its own."""
        self.count += 2
        ours = [f"d{self.count - 1}", f"d{self.count}", f"d{self.count}"]
        admits = [self._admit(number, delivery) for delivery in ours]

        async def both() -> list[Any]:
            calls = [self.stores[n % 2].admit(admit) for n, admit in enumerate(admits[:2])]
            return [*await asyncio.gather(*calls), await self.stores[0].admit(admits[2])]

        for delivery, result in zip(ours, self.runner.run(both()), strict=True):
            self._answered(number, delivery, result)

    # -- dispatchers

    @rule(dispatcher=who, limit=st.integers(1, 2), dies=crash)
    def seal(self, dispatcher: int, limit: int, dies: bool) -> None:
        batches = self.runner.run(self.stores[dispatcher].seal(SOURCE, self._tick(), LEASE_S, limit))
        if not dies:
            self.held[dispatcher] += [Held(batch) for batch in batches]

    def _pick(self, data: st.DataObject, *, tried: bool | None = None) -> tuple[int, Held] | None:
        found = [(n, held) for n, mine in enumerate(self.held) for held in mine if tried is None or held.tried == tried]
        return data.draw(st.sampled_from(found)) if found else None

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), dies=crash)
    def start(self, data: st.DataObject, dies: bool) -> None:
        found = self._pick(data)
        assert found is not None
        dispatcher, held = found
        may = self.runner.run(self.stores[dispatcher].started(held.batch, self._tick(), "sha256:e"))
        held.started = may and not dies
        if dies or not may:
            self.held[dispatcher].remove(held)

    @precondition(lambda self: any(held.started for mine in self.held for held in mine))
    @rule(data=st.data(), taken=st.booleans())
    def send(self, data: st.DataObject, taken: bool) -> None:
        """GitHub takes a batch or fails; the dispatcher does not know which of the two, if it dies now."""
        found = [held for mine in self.held for held in mine if held.started]
        held = data.draw(st.sampled_from(found))
        held.tried, held.started = True, False
        if taken:
            self.kept.taken.append(Dispatched(held.batch.dispatch, held.batch.events))

    def _took(self, held: Held) -> bool:
        return any(one.dispatch == held.batch.dispatch for one in self.kept.taken)

    @precondition(lambda self: any(held.tried for mine in self.held for held in mine))
    @rule(data=st.data(), outcome=st.sampled_from(["done", "retry", "dead"]))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        found = self._pick(data, tried=True)
        assert found is not None
        dispatcher, held = found
        store, now = self.stores[dispatcher], self._tick()
        if outcome == "done" and self._took(held):
            self.runner.run(store.done(held.batch, now))
        elif outcome == "dead" and not self._took(held):
            self.runner.run(store.dead(held.batch, "not-found", now))
        else:
            self.runner.run(store.retry(held.batch, now + 1, "server-error", now))
        self.held[dispatcher].remove(held)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), how=st.sampled_from(["release", "renew", "forget"]))
    def put_off(self, data: st.DataObject, how: str) -> None:
        found = self._pick(data)
        assert found is not None
        dispatcher, held = found
        store, now = self.stores[dispatcher], self._tick()
        if how == "renew":
            self.runner.run(store.renew(held.batch, now, LEASE_S))
            return
        if how == "release":
            self.runner.run(store.release(held.batch, now + 0.5, held_s=0.5, status="asked", reason="asked"))
        self.held[dispatcher].remove(held)

    @rule(dispatcher=who)
    def die(self, dispatcher: int) -> None:
        self.held[dispatcher].clear()

    @rule()
    def leases_end(self) -> None:
        """Time passes: leases end by the server's clock, turns come by ours."""
        for key in self.client.scan_iter(match="gw:{s}:lease:*"):
            self.client.delete(key)
        self.now += LEASE_S + 1

    # -- the server and the operator

    @rule()
    def scripts_are_flushed(self) -> None:
        self.client.script_flush()

    @precondition(lambda self: self.count % 7 == 3)
    @rule()
    def the_server_dies(self) -> None:
        self.server.restart()
        for store in self.stores:
            self.runner.run(store.ping())  # the broken connections are noticed; a call after that is the next one

    def _dead(self) -> list[Dispatched]:
        return snapshots.batches(snapshots.take(self.client, SOURCE), "dead")

    @rule(discard=st.booleans())
    def look_at_the_dead(self, discard: bool) -> None:
        found = self._dead()
        ids = [one.dispatch for one in found[:1]]
        if discard:
            self.kept.given_up += found[:1]
            assert self.runner.run(self.stores[0].discard_dead(SOURCE, ids)) == ids
        else:
            assert self.runner.run(self.stores[0].replay_dead(SOURCE, ids, self._tick())) == ids
        assert self.runner.run(self.stores[1].replay_dead(SOURCE, ids, self._tick())) == []

    @precondition(lambda self: self.kept.taken)
    @rule(data=st.data(), run=st.sampled_from(["run-1", "run-2"]))
    def admit_run(self, data: st.DataObject, run: str) -> None:
        """A run that GitHub started asks; whatever happened since, one run gets each dispatch."""
        taken = data.draw(st.sampled_from(self.kept.taken)).dispatch
        self.count += 1
        answer = self.runner.run(
            self.stores[0].admit_run(taken, DIGEST, run, f"j{self.count}", self._tick(), 1_000_000.0)
        )
        first = self.kept.admitted.get(taken)
        assert answer in ({"admitted", "unknown"} if first in (None, run) else {"taken", "unknown"})
        if answer == "admitted":
            self.kept.admitted[taken] = run

    # -- what holds after every step

    @invariant()
    def promises_are_kept(self) -> None:
        snapshot = snapshots.take(self.client, SOURCE)
        assert structure(snapshot) == []
        history = History(
            posted=list(self.kept.posted.values()),
            answers=self.kept.answers,
            taken=self.kept.taken,
            dead=[*snapshots.batches(snapshot, "dead"), *self.kept.given_up],
            sealed=snapshots.batches(snapshot, "queued", "sending", "asked"),
            waiting=snapshots.waiting(snapshot),
        )
        found = [
            one for one in audit(history) if one.kind not in {"twice", "disordered"} or not self._excused(one.what)
        ]
        assert found == []

    def _excused(self, event: str) -> bool:
        """An operator's replay of a dead letter sends it behind what was sent meanwhile."""
        return bool(event) and any(event in one.events for one in self.kept.given_up)

    def _drain(self) -> None:
        """A healthy dispatcher sends what is left; then nothing undelivered remains, and nothing that lives for ever."""
        self.held = [[], []]
        self.leases_end()
        store = self.stores[0]
        for _ in range(200):
            self.now += 1
            batches = self.runner.run(store.seal(SOURCE, self.now, LEASE_S, 50))
            if not batches and not self.client.exists("gw:{s}:ready"):
                break
            for batch in batches:
                assert self.runner.run(store.started(batch, self.now))
                self.kept.taken.append(Dispatched(batch.dispatch, batch.events))
                assert self.runner.run(store.done(batch, self.now))
        self.promises_are_kept()
        snapshot = snapshots.take(self.client, SOURCE)
        assert snapshots.waiting(snapshot) == []
        assert snapshots.batches(snapshot, "queued", "sending", "asked") == []
        assert {key for key, ttl in snapshot.ttl.items() if ttl < 0} == set()


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateValkey]:
    with PrivateValkey(fsync="no") as running:  # a killed process loses nothing that it wrote
        yield running


def test_model(server: PrivateValkey) -> None:
    Model.server = server
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=int(os.environ.get("MODEL_EXAMPLES", "60")),
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
        ),
    )
