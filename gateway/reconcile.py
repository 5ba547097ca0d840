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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway import log
from gateway.answers import GitHubAway
from gateway.destination import Destinations, Seen, repository_id
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
REFUSED_S: Final = 900.0  # between looks of its own at what GitHub is there for and does not show
CURRENT_S: Final = 400 * 86_400
GOOD: Final = "1"  # the last look found an enrollment good
UNREAD: Final = "unread"  # it once was good, and an operator's act came before a look


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


_Place = tuple[int, int | None, str]  # the installation, the repository's id and name: what a workflow is read with
_Key = tuple[str, str]  # a workflow: its repository in small letters, and its path


class _Look(Value):
    """One look at a workflow, by which each of its subscriptions is settled: `seen` as its own enrollment reads it.

    Of its `group` those in `enrolling` have just been enrolled (again), `acted` in short: few, where a workflow may have
    thousands. Those in `new` no look has found good yet. `current`: one of the group has the default branch's workflow.
    """

    seen: Mapping[_Place, Seen]
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
        self._looked: dict[_Key, float] = {}
        self._next: dict[_Key, asyncio.Task[None]] = {}  # the look that refusals wait for
        self._waiting: Counter[_Key] = Counter()
        self._unread: set[_Key] = set()  # workflows whose last look GitHub did not answer
        self._refused: dict[_Key, float] = {}  # and those that it did not show then

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

    async def _look_again(self, key: _Key, digest: str) -> None:
        try:
            await self._rest(key)
        finally:
            del self._next[key]  # who is refused from here on wants to be looked at after it
        for left in reversed(range(LOOKS)):
            if await self._look(key, digest) or not left:
                return
            await self._rest(key)

    async def _rest(self, key: _Key) -> None:
        """Wait until a workflow may be looked at again; others that wait may be first."""
        while (rest := self._looked.get(key, -self._reread_s) + self._reread_s - self._clock()) > 0:  # noqa: ASYNC110 (for a time)
            await asyncio.sleep(rest)

    async def _look(self, key: _Key, digest: str) -> bool:
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
        """Settle, until cancelled, what nobody has compared: entries that were put there, or enrolled while the store was away.

        What is settled is not asked for again, of thousands while one cannot be read, unless an operator's act has since
        made active what was suspended: where GitHub is away, nobody compared that either.
        """
        groups: Mapping[_Key, Sequence[Enrolled]] = {}
        left: dict[_Key, Sequence[Enrolled]] = {}
        seen: Sequence[Enrolled] | None = None
        stopped: Mapping[str, str] = {}
        while True:
            try:
                enrolled, suspended = self._enrolled(), await self._store.suspended()
                if enrolled is not seen:
                    seen, groups = enrolled, _groups(enrolled)
                    left = dict(groups)
                    self._refused.clear()
                elif resumed := stopped.keys() - suspended.keys():
                    left |= {key: group for key, group in groups.items() if _any_of(group, resumed)}
                stopped = suspended
                if left:
                    left = await self._settle_new(left, suspended, enrolled)
            except Unavailable as error:
                if left:
                    log.event("reconcile-failed", logging.WARNING, reason=error.reason)
            except Exception:  # noqa: BLE001 (a bug must neither end this for all others nor stay unseen, and nobody awaits it)
                log.LOGGER.exception("reconcile-bug")
            await asyncio.sleep(WATCH_S)

    async def _settle_new(
        self,
        groups: Mapping[_Key, Sequence[Enrolled]],
        suspended: Mapping[str, str],
        enrolled: Sequence[Enrolled],
    ) -> dict[_Key, Sequence[Enrolled]]:
        """Look at the workflows that have an active subscription which no look has found good, or two active versions.

        Return those that are not settled. A look may take ten seconds: the longest unseen is first, and what is `enrolled`
        otherwise meanwhile is begun with anew.
        """
        left = dict(groups)
        try:
            for key in sorted(groups, key=lambda key: self._looked.get(key, float("-inf"))):
                group = groups[key]
                if self._rests(key):
                    continue  # asks the store nothing: a workflow may have many
                active = [one for one in group if one.subscription.digest not in suspended]
                new = frozenset([one.subscription.digest for one in active if await self._is_new(one)])
                if not new and len({one.subscription.workflow_hash for one in active}) < 2:
                    del left[key]
                    continue
                self._looked[key] = self._clock()
                parked = await self._store.parked()
                if any(one.installation in parked for one in group):
                    continue
                rows = await self._settle(group, frozenset(), new)
                if all(row.agrees is not None for row in rows):
                    del left[key]
                elif key not in self._unread:
                    self._refused[key] = self._clock()
                if self._enrolled() is not enrolled:
                    break
        except Unavailable as error:
            log.event("reconcile-failed", logging.WARNING, reason=error.reason)
        return left

    def _rests(self, key: _Key) -> bool:
        """Whether a workflow was looked at a moment ago, or refused a while ago."""
        now, never = self._clock(), float("-inf")
        return now - self._looked.get(key, never) < self._reread_s or now - self._refused.get(key, never) < REFUSED_S

    async def _is_new(self, one: Enrolled) -> bool:
        """Whether no look has found the default branch to agree with an enrollment, and nobody vouches for that."""
        return not one.attested and await self._store.recall(_fact(one.subscription.digest)) != GOOD

    async def _settle(
        self, group: Sequence[Enrolled], enrolling: frozenset[str], new: frozenset[str] = frozenset()
    ) -> list[Row]:
        """Look once for all subscriptions of one workflow, and settle each; a `new` one may be before its workflow."""
        suspended = await self._store.suspended()
        seen = await self._read(group)
        current = any(one.subscription.workflow_hash == seen[_place(one)].workflow_hash for one in group)
        # What is current comes first: a death between two writes leaves both active for a moment, never neither.
        group = sorted(group, key=lambda one: one.subscription.workflow_hash != seen[_place(one)].workflow_hash)
        acted = [one for one in group if one.subscription.digest in enrolling]
        look = _Look(seen, group, suspended, enrolling, new, acted, current)
        return [await self._one(one, look) for one in group]

    async def _read(self, group: Sequence[Enrolled]) -> Mapping[_Place, Seen]:
        """Read the default branch as each enrollment of a workflow does: a mistake in one says nothing of the others.

        What GitHub does not answer is an empty look; where it limits an installation, all processes wait.
        """
        key, seen = _workflow(group[0]), dict.fromkeys(map(_place, group), Seen())
        self._unread.discard(key)
        if self._destinations is None:
            return seen
        for place, one in {_place(one): one for one in reversed(group)}.items():
            try:
                seen[place] = await self._destinations.look(one)
            except Unavailable as error:
                log.event("reconcile-failed", logging.WARNING, repository=key[0], reason=error.reason)
                self._unread.add(key)
                if isinstance(error, GitHubAway) and error.answer.until is not None:
                    await self._store.park(one.installation, error.answer.until, error.reason)
        return seen

    async def _one(self, one: Enrolled, look: _Look) -> Row:
        digest = one.subscription.digest
        before, again = look.suspended.get(digest), digest in look.enrolling
        agrees = verdict(one, look.seen[_place(one)])
        after = before
        if agrees is None:
            after = _unread(one, look)
            if before is not None and after is None and await self._store.recall(_fact(digest)) is not None:
                await self._store.remember(_fact(digest), UNREAD, CURRENT_S)
        elif agrees == "":
            await self._store.remember(_fact(digest), GOOD, CURRENT_S)
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


def _groups(enrolled: Iterable[Enrolled]) -> dict[_Key, list[Enrolled]]:
    groups: dict[_Key, list[Enrolled]] = {}
    for one in enrolled:
        groups.setdefault(_workflow(one), []).append(one)
    return groups


def _workflow(one: Enrolled) -> _Key:
    return one.subscription.repository.lower(), one.subscription.workflow


def _place(one: Enrolled) -> _Place:
    return one.installation, repository_id(one), one.subscription.repository


def _any_of(group: Sequence[Enrolled], digests: Collection[str]) -> bool:
    return any(one.subscription.digest in digests for one in group)


def _row(one: Enrolled, reason: str | None, agrees: bool | None) -> Row:
    subscription = one.subscription
    shown = reason if reason is not None or agrees is not None or not one.attested else "attested"
    return Row(
        subscription.digest, one.source, subscription.repository, one.installation, state_of(reason), shown, agrees
    )


def _fact(digest: str) -> str:
    return f"current:{digest}"
