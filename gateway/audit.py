"""The audit trail: every action of an operator, with who and when. Append-only, in the store, and as a log line.

Call `note` from a command, `record` where a store is open already. An action that cannot be written down is not done:
both raise Unavailable, so call them before the action, or in the same breath and let the failure be seen.
"""

import asyncio
import time
from typing import Any

from gateway import log
from gateway.settings import Configuration, operator
from gateway.storage import opened
from gateway.store import Store

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


async def record(store: Store, action: str, who: str | None = None, **fields: Any) -> dict[str, Any]:
    """Append one action. `fields` are ids and slugs: no secret, no text that came from a delivery."""
    if action not in ACTIONS:
        raise ValueError(f"{action} is no action of an operator")
    entry = {"at": round(time.time(), 3), "who": who or operator(), "action": action, **fields}
    entry = {name: value for name, value in entry.items() if value is not None}
    await store.write_audit(entry)
    log.event("audit", **entry)
    return entry


def note(configuration: Configuration, action: str, who: str | None = None, **fields: Any) -> dict[str, Any]:
    """Append one action from a command that has no store open (not from inside an event loop)."""

    async def write() -> dict[str, Any]:
        async with opened(configuration) as store:
            return await record(store, action, who, **fields)

    return asyncio.run(write())
