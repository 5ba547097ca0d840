"""`Reconciler`: what a repository's default branch says decides which of its enrolled subscriptions are active.

1. Nothing is ever widened here: a suspension is lifted by enrolling again what agrees, and by nothing else but rule 3.
2. Opt-in taken back, workflow changed or gone, repository moved, gone or replaced: suspended, with that reason.
3. Rollover: a digest that was enrolled before its workflow was merged waits as `workflow-pending`. When the default branch
   has its hash it becomes active, and in the same look the digest that it follows becomes `workflow-superseded`, also one
   that was suspended for that workflow because the merge came first.
4. Where the default branch cannot be read, only an operator's act changes anything; what is attested counts as read.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway import log
from gateway.destination import Destinations, Seen
from gateway.errors import Unavailable
from gateway.store import REVOKED, Store
from gateway.structs import Value
from gateway.subscriptions import Enrolled
from gateway.suspension import PENDING, SUPERSEDED, State, state_of

CHANGED: Final = "workflow-hash"
MISSING: Final = "workflow-missing"
OPT_IN: Final = "opt-in-revoked"

REREAD_S: Final = 60.0
WAITING: Final = 1_000  # refused runs of a workflow that wait for its next look; more would tell it nothing new
LOOKS: Final = 10  # that one refused run causes where GitHub is away: its dispatch has no other to come
WATCH_S: Final = 1.0
CURRENT_S: Final = 400 * 86_400


class Row(Value):
    """One subscription after a look. `agrees` is False where the default branch says no, None where it could not be read."""

    digest: str
    source: str
    repository: str
    installation: int
    state: State
    reason: str | None
    agrees: bool | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as scripts read it."""
        names = ("digest", "source", "repository", "state", "reason")
        return {name: getattr(self, name) for name in names}


class _Look(Value):
    """One look at a workflow, by which each of its subscriptions is settled.

    Of its `group` those in `enrolling` have just been enrolled (again), `acted` in short: few, where a workflow may have
    thousands. Those in `new` no look has found good yet. `current`: one of the group has the default branch's workflow.
    """

    seen: Seen
    group: Sequence[Enrolled]
    suspended: Mapping[str, str]
    enrolling: frozenset[str]
    new: frozenset[str]
    acted: Sequence[Enrolled]
    current: bool


class Reconciler:
    """Compares and settles, for all enrollments or for those of one workflow; without `destinations` none is read."""

    def __init__(
        self,
        store: Store,
        destinations: Destinations | None,
        enrolled: Callable[[], Sequence[Enrolled]],
        clock: Callable[[], float] = time.monotonic,
        reread_s: float = REREAD_S,
    ) -> None:
        self._store, self._destinations, self._enrolled = store, destinations, enrolled
        self._clock, self._reread_s = clock, reread_s
        self._looked: dict[tuple[str, str], float] = {}
        self._next: dict[tuple[str, str], asyncio.Task[None]] = {}  # the look that refusals wait for
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._unread: set[tuple[str, str]] = set()  # workflows whose last look GitHub did not answer

    async def run(self, digests: Iterable[str] | None = None, *, enrolling: bool = False) -> list[Row]:
        """Look at all enrolled subscriptions, or at those of `digests` and what shares their workflow; return their rows.

        `enrolling` says that an operator has just enrolled `digests` (again): their suspensions are lifted where the default
        branch agrees. Where it has another workflow, what is new waits for its own, and what is suspended stays so.
        """
        wanted = None if digests is None else frozenset(digests)
        rows: list[Row] = []
        for group in _groups(self._enrolled()).values():
            if wanted is None or any(one.subscription.digest in wanted for one in group):
                rows += await self._settle(group, wanted if enrolling and wanted is not None else frozenset())
        return rows

    async def disagreed(self, enrolled: Enrolled) -> None:
        """Return after a look that a refused admission asked for; what cannot be read is looked at again, for a while.

        At most one a minute and workflow: a refusal within that minute waits for the end of it, with others of its workflow.
        """
        key = _workflow(enrolled)
        if self._waiting[key] >= WAITING:
            return
        look = self._next.get(key)
        if look is None:
            look = self._next[key] = asyncio.create_task(self._look_again(key, enrolled.subscription.digest))
        self._waiting[key] += 1
        try:
            await asyncio.shield(look)
        finally:
            self._waiting[key] -= 1
            self._waiting += Counter()  # forgets what nobody waits for

    async def _look_again(self, key: tuple[str, str], digest: str) -> None:
        try:
            await self._rest(key)
        finally:
            del self._next[key]  # who is refused from here on wants to be looked at after it
        for left in reversed(range(LOOKS)):
            if await self._look(key, digest) or not left:
                return
            await self._rest(key)

    async def _rest(self, key: tuple[str, str]) -> None:
        """Wait until a workflow may be looked at again; others that wait may be first."""
        while (rest := self._looked.get(key, -self._reread_s) + self._reread_s - self._clock()) > 0:  # noqa: ASYNC110 (for a time)
            await asyncio.sleep(rest)

    async def _look(self, key: tuple[str, str], digest: str) -> bool:
        """Look at a workflow; False where GitHub or the store was away."""
        now = self._clock()
        self._looked = {one: at for one, at in self._looked.items() if now - at < self._reread_s} | {key: now}
        try:
            await self.run([digest])
        except Unavailable as error:
            log.event("reconcile-failed", logging.WARNING, repository=key[0], reason=error.reason)
            return False
        return key not in self._unread

    async def watch(self) -> None:
        """Settle, until cancelled, what nobody has compared: entries that were put there, or enrolled while the store was away."""
        left: Mapping[tuple[str, str], Sequence[Enrolled]] = {}
        seen: Sequence[Enrolled] | None = None
        while True:
            enrolled = self._enrolled()
            if enrolled is not seen:
                seen, left = enrolled, _groups(enrolled)
            try:
                if left:
                    left = await self._settle_new(left)
            except Exception:  # noqa: BLE001 (a bug must neither end this for all others nor stay unseen, and nobody awaits it)
                log.LOGGER.exception("reconcile-bug")
            await asyncio.sleep(WATCH_S)

    async def _settle_new(
        self, groups: Mapping[tuple[str, str], Sequence[Enrolled]]
    ) -> Mapping[tuple[str, str], Sequence[Enrolled]]:
        """Look at the workflows that have an active subscription which no look has found good, or two active versions.

        Return those that are not settled: what is settled is not asked for again, of thousands while one cannot be read.
        """
        left = dict(groups)
        try:
            suspended = await self._store.suspended()
            for key, group in groups.items():
                if (
                    self._clock() - self._looked.get(key, -self._reread_s) < self._reread_s
                ):  # asks the store nothing: a workflow may have many
                    continue
                active = [one for one in group if one.subscription.digest not in suspended]
                new = frozenset([one.subscription.digest for one in active if await self._is_new(one)])
                if not new and len({one.subscription.workflow_hash for one in active}) < 2:
                    del left[key]
                    continue
                self._looked[key] = self._clock()
                rows = await self._settle(group, frozenset(), new)
                if all(row.agrees is not None for row in rows):
                    del left[key]
        except Unavailable as error:
            log.event("reconcile-failed", logging.WARNING, reason=error.reason)
        return left

    async def _is_new(self, one: Enrolled) -> bool:
        """Whether the default branch was never found to agree with an enrollment, and nobody vouches for that."""
        return not one.attested and await self._store.recall(_fact(one.subscription.digest)) is None

    async def _settle(
        self, group: Sequence[Enrolled], enrolling: frozenset[str], new: frozenset[str] = frozenset()
    ) -> list[Row]:
        """Look once for all subscriptions of one workflow, and settle each; a `new` one may be before its workflow."""
        suspended = await self._store.suspended()
        try:
            seen = Seen() if self._destinations is None else await self._destinations.look(group[0])
            self._unread.discard(_workflow(group[0]))
        except Unavailable as error:
            log.event("reconcile-failed", logging.WARNING, repository=_workflow(group[0])[0], reason=error.reason)
            seen = Seen()
            self._unread.add(_workflow(group[0]))
        current = any(one.subscription.workflow_hash == seen.workflow_hash for one in group)
        # What is current comes first: a death between two writes leaves both active for a moment, never neither.
        group = sorted(group, key=lambda one: one.subscription.workflow_hash != seen.workflow_hash)
        acted = [one for one in group if one.subscription.digest in enrolling]
        look = _Look(seen, group, suspended, enrolling, new, acted, current)
        return [await self._one(one, look) for one in group]

    async def _one(self, one: Enrolled, look: _Look) -> Row:
        digest = one.subscription.digest
        before, again = look.suspended.get(digest), digest in look.enrolling
        agrees = verdict(one, look.seen)
        after = before
        if agrees is None:
            after = _unread(one, look)
        elif agrees == "":
            await self._store.remember(_fact(digest), "1", CURRENT_S)
            after = None if again or before == PENDING else before
        elif agrees in (CHANGED, MISSING) and (again or before not in _GRAVE):
            after = await self._behind(digest, agrees, before, look.current, again or digest in look.new)
        elif before is None or again or before == SUPERSEDED or (before == PENDING and agrees != OPT_IN):
            after = agrees
        await self._write(one, before, after)
        return _row(one, after, None if agrees is None else agrees == "")

    async def _behind(self, digest: str, agrees: str, before: str | None, current: bool, anew: bool) -> str:
        """Return why a digest, whose workflow is not the one at the default branch, is not active.

        What is enrolled `anew` may wait for its workflow, but not where it was active with it: a revert of what was changed
        since would be taken for that merge.
        """
        if before in (PENDING, SUPERSEDED, REVOKED):
            return PENDING if anew else before
        was_current = await self._store.recall(_fact(digest)) is not None
        if before is not None:
            merged_first = current and was_current and not anew and before in (CHANGED, MISSING)
            return SUPERSEDED if merged_first else agrees if anew else before
        if current:  # another digest is; one that never was has its workflow still before it
            return SUPERSEDED if was_current else PENDING
        return PENDING if anew and not was_current else agrees

    async def _write(self, one: Enrolled, before: str | None, after: str | None) -> None:
        if before == after:
            return
        digest = one.subscription.digest
        if after is None:
            await self._store.resume(digest)
            log.event("subscription-resumed", subscription=digest, source=one.source, was=before)
        else:
            await self._store.suspend(digest, after)
            level = logging.INFO if state_of(after) == "mismatched" else logging.ERROR
            log.event("subscription-suspended", level, subscription=digest, source=one.source, reason=after)


# Reasons that a look at the workflow alone does not replace.
_GRAVE: Final = frozenset({"repository-moved", "repository-gone", "repository-replaced", OPT_IN, REVOKED})


async def forget(store: Store, digest: str) -> bool:
    """End a subscription in every process, before or after its entry is gone. True: it was active.

    Enrolled again it is new: nothing of what was once found good counts.
    """
    was_active = await store.revoke(digest)
    await store.forget(_fact(digest))
    return was_active


def verdict(one: Enrolled, seen: Seen) -> str | None:
    """Return "" where the default branch agrees with the enrollment, the reason where it does not, None where it is unread."""
    if seen.gone is not None:
        return seen.gone
    if seen.opted_in is None or seen.workflow_hash is None:
        return None
    if not seen.opted_in:
        return OPT_IN
    if not seen.workflow_hash:
        return MISSING
    return "" if seen.workflow_hash == one.subscription.workflow_hash else CHANGED


def _unread(one: Enrolled, look: _Look) -> str | None:
    """Return why a digest is not active where the default branch was not read: only an operator's act changes anything.

    What is enrolled anew is active, but not beside another version that is: that one goes on, unless the operator attests
    the new one. Admission reads the file that ran in any case, or has it attested.
    """
    digest, before = one.subscription.digest, look.suspended.get(one.subscription.digest)
    if digest not in look.enrolling:
        attested = before is None and any(other.attested and _is_version(other, one) for other in look.acted)
        return SUPERSEDED if attested else before
    beside = any(other.subscription.digest not in look.suspended and _is_version(other, one) for other in look.group)
    return PENDING if beside and not one.attested else None


def _is_version(other: Enrolled, one: Enrolled) -> bool:
    """Whether two enrollments of a workflow are of one connector and source, and of other bytes of it."""
    same = (other.subscription.connector, other.source) == (one.subscription.connector, one.source)
    return same and other.subscription.workflow_hash != one.subscription.workflow_hash


def _groups(enrolled: Iterable[Enrolled]) -> dict[tuple[str, str], list[Enrolled]]:
    groups: dict[tuple[str, str], list[Enrolled]] = {}
    for one in enrolled:
        groups.setdefault(_workflow(one), []).append(one)
    return groups


def _workflow(one: Enrolled) -> tuple[str, str]:
    return one.subscription.repository.lower(), one.subscription.workflow


def _row(one: Enrolled, reason: str | None, agrees: bool | None) -> Row:
    subscription = one.subscription
    shown = reason if reason is not None or agrees is not None or not one.attested else "attested"
    return Row(
        subscription.digest, one.source, subscription.repository, one.installation, state_of(reason), shown, agrees
    )


def _fact(digest: str) -> str:
    return f"current:{digest}"
