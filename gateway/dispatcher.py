"""The loop below the acknowledgement: seal, pace, send, settle.

The rule of this module: a batch that was taken from the store is given back to it, settled or not, or its lease runs out;
either way it is sent again under the same dispatch id. Nothing here can lose one: a process that dies at any instruction
leaves a lease behind, and nothing else. At-least-once, in order within a lane; admission makes one run of it.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import orjson

from gateway import envelope
from gateway.answers import Answer, GitHubAway, GitHubRefusal
from gateway.circuit import Circuit
from gateway.envelope import EnvelopeEvent
from gateway.errors import Unavailable
from gateway.store import Batch, Store
from gateway.subscriptions import Enrolled
from gateway.suspension import SUPERSEDED

LOG = logging.getLogger("gateway")

LEASE_S = 30.0  # renewed while its batch is under way: what a killed process held is sent again this long after
RENEW_S = 10.0
WAIT_S = 45.0  # a batch that waited this long for its turn goes back to the store, so that others get the slot
EXPIRES_S = 86_400.0
BACKOFF_S = 1.0
BACKOFF_MAX_S = 900.0
HOLD_S = 4.0  # a resumed subscription is sent again within 5 s
REREAD_S = 60.0
POLL_MIN_S = 0.2
POLL_MAX_S = 1.0
AWAY_MAX_S = 5.0
FRESH_S = 0.5  # how old what other processes decided may be
COALESCE_S = 0.005  # a burst of admissions wakes the loop once
SHARE = 16  # batches taken from one source before the next has its turn

Outcome = Literal["done", "retry", "park", "dead", "hold"]


class GitHub(Protocol):
    """What the dispatcher wants of a `GitHubApp`."""

    async def repository(self, installation: int, repository: str) -> object:
        """Raise GitHubRefusal or GitHubAway where the repository cannot be read."""
        ...

    async def dispatch(self, installation: int, repository: str, body: bytes) -> Answer:
        """Send one dispatch and classify the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is under way at once.

    A repository has fewer slots than its installation and an installation fewer than all, so that a stuck one leaves room
    for the others. `waiting` batches of one repository may wait for its slots; more go back to the store.
    """

    overall: int = 64
    installation: int = 8
    repository: int = 4
    waiting: int = 16
    taken: int = 512


@dataclass(frozen=True, slots=True)
class Gate:
    """A decision not to send now: `hold` until `until` (the age clock stands still), or `dead`, both with a `reason`.

    The reasons `asked` (hold) and `denied` (dead) also keep the runs of an earlier send out.
    """

    kind: Literal["hold", "dead"]
    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one turn of a batch, for metrics and for whoever has to suspend a subscription.

    `enrolled` is None for a revoked one; `answer` is None where nothing was sent.
    """

    batch: Batch
    enrolled: Enrolled | None
    outcome: Outcome
    reason: str
    answer: Answer | None
    took_s: float


class Dispatcher:
    """Sends what the store holds for `sources` until `stop`.

    `enrolled` finds an enrollment by subscription digest, None where it was revoked. `gate`, asked before each send, may hold
    a batch back or deny it. `observe` is told of every turn. `carry` queues the events of a superseded subscription's batch
    anew where it can. All may be absent; an `ask` enrollment is then always held.
    """

    def __init__(
        self,
        *,
        store: Store,
        github: GitHub,
        enrolled: Callable[[str], Enrolled | None],
        sources: Callable[[], Iterable[str]],
        gate: Callable[[Batch, Enrolled], Awaitable[Gate | None]] | None = None,
        observe: Callable[[Settled], Awaitable[None]] | None = None,
        carry: Callable[[Batch, Enrolled], Awaitable[str]] | None = None,
        clock: Callable[[], float] = time.time,
        limits: Limits | None = None,
        drain_s: float = 15.0,
    ) -> None:
        self._store, self._github = store, github
        self._enrolled, self._sources = enrolled, sources
        self._gate, self._observe, self._carry = gate or _mode_alone, observe, carry
        self._clock = clock
        self._limits = limits or Limits()
        self._drain_s = drain_s
        self.circuit = Circuit()
        self._stopping = False
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ready: dict[str, None] = {}  # sources with something to look for before the next sweep, in order
        self._sweep_at = 0.0
        self._fresh_at = 0.0
        self._idle_s = POLL_MIN_S
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: dict[int, float] = {}
        self._left: set[str] = set()
        self._suspended: dict[str, str] = {}
        self._reread: dict[str, float] = {}  # when the repository of a subscription was last looked for
        self._away = 0  # failed calls of the loop in a row
        self._overall = asyncio.Semaphore(self._limits.overall)
        self._slots: dict[int | str, asyncio.Semaphore] = {}
        self._taken: Counter[int | str] = Counter()

    @property
    def in_flight(self) -> int:
        """The number of batches taken from the store and not yet given back."""
        return len(self._tasks)

    def share(self, processes: int) -> None:
        """Take this process's part of what may be under way at once; before `run`."""
        limits = self._limits
        self._limits = replace(
            limits,
            overall=-(-limits.overall // processes),
            installation=-(-limits.installation // processes),
            repository=-(-limits.repository // processes),
        )
        self._overall = asyncio.Semaphore(self._limits.overall)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def wake(self, source: str | None = None) -> None:
        """Say that something was admitted (to `source`): the loop looks at once instead of at its next poll."""
        if source is None:
            self._sweep_at = 0.0
        else:
            self._ready[source] = None
        self._wake.set()

    def stop(self) -> None:
        """Seal nothing more; `run` returns when what is under way is settled, at the latest after `drain_s`."""
        self._stopping = True
        self._stopped.set()
        self._wake.set()

    async def run(self) -> None:
        """Run until `stop`. A store that is away is waited for; only a bug ends it otherwise."""
        try:
            while not self._stopping:
                self._wake.clear()
                try:
                    pause_s = await self._round()
                except Unavailable as error:
                    await self._store_away(error)
                else:
                    self._store_back()
                    await self._pause(pause_s)
        finally:
            await self._drain()

    async def _round(self) -> float:
        """Give each source with work its turn; return how long to wait for more."""
        sources = await self._next_sources()
        found = False
        for position, source in enumerate(sources):
            room = self._room()
            if room <= 0 or self._stopping:
                # No room: those that had no turn come first in the next round.
                self._ready = {**dict.fromkeys(sources[position:]), **self._ready}
                return POLL_MAX_S
            try:
                batches = await self._store.seal(source, self._clock(), LEASE_S, room)
            except Unavailable:
                self._ready = {**dict.fromkeys(sources[position:]), **self._ready}
                raise
            found = found or bool(batches)
            if len(batches) == room:
                self._ready[source] = None  # there may be more
            for batch in batches:
                self._begin(batch)
        self._idle_s = POLL_MIN_S if found else min(self._idle_s * 1.5, POLL_MAX_S)
        return 0.0 if self._ready and self._room() > 0 else self._idle_s

    async def _next_sources(self) -> list[str]:
        """Return the sources to look at: all of them when a sweep is due, beginning with another one each time."""
        now = asyncio.get_running_loop().time()
        if now >= self._fresh_at:
            self._parked = await self._store.parked(self._clock())
            self._suspended = await self._store.suspended()
            # a source that was taken out of the configuration may have left work, which becomes dead letters
            self._left = await self._store.sources()
            self._fresh_at = now + FRESH_S
        if now < self._sweep_at:
            sources = list(self._ready)
            self._ready.clear()
            return sources
        self._sweep_at = now + self._idle_s
        self._ready.clear()
        sources = list(dict.fromkeys([*self._sources(), *sorted(self._left)]))
        self._turn += 1
        cut = self._turn % len(sources) if sources else 0
        return sources[cut:] + sources[:cut]

    def _room(self) -> int:
        if self.circuit.wide:
            return int(not self._tasks and self.circuit.may_probe(asyncio.get_running_loop().time()))
        return min(SHARE, self._limits.taken - len(self._tasks))

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return
            await asyncio.sleep(COALESCE_S)
        else:
            await asyncio.sleep(0)

    async def _store_away(self, error: Unavailable) -> None:
        """Say so once, then wait, longer each time; being woken does not bring it back."""
        if not self._away:
            _log(logging.ERROR, "store-away", reason=error.reason)
        self._away += 1
        try:
            async with asyncio.timeout(_jitter(min(POLL_MIN_S * 2 ** min(self._away, 10), AWAY_MAX_S))):
                await self._stopped.wait()
        except TimeoutError:
            return

    def _store_back(self) -> None:
        if self._away:
            _log(logging.INFO, "store-back")
            self._away = 0

    async def _drain(self) -> None:
        """Wait for what is under way; what does not settle in time keeps its lease and is sent again after it."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._drain_s)
        for task in late:
            task.cancel()
        if late:
            _log(logging.WARNING, "dispatch-unsettled", batches=len(late))
            await asyncio.wait(late)

    # -- one batch ---------------------------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        task = asyncio.create_task(self._turn_of(batch))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.wake(batch.source)  # its lane may have more, and there is room

        task.add_done_callback(ended)

    async def _turn_of(self, batch: Batch) -> None:
        """Give one leased batch its turn; whatever goes wrong costs this turn alone."""
        began = asyncio.get_running_loop().time()
        turn = _Turn(batch, self._enrolled(batch.digest), began, began + LEASE_S)
        keeper = asyncio.create_task(self._keep_lease(turn))
        try:
            settled = await self._decide(turn)
            if settled is not None:
                _report(settled)
                if self._observe is not None:
                    await self._observe(settled)
        except Unavailable as error:
            # The lease ends by itself, then the batch has another turn.
            _log(
                logging.WARNING, "dispatch-unsettled", source=batch.source, dispatch=batch.dispatch, reason=error.reason
            )
        except Exception:  # a bug must neither end the loop nor stay unseen
            LOG.exception(
                "dispatch-bug", extra={"event": "dispatch-bug", "source": batch.source, "dispatch": batch.dispatch}
            )
        finally:
            keeper.cancel()

    async def _keep_lease(self, turn: "_Turn") -> None:
        """Renew a turn's lease until it is over or lost; a renewal that fails is tried again while the lease runs."""
        loop = asyncio.get_running_loop()
        while loop.time() < turn.ends:
            await asyncio.sleep(RENEW_S)
            try:
                if not await self._store.renew(turn.batch, self._clock(), LEASE_S):
                    return
            except Unavailable:
                continue
            turn.ends = loop.time() + LEASE_S

    async def _decide(self, turn: "_Turn") -> Settled | None:
        enrolled = turn.enrolled
        if enrolled is None:
            return await self._dead(turn, "revoked")
        if turn.batch.digest in self._suspended:
            return await self._set_aside(turn, enrolled)
        gate = await self._gate(turn.batch, enrolled)
        if gate is not None and gate.kind == "dead":
            return await self._dead(turn, gate.reason)
        if gate is not None:
            return await self._hold(turn, gate)
        repository = enrolled.subscription.repository.lower()
        if self._taken[repository] >= self._limits.waiting:
            await self._give_back(turn, _jitter(1.0))
            return None
        keys = (repository, enrolled.installation)
        self._taken.update(keys)
        try:
            # In this order: what waits for a stuck repository must not sit in a slot of its installation.
            async with (
                self._slot(repository, self._limits.repository),
                self._slot(enrolled.installation, self._limits.installation),
                self._overall,
            ):
                return await self._attempt(turn, enrolled)
        finally:
            self._free(keys)

    def _slot(self, key: int | str, size: int) -> asyncio.Semaphore:
        return self._slots.setdefault(key, asyncio.Semaphore(size))

    def _free(self, keys: Iterable[int | str]) -> None:
        """Forget the slots that nobody uses: the tables are as large as what is under way."""
        for key in keys:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
                self._slots.pop(key, None)

    async def _attempt(self, turn: "_Turn", enrolled: Enrolled) -> Settled | None:
        """Send, having a slot. Conditions are looked at here, since they may have changed while it waited."""
        now, ticks = self._clock(), asyncio.get_running_loop().time()
        parked_until = self._parked.get(enrolled.installation, 0.0)
        if now - turn.first(now) >= EXPIRES_S:
            return await self._dead(turn, "expired")
        if self._stopping or ticks - turn.began > WAIT_S:
            await self._give_back(turn, 0.0)
            return None
        if parked_until > now:
            await self._give_back(turn, parked_until - now + _jitter(1.0))
            return None
        if self.circuit.holds(enrolled.subscription.repository.lower()) and not self.circuit.probe(ticks):
            await self._give_back(turn, max((self.circuit.probe_at or 0.0) - ticks, POLL_MIN_S))
            return None
        return await self._send(turn, enrolled, now)

    async def _send(self, turn: "_Turn", enrolled: Enrolled, now: float) -> Settled | None:
        batch, repository = turn.batch, enrolled.subscription.repository
        try:
            body, digest = _envelope(batch, enrolled)
        except ValueError:
            return await self._dead(turn, "envelope-invalid")
        ticks = asyncio.get_running_loop().time()
        if not await self._store.started(batch, now, envelope_digest=digest, lease_s=LEASE_S):
            _log(logging.WARNING, "lease-lost", source=batch.source, dispatch=batch.dispatch)
            return None
        turn.ends = ticks + LEASE_S
        answer = await self._github.dispatch(enrolled.installation, repository, body)
        self.circuit.record(repository.lower(), answer.outage, asyncio.get_running_loop().time())
        turn.answer = answer
        return await self._settle(turn, enrolled, answer, turn.first(now))

    # -- settling ----------------------------------------------------------------------------------------------------

    async def _settle(self, turn: "_Turn", enrolled: Enrolled, answer: Answer, first: float) -> Settled:
        batch, now = turn.batch, self._clock()
        if answer.kind == "done":
            await _insist(lambda: self._store.done(batch, now, "sent"), turn.ends)
            return turn.settled("done", answer.reason)
        if answer.kind == "moved":
            await self._suspend(turn, answer.reason)
        elif answer.reason in ("not-found", "repository-inaccessible"):
            await self._look_for_repository(turn, enrolled)
        if answer.kind in ("dead", "moved"):
            return await self._dead(turn, answer.reason)
        due = now + backoff_s(batch.attempts)
        if answer.kind == "park":
            until = now + BACKOFF_MAX_S if answer.until is None else answer.until
            self._parked[enrolled.installation] = max(until, self._parked.get(enrolled.installation, 0.0))
            await _insist(lambda: self._store.park(enrolled.installation, until, answer.reason, now), turn.ends)
            due = until + _jitter(1.0)
        # Not past its end: the turn at that time makes it a dead letter.
        due = min(due, first + EXPIRES_S)
        await _insist(lambda: self._store.retry(batch, due, answer.reason, now), turn.ends)
        return turn.settled("park" if answer.kind == "park" else "retry", answer.reason)

    async def _suspend(self, turn: "_Turn", reason: str) -> None:
        """Hold what comes after this batch until an operator enrolls again."""
        await _insist(lambda: self._store.suspend(turn.batch.digest, reason), turn.ends)
        self._suspended[turn.batch.digest] = reason
        _log(logging.ERROR, "subscription-suspended", subscription=turn.batch.digest, reason=reason)

    async def _set_aside(self, turn: "_Turn", enrolled: Enrolled) -> Settled:
        """Hold a suspended subscription's batch; one that another subscription took over from goes on under that."""
        batch = turn.batch
        if self._suspended[batch.digest] == SUPERSEDED and self._carry is not None:
            carried = await self._carry(batch, enrolled)
            if carried == "carried":
                await _insist(lambda: self._store.done(batch, self._clock(), "superseded"), turn.ends)
                return turn.settled("hold", "superseded")
            if carried == "unfit":
                return await self._dead(turn, "superseded")
        return await self._hold(turn, Gate("hold", "suspended"))

    async def _look_for_repository(self, turn: "_Turn", enrolled: Enrolled) -> None:
        """Suspend the subscription where its repository is gone; at most one look a minute.

        A 404 alone does not say so: it is also the answer to a token that may not dispatch there.
        """
        ticks, digest = asyncio.get_running_loop().time(), turn.batch.digest
        self._reread = {key: at for key, at in self._reread.items() if ticks - at < REREAD_S}
        if digest in self._reread:
            return
        self._reread[digest] = ticks
        try:
            await self._github.repository(enrolled.installation, enrolled.subscription.repository)
        except GitHubRefusal as refusal:
            answer = refusal.answer
        except GitHubAway as away:
            _log(logging.WARNING, "repository-unread", subscription=digest, reason=away.reason)
            return
        else:
            return
        if answer.kind == "moved":
            await self._suspend(turn, answer.reason)
        elif answer.reason == "not-found":
            await self._suspend(turn, "repository-gone")

    async def _dead(self, turn: "_Turn", reason: str) -> Settled:
        await _insist(lambda: self._store.dead(turn.batch, reason, self._clock()), turn.ends)
        return turn.settled("dead", reason)

    async def _hold(self, turn: "_Turn", gate: Gate) -> Settled:
        now = self._clock()
        until = now + HOLD_S if gate.until is None else gate.until
        # The status `asked` keeps the runs of an earlier send out while an operator is asked.
        status = "asked" if gate.reason == "asked" else "queued"
        held_s = max(0.0, until - now)
        await self._store.release(turn.batch, until, held_s=held_s, status=status, reason=gate.reason)
        return turn.settled("hold", gate.reason)

    async def _give_back(self, turn: "_Turn", after_s: float) -> None:
        await self._store.release(turn.batch, self._clock() + after_s)


@dataclass(slots=True)
class _Turn:
    """One leased batch on its way: `began` and `ends` (of the lease) by the loop's clock."""

    batch: Batch
    enrolled: Enrolled | None
    began: float
    ends: float
    answer: Answer | None = None

    def first(self, now: float) -> float:
        """Return when the batch was first attempted, `now` where it was not."""
        return now if self.batch.first_attempt is None else self.batch.first_attempt

    def settled(self, outcome: Outcome, reason: str) -> Settled:
        took_s = asyncio.get_running_loop().time() - self.began
        return Settled(self.batch, self.enrolled, outcome, reason, self.answer, took_s)


def backoff_s(attempts: int) -> float:
    """Return the wait after a failed attempt that followed `attempts` others: 1 s doubling to 15 min, full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return _jitter(min(BACKOFF_S * 2 ** min(attempts, 20), BACKOFF_MAX_S))


def _jitter(most_s: float) -> float:
    return random.uniform(0.0, most_s)  # noqa: S311 (spread, not a secret)


async def _mode_alone(_: Batch, enrolled: Enrolled) -> Gate | None:
    """Judge by the enrollment's mode where nobody can be asked: an `ask` waits."""
    match enrolled.mode:
        case "auto":
            return None
        case "deny":
            return Gate("dead", "denied")
        case _:
            return Gate("hold", "asked")


def _envelope(batch: Batch, enrolled: Enrolled) -> tuple[bytes, str]:
    """Return the dispatch's body and its digest; ValueError where what was queued makes no valid envelope."""
    subscription = enrolled.subscription
    events = [EnvelopeEvent.from_json(orjson.loads(event)) for event in batch.events]
    if any(event.type != batch.trigger for event in events):
        raise ValueError("an event is not of its lane's trigger")
    document = envelope.build(subscription.digest, subscription.event_type, batch.dispatch, events)  # validated there
    return envelope.encode(document), envelope.envelope_digest(document["client_payload"])


async def _insist(settle: Callable[[], Awaitable[object]], ends: float) -> None:
    """Settle, again while the store is away and the lease lasts: a settling that is lost makes a second send."""
    wait_s = POLL_MIN_S
    while True:
        try:
            await settle()
        except Unavailable:
            if asyncio.get_running_loop().time() + wait_s > ends:
                raise
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, AWAY_MAX_S)
        else:
            return


_LEVELS: dict[Outcome, int] = {
    "done": logging.INFO,
    "hold": logging.DEBUG,
    "retry": logging.WARNING,
    "park": logging.WARNING,
    "dead": logging.ERROR,
}


def _report(settled: Settled) -> None:
    batch, answer = settled.batch, settled.answer
    _log(
        _LEVELS[settled.outcome],
        f"dispatch-{settled.outcome}",
        source=batch.source,
        subscription=batch.digest,
        trigger=batch.trigger,
        dispatch=batch.dispatch,
        events=len(batch.events),
        attempts=batch.attempts + (answer is not None),
        status=None if answer is None else answer.status,
        reason=settled.reason,
        took_ms=round(settled.took_s * 1000),
    )


def _log(level: int, event: str, **fields: object) -> None:
    """Log `event` with fields: slugs, ids and numbers, nothing that came from a delivery or from GitHub."""
    LOG.log(level, event, extra={"event": event, **fields})
