"""The loop below the acknowledgement: seal, pace, send, settle.

The rule of this module: a batch that was taken from the store is given back to it, settled or not, or its lease runs out;
either way it is sent again under the same dispatch id. Nothing here can lose one: a process that dies at any instruction
leaves a lease behind, and nothing else. At-least-once, in order within a lane; admission makes one run of it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from gateway import envelope, log
from gateway.answers import Answer
from gateway.circuit import Circuit
from gateway.envelope import EnvelopeEvent
from gateway.errors import Unavailable
from gateway.pace import AWAY_MAX_S, POLL_MIN_S, Limits, Slots, jitter
from gateway.settling import EXPIRES_S, Gate, Looking, Settled, Settling, Turn, report
from gateway.store import REVOKED, Batch, Store
from gateway.subscriptions import Enrolled

LOG = logging.getLogger("gateway")

LEASE_S = 30.0  # renewed while its batch is under way: what a killed process held is sent again this long after
RENEW_S = 10.0
WAIT_S = 45.0  # a batch that waited this long for its turn goes back to the store, so that others get the slot
UNREAD_S = 30.0  # what is unknown to us for so long, and after we read the folder again, nobody enrolled
POLL_MAX_S = 1.0
FRESH_S = 0.5  # how old what other processes decided may be
COALESCE_S = 0.005  # a burst of admissions wakes the loop once
SHARE = 16  # batches taken from one source before the next has its turn


class GitHub(Looking, Protocol):
    """What the dispatcher wants of a `GitHubApp`."""

    async def dispatch(self, installation: int, repository: str, body: bytes) -> Answer:
        """Send one dispatch and classify the answer."""
        ...


class Dispatcher:
    """Sends what the store holds for `sources` until `stop`.

    `enrolled` finds an enrollment by subscription digest, None where it was revoked; `read_at` says when those were last
    seen to be all that the folder holds, by the loop's clock. `gate`, asked before each send, may hold
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
        read_at: Callable[[], float] = lambda: math.inf,
        gate: Callable[[Batch, Enrolled], Awaitable[Gate | None]] | None = None,
        observe: Callable[[Settled], Awaitable[None]] | None = None,
        carry: Callable[[Batch, Enrolled], Awaitable[str]] | None = None,
        clock: Callable[[], float] = time.time,
        limits: Limits | None = None,
        drain_s: float = 15.0,
    ) -> None:
        self._store, self._github = store, github
        self._enrolled, self._sources, self._read_at = enrolled, sources, read_at
        self._gate, self._observe = gate or _mode_alone, observe
        self._settling = Settling(store, github, carry, clock)
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
        self._left: set[str] = set()
        self._unread: dict[str, float] = {}  # when work of an unknown digest first came, by the loop's clock
        self._away = 0  # failed calls of the loop in a row
        self._slots = Slots(self._limits)

    @property
    def in_flight(self) -> int:
        """The number of batches taken from the store and not yet given back."""
        return len(self._tasks)

    def share(self, processes: int) -> None:
        """Take this process's part of what may be under way at once; before `run`."""
        self._limits = self._limits.share(processes)
        self._slots = Slots(self._limits)

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
            await self._settling.look()
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
            log.event("store-away", logging.ERROR, reason=error.reason)
        self._away += 1
        try:
            async with asyncio.timeout(jitter(min(POLL_MIN_S * 2 ** min(self._away, 10), AWAY_MAX_S))):
                await self._stopped.wait()
        except TimeoutError:
            return

    def _store_back(self) -> None:
        if self._away:
            log.event("store-back")
            self._away = 0

    async def _drain(self) -> None:
        """Wait for what is under way; what does not settle in time keeps its lease and is sent again after it."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._drain_s)
        for task in late:
            task.cancel()
        if late:
            log.event("dispatch-unsettled", logging.WARNING, batches=len(late))
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
        turn = Turn(batch, self._enrolled(batch.digest), began, began + LEASE_S)
        keeper = asyncio.create_task(self._keep_lease(turn))
        try:
            settled = await self._decide(turn)
            if settled is not None:
                report(settled)
                if self._observe is not None:
                    await self._observe(settled)
        except Unavailable as error:
            # The lease ends by itself, then the batch has another turn.
            log.event(
                "dispatch-unsettled", logging.WARNING, source=batch.source, dispatch=batch.dispatch, reason=error.reason
            )
        except Exception:  # a bug must neither end the loop nor stay unseen
            LOG.exception(
                "dispatch-bug", extra={"event": "dispatch-bug", "source": batch.source, "dispatch": batch.dispatch}
            )
        finally:
            keeper.cancel()

    async def _keep_lease(self, turn: Turn) -> None:
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

    async def _decide(self, turn: Turn) -> Settled | None:
        enrolled = turn.enrolled
        if enrolled is None:
            return await self._unknown(turn)
        if turn.batch.digest in self._settling.suspended:
            return await self._settling.set_aside(turn, enrolled)
        gate = await self._gate(turn.batch, enrolled)
        if gate is not None and gate.kind == "dead":
            return await self._settling.dead(turn, gate.reason)
        if gate is not None:
            return await self._settling.hold(turn, gate)
        repository = enrolled.subscription.repository.lower()
        if self._slots.crowded(repository):
            await self._settling.give_back(turn, jitter(1.0))
            return None
        of_repository, of_installation = self._slots.take(repository, enrolled.installation)
        try:
            # In this order: what waits for a stuck repository must not sit in a slot of its installation.
            async with of_repository, of_installation, self._slots.overall:
                return await self._attempt(turn, enrolled)
        finally:
            self._slots.free(repository, enrolled.installation)

    async def _unknown(self, turn: Turn) -> Settled | None:
        """Give up what nobody enrolled; but a receiver may have read an enrollment before this process has."""
        digest, ticks = turn.batch.digest, asyncio.get_running_loop().time()
        # no clock but our own: a receiver's may be an hour off. Who is enrolled later is new again after a while.
        self._unread = {one: at for one, at in self._unread.items() if ticks - at < 2 * UNREAD_S}
        first = self._unread.setdefault(digest, ticks)
        unread = ticks - first < UNREAD_S or self._read_at() <= first  # a set with a new file may be refused, say
        if unread and self._settling.suspended.get(digest) != REVOKED:
            await self._settling.give_back(turn, UNREAD_S / 10)
            return None
        return await self._settling.dead(turn, "revoked")

    async def _attempt(self, turn: Turn, enrolled: Enrolled) -> Settled | None:
        """Send, having a slot. Conditions are looked at here, since they may have changed while it waited."""
        now, ticks, digest = self._clock(), asyncio.get_running_loop().time(), turn.batch.digest
        if digest in self._settling.suspended or self._enrolled(digest) != enrolled:
            await self._settling.give_back(turn, 0.0)  # suspended, revoked or denied meanwhile: its next turn decides
            return None
        parked_until = self._settling.parked.get(enrolled.installation, 0.0)
        if now - turn.first(now) >= EXPIRES_S:
            return await self._settling.dead(turn, "expired")
        if self._stopping or ticks - turn.began > WAIT_S:
            await self._settling.give_back(turn, 0.0)
            return None
        if parked_until > now:
            await self._settling.give_back(turn, parked_until - now + jitter(1.0))
            return None
        if self.circuit.holds(enrolled.subscription.repository.lower()) and not self.circuit.probe(ticks):
            await self._settling.give_back(turn, max((self.circuit.probe_at or 0.0) - ticks, POLL_MIN_S))
            return None
        return await self._send(turn, enrolled, now)

    async def _send(self, turn: Turn, enrolled: Enrolled, now: float) -> Settled | None:
        batch, repository = turn.batch, enrolled.subscription.repository
        try:
            body, digest = _envelope(batch, enrolled)
        except ValueError:
            return await self._settling.dead(turn, "envelope-invalid")
        ticks = asyncio.get_running_loop().time()
        if not await self._store.started(batch, now, envelope_digest=digest, lease_s=LEASE_S):
            log.event("lease-lost", logging.WARNING, source=batch.source, dispatch=batch.dispatch)
            return None
        turn.ends = ticks + LEASE_S
        answer = await self._github.dispatch(enrolled.installation, repository, body)
        self.circuit.record(repository.lower(), answer.outage, asyncio.get_running_loop().time())
        turn.answer = answer
        return await self._settling.settle(turn, enrolled, answer, turn.first(now))


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
    events = [EnvelopeEvent.from_queue(text, batch.trigger) for text in batch.events]
    document = envelope.build(subscription.digest, subscription.event_type, batch.dispatch, events)  # validated there
    return envelope.encode(document), envelope.envelope_digest(document["client_payload"])
