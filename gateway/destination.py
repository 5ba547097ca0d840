"""`Destinations`: what GitHub says of the repositories that we dispatch to, read through the App and cached.

A file at a commit never changes, so its hash is kept; a default branch may change, so it is read again, in any case where
somebody names another one (at most once a minute). Every question that GitHub does not answer is Unavailable: nobody is
let in because we could not ask.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from gateway import strict_json
from gateway.answers import GitHubAway, GitHubRefusal, Repository
from gateway.errors import Rejection, Unavailable
from gateway.store import Store
from gateway.structs import Value
from gateway.subscriptions import Enrolled

OPT_IN: Final = ".github/workflows/aw.json"
BRANCH_S: Final = 600.0
DOUBT_S: Final = 60.0
REMEMBER_S: Final = 90 * 86_400
HASHES: Final = 4096

# What GitHub answers where the App may not read contents: no token for that permission, or a token without it.
# https://docs.github.com/en/rest/apps/apps#create-an-installation-access-token-for-an-app
NO_PERMISSION: Final = frozenset({"repository-inaccessible", "forbidden", "unprocessable"})
GONE: Final = frozenset({"not-found", "gone", "repository-inaccessible"})

T = TypeVar("T")


class GitHub(Protocol):
    """What is asked of a `GitHubApp`."""

    async def repository(self, installation: int, repository: str) -> Repository:
        """Return what GitHub says of a repository."""
        ...

    async def contents(self, installation: int, repository: str, path: str, ref: str) -> bytes:
        """Return a file's bytes."""
        ...


class Seen(Value):
    """What stands at the default branch. `opted_in` and `workflow_hash` are None where the App may not read contents.

    `gone` is the reason where the repository itself is not what was enrolled; nothing else is known then. A missing
    workflow has the hash "".
    """

    branch: str = ""
    opted_in: bool | None = None
    workflow_hash: str | None = None
    gone: str | None = None


class Destinations:
    """Reads and caches for one process; the last known default branch is shared through the store."""

    def __init__(self, store: Store, github: GitHub, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._github, self._clock = store, github, clock
        self._branches: dict[str, tuple[str, float]] = {}
        self._hashes: OrderedDict[tuple[int, str, str, str], str] = OrderedDict()
        self._asking: dict[Any, asyncio.Task[Any]] = {}

    async def branch(self, enrolled: Enrolled, claimed: str | None = None) -> str:
        """Return the default branch, read again where it is old or `claimed` is another one. Raises Unavailable."""
        key = _key(enrolled)
        known = self._branches.get(key)
        now = self._clock()
        fresh_s = BRANCH_S if known is None or claimed == known[0] else DOUBT_S
        if known is not None and now - known[1] < fresh_s:
            return known[0]
        try:
            return (await self._once(("repository", key), lambda: self._read_repository(enrolled))).default_branch
        except GitHubRefusal as refusal:
            raise Unavailable(refusal.reason, 60) from None
        except GitHubAway:
            last = known[0] if known is not None else await self._store.recall(_fact(key))
            if last is None:
                raise
            return last

    async def hash_at(self, enrolled: Enrolled, commit: str) -> str:
        """Return the hash of the enrolled workflow's file at a commit, "" where it has none. Raises Unavailable."""
        subscription = enrolled.subscription
        key = (enrolled.installation, _key(enrolled), subscription.workflow, commit)
        known = self._hashes.get(key)
        if known is not None:
            self._hashes.move_to_end(key)
            return known
        try:
            found = await self._once(key, lambda: self._hash(enrolled, subscription.workflow, commit))
        except GitHubRefusal as refusal:
            reason = "contents-unreadable" if refusal.reason in NO_PERMISSION else refusal.reason
            raise Unavailable(reason, 60) from None
        if found:  # a commit that GitHub does not know yet may be known soon
            self._hashes[key] = found
            if len(self._hashes) > HASHES:
                self._hashes.popitem(last=False)
        return found

    async def look(self, enrolled: Enrolled) -> Seen:
        """Read opt-in and workflow at the default branch, now. Raises Unavailable where GitHub does not answer."""
        try:
            repository = await self._read_repository(enrolled)
        except GitHubRefusal as refusal:
            if refusal.answer.kind == "moved":
                return Seen(gone="repository-moved")
            if refusal.reason in GONE or refusal.reason == "installation-gone":
                return Seen(gone="repository-gone")
            raise Unavailable(refusal.reason, 60) from None
        wanted = repository_id(enrolled)
        if wanted is not None and repository.id != wanted:
            return Seen(repository.default_branch, gone="repository-replaced")
        branch = repository.default_branch
        if repository.full_name != enrolled.subscription.repository:
            # GitHub finds it in any spelling, but the tokens of its runs have this one.
            return Seen(branch, gone="repository-moved")
        try:
            opted_in = await self._opted_in(enrolled, branch)
            found = await self._hash(enrolled, enrolled.subscription.workflow, branch)
        except GitHubRefusal as refusal:
            if refusal.reason in NO_PERMISSION:
                return Seen(branch)
            raise Unavailable(refusal.reason, 60) from None
        return Seen(branch, opted_in, found)

    async def workflow(self, enrolled: Enrolled) -> bytes | None:
        """Return the workflow's file at the default branch, None where it has none. Raises Unavailable."""
        try:
            return await self._file(enrolled, enrolled.subscription.workflow, await self.branch(enrolled))
        except GitHubRefusal as refusal:
            raise Unavailable(refusal.reason, 60) from None

    async def _read_repository(self, enrolled: Enrolled) -> Repository:
        found = await self._github.repository(enrolled.installation, enrolled.subscription.repository)
        self._branches[_key(enrolled)] = (found.default_branch, self._clock())
        await self._store.remember(_fact(_key(enrolled)), found.default_branch, REMEMBER_S)
        return found

    async def _opted_in(self, enrolled: Enrolled, branch: str) -> bool:
        """Read the repository's opt-in: `"gateway-dispatch": true`, nothing else."""
        data = await self._file(enrolled, OPT_IN, branch)
        try:
            document = strict_json.loads(data) if data is not None else None
        except Rejection:
            return False
        return isinstance(document, dict) and document.get("gateway-dispatch") is True

    async def _hash(self, enrolled: Enrolled, path: str, ref: str) -> str:
        data = await self._file(enrolled, path, ref)
        return "" if data is None else "sha256:" + hashlib.sha256(data).hexdigest()

    async def _file(self, enrolled: Enrolled, path: str, ref: str) -> bytes | None:
        try:
            return await self._github.contents(enrolled.installation, enrolled.subscription.repository, path, ref)
        except GitHubRefusal as refusal:
            if refusal.reason == "not-found":
                return None
            raise

    async def _once(self, key: Any, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask once for all who want to know the same at the same time."""
        task = self._asking.get(key)
        if task is None:
            task = asyncio.ensure_future(ask())
            self._asking[key] = task
            task.add_done_callback(lambda ended: self._forget(key, ended))
        return await asyncio.shield(task)

    def _forget(self, key: Any, ended: "asyncio.Task[Any]") -> None:
        self._asking.pop(key, None)
        if not ended.cancelled():
            ended.exception()  # looked at here too: whoever asked may have given up


def repository_id(enrolled: Enrolled) -> int | None:
    """Return the numeric id that the enrollment or its document gives."""
    return enrolled.repository_id or enrolled.subscription.repository_id


def _key(enrolled: Enrolled) -> str:
    return enrolled.subscription.repository.lower()


def _fact(key: str) -> str:
    return f"branch:{key}"
