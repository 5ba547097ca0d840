"""The audit trail: every action of an operator, with who and when. Append-only, in the store, and as a log line.

Call `note` from a command, `record` where a store is open already, and either before the action: one that cannot be
written down is not done.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gateway import log
from gateway.configuration import Base, Configuration
from gateway.environment import operator
from gateway.errors import ConfigError, Unavailable
from gateway.storage import never_started, opened
from gateway.store import Store, uuid7

KEPT = "audit-kept.jsonl"  # beside the enrollments
UNREADABLE = "audit-unreadable.jsonl"
CLAIM_S = 60.0
NAME_CHARS = 200
ACTIONS = frozenset(
    {
        "enroll",
        "revoke",
        "mode",
        "answer",
        "replay",
        "dead-replay",
        "dead-discard",
        "wire",
        "reconcile",
        "login",
        "test",
    }
)


def plain(name: str) -> str:
    """A name that cannot pass for another line of a listing, nor steer the terminal that shows it."""
    return "".join(one if one.isprintable() else "?" for one in name)[:NAME_CHARS]


def _entry(action: str, who: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    if action not in ACTIONS:
        raise ValueError(f"{action} is no action of an operator")
    entry = {"at": round(time.time(), 3), "who": plain(who or operator()), "action": action, **fields}
    return {name: value for name, value in entry.items() if value is not None}


async def record(store: Store, action: str, who: str | None = None, **fields: Any) -> dict[str, Any]:
    """Append one action. `fields` are ids and slugs: no secret, no text that came from a delivery."""
    entry = _entry(action, who, fields)
    await store.write_audit(entry)
    log.event("audit", **entry)
    return entry


async def _nothing(_: Store) -> None:
    """Nothing else is done with the store."""


def note_or_keep(
    base: Base, action: str, who: str | None = None, then: Callable[[Store], Awaitable[None]] = _nothing, **fields: Any
) -> bool:
    """Append one action of a command that needs no store; where none answers, keep it beside the enrollments for later.

    `take_kept` moves what was kept into the trail. An embedded store that was never started is not started for this.
    `then` is done with the store that took it; False: none did.
    """

    async def work() -> None:
        async with opened(base) as store:
            await record(store, action, who, **fields)
            await then(store)

    if not never_started(base):
        with contextlib.suppress(Unavailable, ConfigError):
            asyncio.run(work())
            return True
    folder = base.folder
    line = json.dumps(_entry(action, who, fields), separators=(",", ":")) + "\n"
    while not _keep(folder / KEPT, line.encode()):
        pass  # it was claimed while we waited for it: the next one is new
    return False


def _keep(path: Path, line: bytes) -> bool:
    """Append a line whole or not at all, with the file to ourselves. False: it is not the kept one any more."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return False
        except FileNotFoundError:
            return False
        before = file.seek(0, os.SEEK_END)
        try:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)  # no half of a line is left for who reads it
            raise
    return True


async def take_kept(store: Store, base: Base | Configuration) -> int:
    """Move what commands kept while the store was away into the trail; returns how many.

    The file is claimed by renaming it. A claim whose owner died is taken again: an entry may then stand twice, never not.
    """
    folder = base.folder
    taken = 0
    for path in sorted(folder.glob(KEPT + "*")):
        claim = folder / f"{KEPT}.{uuid7()}"
        try:
            if path.name != KEPT and time.time() - path.stat().st_ctime < CLAIM_S:
                continue
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a command may be writing: then the next time
                path.rename(claim)
                text = file.read().decode(errors="replace")
        except OSError:  # another process was first, or the folder is read-only for us
            continue
        for line in text.removesuffix("\n").split("\n"):
            entry = _read(line)
            if entry is None:
                log.event("audit-line-unreadable", logging.ERROR, file=str(folder / UNREADABLE))
                with (folder / UNREADABLE).open("a", encoding="utf-8") as aside:
                    aside.write(line + "\n")
                continue
            await store.write_audit(entry)
            await _follow(store, entry)
            taken += 1
        claim.unlink()
    return taken


async def _follow(store: Store, entry: Mapping[str, Any]) -> None:
    """End an earlier revocation of what was enrolled while the store was away."""
    match entry:
        case {"action": "enroll", "subscription": str(digest), "at": int(at) | float(at)}:
            await store.forget_revoked(at, only=[digest])


def _read(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and {"at", "who", "action"} <= entry.keys() else None


async def follow_modes(store: Store, configuration: Configuration) -> None:
    """Note every mode that differs from what it was when some process last looked: files are edited, restarts happen."""
    known = await store.modes()
    for one in configuration.enrolled:
        digest = one.subscription.digest
        before = known.pop(digest, "auto")
        # Of several processes that notice at once, one writes it down.
        if before != one.mode and await store.remember_first(f"mode-seen:{digest}:{one.mode}", "1", 10):
            await record(
                store,
                "mode",
                f"configuration, seen by {operator()}",
                subscription=digest,
                before=before,
                after=one.mode,
            )
    await store.set_modes({one.subscription.digest: one.mode for one in configuration.enrolled if one.mode != "auto"})


async def catch_up(store: Store, configuration: Configuration, *, behind: bool = False) -> bool:
    """What a server does at its start, after a reload, and now and then. False: the store was away, or had a fault.

    A caller that is `behind` has been told so: it is not said again.
    """
    try:
        await store.ping()  # first: what is claimed in vain waits for `CLAIM_S`
        await take_kept(store, configuration)
        await follow_modes(store, configuration)
    except Unavailable as error:
        if not behind:
            log.event("audit-behind", logging.WARNING, reason=error.reason)
    except Exception:  # noqa: BLE001 (a kept file that cannot be read or removed must neither end the server nor stay unseen)
        if not behind:
            log.LOGGER.exception("audit-bug", extra={"event": "audit-bug"})
    else:
        return True
    return False
