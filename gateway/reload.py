"""Take the configuration anew without dropping a request: on SIGHUP, or when the subscriptions folder has changed.

The new set is read in a thread and swapped in one assignment, so a request sees the old or the new. A bad one changes
nothing and says so.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway import audit, log
from gateway.app import Gateway
from gateway.configuration import MOVING, Configuration, Stamp, folder_stamp, load_configuration
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings
from gateway.structs import Value

AT_START = (
    *(("server", key) for key in ("bind", "admin_bind", "workers", "engine", "trusted_proxies")),
    *((section,) for section in ("limits", "store", "github", "notifications", "tracing")),
)
CATCH_UP_S = 60.0  # what commands keep beside the enrollments is looked for so often
BEHIND_S = 5.0  # and so often while the store is away
POLL_S = 1.0  # a change is taken when two looks in a row saw the same: within about two seconds, and never half written
EDITED_S = 15.0  # a file that is written over in place leaves no mark on its folder: it is looked for so often
A_FILE_S = 0.01  # or so seldom for each file there is, where those are many
RACY_S = 2.0  # a mark first seen so shortly before a look may stand for a later change too: clocks of file systems are coarse
MORE_S = 3.0  # of a folder that is never still what is new is taken so often: nothing ends by that
MORE_A_FILE_S = 0.002  # or so seldom for each file there is
MOVING_S = 30.0  # a folder that is never still is told about after so long


class Look(Value):
    """The subscriptions folder as a look at each of its files found it; `folder` is the mark of its own last change.

    `at` is when that was and `since` when the mark was first seen, by our own clock: a file system may have another, and
    the one of this machine may be set.
    """

    at: float
    since: float
    folder: tuple[int, int, int] | None
    stamp: Stamp


def look(folder: Path, last: Look | None) -> Look:
    """Look at the folder, and at each of its files where that can tell more than the `last` look did.

    A file that comes, goes or is renamed changes the folder: one call tells that nothing did. The call for each file is a
    change of threads each, and a thousand of them every second took a sixth of a busy receiver.
    """
    now = time.monotonic()
    try:
        found = folder.stat()
        # not the time that rsync and tar set back when they are done
        mark = (found.st_ctime_ns, found.st_ino, found.st_dev)
    except (OSError, ValueError):
        mark = None  # the stamp says what is wrong
    since = now
    if last is not None and mark is not None and mark == last.folder:
        since = last.since
        if last.at - since > RACY_S and now - last.at < _seldom_s(last.stamp):
            return last
    return Look(now, since, mark, folder_stamp(folder))


def _seldom_s(stamp: Stamp) -> float:
    return max(EDITED_S, A_FILE_S * len(stamp))


class Reloader:
    """Reloads one process's gateway. `run` is its task; `ask` may be called from a signal handler of the loop."""

    def __init__(self, gateway: Gateway, poll_s: float = POLL_S) -> None:
        self._gateway = gateway
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self._started = gateway.configuration.settings
        self._behind = False
        self._catch_up_at = 0.0
        self._refused: tuple[Problem, ...] = ()  # of the last set, as they were told
        self._again_at = math.inf
        self._moving_since: float | None = None
        self._more_at = math.inf
        self.read_at = -math.inf  # when the folder was last seen to hold what we run on, by the loop's clock

    def ask(self) -> None:
        """Ask for a reload, whatever changed."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled. What operators did before we ran is caught up with first."""
        taken = last = self._gateway.configuration.stamp
        seen: Look | None = None
        asked = False
        while True:
            await self._catch_up()
            asked = await self._wait() or asked
            self._gateway.keys.refresh()
            at = asyncio.get_running_loop().time()
            wanted = asked or at >= self._again_at
            # what is on its way is looked at whole each time, until two looks saw the same
            before = None if wanted or last != taken else seen
            try:
                seen = await asyncio.to_thread(look, self._gateway.configuration.folder, before)
            except (OSError, RuntimeError) as error:  # no thread is free, say: nothing to end a process that serves
                log.event("reload-unseen", logging.WARNING, problem=str(error))
                await asyncio.sleep(self._poll_s)
                continue
            now = seen.stamp
            due = wanted or now != taken
            if self._moves(at, moving=due and now != last):
                if await self._take_more(now, at):
                    taken = now
            elif due and await self._take(now, asked=asked):
                taken, asked = (now if self._refused else self._gateway.configuration.stamp), False
            if now == taken and seen is not before and not self._refused:
                self.read_at = at
            last = now

    def _moves(self, at: float, *, moving: bool) -> bool:
        """Pass on whether the folder is changing; say once where it does not end."""
        if not moving:
            self._moving_since = None
        elif self._moving_since is None:
            self._moving_since, self._more_at = at, at + MORE_S
        elif at - self._moving_since > MOVING_S:
            folder = str(self._gateway.configuration.folder)
            log.event("reload-waits", logging.WARNING, folder=folder, problem="it changes all the time")
            self._moving_since = math.inf
        return moving

    async def _take_more(self, now: Stamp, at: float) -> bool:
        """Take what somebody enrolls one after the other, while the folder is not still for it."""
        if at < self._more_at:
            return False
        self._more_at = at + max(MORE_S, MORE_A_FILE_S * len(now))
        if await reload(self._gateway, now, more_alone=True) != ():
            return False
        self._catch_up_at, self._refused, self._again_at = 0.0, (), math.inf
        return True

    async def _take(self, now: Stamp, *, asked: bool) -> bool:
        """Reload. False: the folder is not as `now` any more, so nothing is known of it.

        A refused set is tried again when it changes, and seldom as it is: what it lacks may lie elsewhere.
        """
        problems = await reload(self._gateway, now)
        if problems is None:
            return False
        if asked or problems != self._refused:
            for problem in problems:
                log.event("reload-refused", logging.ERROR, file=problem.file, key=problem.key, problem=problem.problem)
        self._refused = problems
        self._again_at = asyncio.get_running_loop().time() + _seldom_s(now) if problems else math.inf
        if not problems:
            self._catch_up_at = 0.0
            log_restart(self._started, self._gateway.configuration.settings)
        return True

    async def _catch_up(self) -> None:
        """Take in what commands kept while the store was away: nothing tells us when it is back."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._catch_up_at:
            done = await audit.catch_up(self._gateway.store, self._gateway.configuration, behind=self._behind)
            self._behind = not done
            self._catch_up_at = loop.time() + (CATCH_UP_S if done else BEHIND_S)

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(self._poll_s):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True


async def reload(gateway: Gateway, expected: Stamp, *, more_alone: bool = False) -> tuple[Problem, ...] | None:
    """Take the configuration anew; a bad one keeps the old, and its problems are returned.

    None: the folder was not as `expected` before and after it was read, or something but more enrollments is new in it.
    """
    before = gateway.configuration
    try:
        configuration = await asyncio.to_thread(load_configuration, before.file, before)
        if configuration.stamp == MOVING or (configuration.folder == before.folder and configuration.stamp != expected):
            return None
        if more_alone and not _is_more(before, configuration):
            return None
        prepared = gateway.prepare(configuration)
        gateway.keys.replace(configuration.settings)
    except ConfigError as error:
        problems = tuple(error.problems)
    except Exception as error:  # noqa: BLE001 (whatever a new file holds, the old configuration goes on)
        problems = (Problem(str(before.file), "", type(error).__name__, "report it"),)
    else:
        gateway.configuration = prepared
        log.event("reloaded", sources=len(configuration.sources), enrolled=len(configuration.enrolled))
        log_inactive(configuration)
        return ()
    return problems if await asyncio.to_thread(folder_stamp, before.folder) == expected else None


def _is_more(before: Configuration, now: Configuration) -> bool:
    known = {one.subscription.digest: one for one in now.enrolled}
    kept = all(known.get(one.subscription.digest) == one for one in before.enrolled)
    return kept and now.settings == before.settings and len(known) > len(before.enrolled)


def log_restart(started: Settings, now: Settings) -> None:
    """Say what the file asks for and this process cannot take while it runs."""
    if keys := needs_restart(started, now):
        log.event("reload-needs-restart", logging.WARNING, keys=keys)


def needs_restart(started: Settings, now: Settings) -> list[str]:
    """Return the keys that are read at start alone and differ from those of the start."""
    return [".".join(path) for path in AT_START if _at(started, path) != _at(now, path)]


def _at(settings: Settings, path: Sequence[str]) -> Any:
    value: Any = settings
    for name in path:
        value = getattr(value, name)
    return value


def log_inactive(configuration: Configuration) -> None:
    """Say what is enrolled and cannot be active, and why."""
    for one, reason in configuration.index.inactive:
        log.event("subscription-inactive", logging.WARNING, digest=one.subscription.digest, reason=reason)
