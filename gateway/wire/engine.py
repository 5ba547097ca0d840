"""Compare what should stand at a provider with what does, and mend it. Running it twice changes nothing the second time.

A provider never shows a hook's secret. What was set is remembered as a keyed digest, so that a rotation is noticed as
drift; a hook that we did not make has an unknown secret, which is set once. What is found beyond what is wanted is
reported and left alone: it may be somebody else's.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gateway.wire.api import Api
from gateway.wire.types import Difference, Found, Hook, Provider, Row, Want

MARK_S = 400 * 86_400
RENEW_AT = 1 / 3  # of the life, remaining
BAD = frozenset({"missing", "drifted", "surplus"})


class Marks(Protocol):
    """What the engine wants of a store."""

    async def recall(self, name: str) -> str | None:
        """Return a remembered fact."""
        ...

    async def remember(self, name: str, value: str, ttl_s: int) -> None:
        """Keep a fact."""
        ...


def fingerprint(secret: str, key: bytes) -> str:
    """A digest of a hook's secret that says nothing without the App's key."""
    return hmac.digest(hashlib.sha256(key).digest(), secret.encode(), hashlib.sha256).hex()[:32]


def mark_name(source: str, scope: str) -> str:
    """The name of the fact that says what was set where."""
    return f"wire:{source}:{scope}"


async def look(provider: Provider, api: Api, want: Want, marks: Marks, key: bytes, now: float) -> list[Row]:
    """Report every hook that should stand, and those that stand beyond them. Changes nothing."""
    hooks = provider.desired(want)
    found = await provider.find(api, want, hooks)
    known: dict[str, list[Found]] = {}
    for one in found:
        known.setdefault(one.scope, []).append(one)
    rows = []
    for hook in hooks:
        stand = sorted(known.pop(hook.scope, []), key=lambda one: (_differs(hook, one), one.id))
        if not stand:
            rows.append(Row(hook.scope, "missing", hook=hook))
            continue
        mark = await marks.recall(mark_name(want.source, hook.scope))
        rows.append(_row(provider, hook, stand[0], _secret_differs(mark, stand[0], want, key), now))
        rows += [Row(one.scope, "surplus", one.id, expires=one.expires) for one in stand[1:]]
    rows += [Row(one.scope, "surplus", one.id, expires=one.expires) for rest in known.values() for one in rest]
    return rows


def _differs(hook: Hook, found: Found) -> bool:
    return any(found.fields.get(name) != value for name, value in hook.fields.items())


def _secret_differs(mark: str | None, found: Found, want: Want, key: bytes) -> bool | None:
    """None: it is not known what was set."""
    ident, _, digest = (mark or "").partition(" ")
    if ident != found.id:
        return None
    return not hmac.compare_digest(digest, fingerprint(want.secret, key))


def _row(provider: Provider, hook: Hook, found: Found, secret: bool | None, now: float) -> Row:
    differences = [
        Difference(name, found.fields.get(name), value)
        for name, value in hook.fields.items()
        if found.fields.get(name) != value
    ]
    if secret is not False:
        differences.append(Difference("secret", "another one" if secret else "unknown", "the source's first"))
    drifted = any(difference.have != "unknown" for difference in differences)
    expiring = provider.life_s is not None and found.expires is not None and due(found.expires, provider.life_s, now)
    state: Any = "drifted" if drifted else "expiring" if expiring else "good"
    return Row(hook.scope, state, found.id, tuple(differences), found.expires, hook)


def due(expires: float, life_s: float, now: float) -> bool:
    """Whether two thirds of a life are over."""
    return expires - now <= life_s * RENEW_AT


async def apply(
    provider: Provider, api: Api, want: Want, rows: Sequence[Row], marks: Marks, key: bytes, now: float
) -> list[Row]:
    """Make, mend and renew what `look` reported; return the rows as they are now."""
    return [await _mend(provider, api, want, row, marks, key, now) for row in rows]


async def _mend(provider: Provider, api: Api, want: Want, row: Row, marks: Marks, key: bytes, now: float) -> Row:
    if row.hook is None or (row.state == "good" and not row.differences):
        return row
    if row.id is None:
        made = await provider.create(api, want, row.hook, now)
    elif row.state == "expiring" and not row.differences and provider.renew is not None:
        made = await provider.renew(api, Found(row.id, row.scope, {}), now)
    else:
        changed = frozenset(difference.name for difference in row.differences)
        standing = Found(row.id, row.scope, _have(row))
        made = await provider.update(api, want, row.hook, standing, changed, now)
    await marks.remember(mark_name(want.source, row.scope), f"{made.id} {fingerprint(want.secret, key)}", MARK_S)
    after = _row(provider, row.hook, made, secret=False, now=now)
    done: Any = "created" if row.id is None else "renewed" if row.state == "expiring" else "updated"
    return replace(after, done=done)


def _have(row: Row) -> Mapping[str, Any]:
    assert row.hook is not None  # rows without one are left alone
    return {**row.hook.fields, **{difference.name: difference.have for difference in row.differences}}
