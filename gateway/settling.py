"""What becomes of a turn: done, tried again, parked, dead or held; written to the store, and told.

The rule of this module: every way out of a turn writes to the store under the turn's lease, or leaves the lease to run out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway import log
from gateway.answers import Answer, GitHubAway, GitHubRefusal
from gateway.errors import Unavailable
from gateway.pace import AWAY_MAX_S, BACKOFF_MAX_S, POLL_MIN_S, backoff_s, jitter
from gateway.store import Batch, Store
from gateway.structs import Value
from gateway.subscriptions import Enrolled
from gateway.suspension import SUPERSEDED

EXPIRES_S = 86_400.0
HOLD_S = 4.0  # a resumed subscription is sent again within 5 s
REREAD_S = 60.0

Outcome = Literal["done", "retry", "park", "dead", "hold"]


class Looking(Protocol):
    """What settling wants of a `GitHubApp`."""

    async def repository(self, installation: int, repository: str) -> object:
        """Raise GitHubRefusal or GitHubAway where the repository cannot be read."""
        ...


class Gate(Value):
    """A decision not to send now: `hold` until `until` (the age clock stands still), or `dead`, both with a `reason`.

    The reasons `asked` (hold) and `denied` (dead) also keep the runs of an earlier send out.
    """

    kind: Literal["hold", "dead"]
    reason: str
    until: float | None = None


class Settled(Value):
    """What became of one turn of a batch, for metrics and for whoever has to suspend a subscription.

    `enrolled` is None for a revoked one; `answer` is None where nothing was sent.
    """

    batch: Batch
    enrolled: Enrolled | None
    outcome: Outcome
    reason: str
    answer: Answer | None
    took_s: float


@dataclass(slots=True)
class Turn:
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
        """Return what became of it, timed until now."""
        took_s = asyncio.get_running_loop().time() - self.began
        return Settled(self.batch, self.enrolled, outcome, reason, self.answer, took_s)


class Settling:
    """Settles turns, and knows what holds others back: `parked` installations and `suspended` subscriptions, as last read."""

    def __init__(
        self,
        store: Store,
        github: Looking,
        carry: Callable[[Batch, Enrolled], Awaitable[str]] | None,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._github, self._carry, self._clock = store, github, carry, clock
        self.parked: dict[int, float] = {}
        self.suspended: dict[str, str] = {}
        self._reread: dict[str, float] = {}  # when the repository of a subscription was last looked for

    async def look(self) -> None:
        """Read what other processes and operators parked and suspended."""
        self.parked = await self._store.parked(self._clock())
        self.suspended = await self._store.suspended()

    async def settle(self, turn: Turn, enrolled: Enrolled, answer: Answer, first: float) -> Settled:
        """Settle a turn as its dispatch was answered; `first` is when the batch was first attempted."""
        batch, now = turn.batch, self._clock()
        if answer.kind == "done":
            await insist(lambda: self._store.done(batch, now, "sent"), turn.ends)
            return turn.settled("done", answer.reason)
        if answer.kind == "moved":
            await self._suspend(turn, answer.reason)
        elif answer.reason in ("not-found", "repository-inaccessible"):
            await self._look_for_repository(turn, enrolled)
        if answer.kind in ("dead", "moved"):
            return await self.dead(turn, answer.reason)
        due = now + backoff_s(batch.attempts)
        if answer.kind == "park":
            until = now + BACKOFF_MAX_S if answer.until is None else answer.until
            self.parked[enrolled.installation] = max(until, self.parked.get(enrolled.installation, 0.0))
            await insist(lambda: self._store.park(enrolled.installation, until, answer.reason, now), turn.ends)
            due = until + jitter(1.0)
        # Not past its end: the turn at that time makes it a dead letter.
        due = min(due, first + EXPIRES_S)
        await insist(lambda: self._store.retry(batch, due, answer.reason, now), turn.ends)
        return turn.settled("park" if answer.kind == "park" else "retry", answer.reason)

    async def _suspend(self, turn: Turn, reason: str) -> None:
        """Hold what comes after this batch until an operator enrolls again."""
        await insist(lambda: self._store.suspend(turn.batch.digest, reason), turn.ends)
        self.suspended[turn.batch.digest] = reason
        log.event("subscription-suspended", logging.ERROR, subscription=turn.batch.digest, reason=reason)

    async def set_aside(self, turn: Turn, enrolled: Enrolled) -> Settled:
        """Hold a suspended subscription's batch; one that another subscription took over from goes on under that."""
        batch = turn.batch
        if self.suspended[batch.digest] == SUPERSEDED and self._carry is not None:
            carried = await self._carry(batch, enrolled)
            if carried == "carried":
                await insist(lambda: self._store.done(batch, self._clock(), "superseded"), turn.ends)
                return turn.settled("hold", "superseded")
            if carried == "unfit":
                return await self.dead(turn, "superseded")
        return await self.hold(turn, Gate("hold", "suspended"))

    async def _look_for_repository(self, turn: Turn, enrolled: Enrolled) -> None:
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
            log.event("repository-unread", logging.WARNING, subscription=digest, reason=away.reason)
            return
        else:
            return
        if answer.kind == "moved":
            await self._suspend(turn, answer.reason)
        elif answer.reason == "not-found":
            await self._suspend(turn, "repository-gone")

    async def dead(self, turn: Turn, reason: str) -> Settled:
        """Make a dead letter of it."""
        await insist(lambda: self._store.dead(turn.batch, reason, self._clock()), turn.ends)
        return turn.settled("dead", reason)

    async def hold(self, turn: Turn, gate: Gate) -> Settled:
        """Keep it until the gate's time, without aging."""
        now = self._clock()
        until = now + HOLD_S if gate.until is None else gate.until
        # The status `asked` keeps the runs of an earlier send out while an operator is asked.
        status = "asked" if gate.reason == "asked" else "queued"
        held_s = max(0.0, until - now)
        await self._store.release(turn.batch, until, held_s=held_s, status=status, reason=gate.reason)
        return turn.settled("hold", gate.reason)

    async def give_back(self, turn: Turn, after_s: float) -> None:
        """Put it back as it was, for another turn."""
        await self._store.release(turn.batch, self._clock() + after_s)


async def insist(settle: Callable[[], Awaitable[object]], ends: float) -> None:
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


def report(settled: Settled) -> None:
    """Log what became of a turn."""
    batch, answer = settled.batch, settled.answer
    log.event(
        f"dispatch-{settled.outcome}",
        _LEVELS[settled.outcome],
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
