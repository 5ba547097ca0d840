"""Compare what should stand at a provider with what does, and mend it. Running it twice changes nothing the second time.

A provider never shows a hook's secret. What was set is remembered as a keyed digest, so that a rotation is noticed as
drift; a hook that we did not make has an unknown secret, which is set once. What is found beyond what is wanted is
reported and left alone: it may be somebody else's.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from gateway.structs import replace
from gateway.wire.api import Api, WireRefused
from gateway.wire.types import Difference, Found, Hook, Provider, Row, Want

MARK_S = 400 * 86_400
RENEW_AT = 1 / 3  # of the life, remaining
BAD = frozenset({"missing", "drifted", "surplus"})
T = TypeVar("T")


class Marks(Protocol):
    """What the engine wants of a store."""

    async def recall(self, name: str) -> str | None:
        """Return a remembered fact."""
        ...

    async def remember(self, name: str, value: str, ttl_s: int) -> None:
        """Keep a fact."""
        ...

    async def forget(self, name: str) -> None:
        """Forget a fact."""
        ...


async def answered(call: Awaitable[T], provider: Provider) -> T:
    """What a provider's module makes of an answer. One that is not built as its API says is a refusal, not a defect of ours."""
    try:
        return await call
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise WireRefused(
            200,
            f"the API of {provider.title}",
            f"the answer is not built as its documents say ({type(error).__name__})",
        ) from None


def fingerprint(secret: str, key: bytes) -> str:
    """A digest of a hook's secret that says nothing without the App's key."""
    return hmac.digest(hashlib.sha256(key).digest(), secret.encode(), hashlib.sha256).hex()[:32]


def mark_name(source: str, scope: str) -> str:
    """The name of the fact that says what was set where."""
    return f"wire:{source}:{scope}"


def old_name(source: str, scope: str) -> str:
    """The name of the fact that says which hooks of ours are being replaced: they go once another stands."""
    return f"wire-old:{source}:{scope}"


async def look(provider: Provider, api: Api, want: Want, marks: Marks, key: bytes, now: float) -> list[Row]:
    """Report every hook that should stand, and those that stand beyond them. Changes nothing."""
    hooks = provider.desired(want)
    known: dict[str, list[Found]] = {}
    marks_of = {hook.scope: await marks.recall(mark_name(want.source, hook.scope)) for hook in hooks}
    for one in await answered(provider.find(api, want, hooks), provider):
        # A hook of ours whose address was changed is ours to mend, not to make a second one beside it.
        if one.fields.get("url", want.url) == want.url or one.id == (marks_of.get(one.scope) or "").partition(" ")[0]:
            known.setdefault(one.scope, []).append(one)
    rows = []
    for hook in hooks:
        stand = sorted(known.pop(hook.scope, []), key=lambda one: (_differs(hook, one), one.id))
        if not stand:
            rows.append(Row(hook.scope, "missing", hook=hook))
            continue
        mark = marks_of[hook.scope]
        old = (await marks.recall(old_name(want.source, hook.scope)) or "").split()
        stand.sort(key=lambda one: one.id in old)  # what is being replaced gives way
        rows.append(_row(provider, hook, stand[0], _secret_differs(mark, stand[0], want, key), now))
        rows += [Row(one.scope, "surplus", one.id, expires=one.expires, replaced=one.id in old) for one in stand[1:]]
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


def to_do(provider: Provider, row: Row) -> bool:
    """Whether wiring changes something of a row. What the API cannot set is reported and left."""
    mendable = any(difference.name not in provider.beyond for difference in row.differences)
    return row.replaced or (row.hook is not None and (mendable or row.state in ("missing", "expiring")))


async def _mend(provider: Provider, api: Api, want: Want, row: Row, marks: Marks, key: bytes, now: float) -> Row:
    if row.replaced and row.id is not None and provider.remove is not None:
        await answered(provider.remove(api, row.id), provider)
        return replace(row, done="removed")
    if not to_do(provider, row) or row.hook is None:
        return row
    changed = frozenset(difference.name for difference in row.differences)
    replacing = row.id is not None and bool(changed & provider.fixed)
    if replacing:  # written down first: a run that is killed in between leaves no second hook for ever
        name = old_name(want.source, row.scope)
        await marks.remember(name, f"{await marks.recall(name) or ''} {row.id}".strip(), MARK_S)
    done: Any
    if row.id is None or replacing:
        made, done = await answered(provider.create(api, want, row.hook, now), provider), "created"
    elif row.state == "expiring" and not row.differences and provider.renew is not None:
        made, done = await renew(provider, api, row, now), "renewed"
    else:
        standing = Found(row.id, row.scope, _have(row))
        made, done = await answered(provider.update(api, want, row.hook, standing, changed, now), provider), "updated"
    await marks.remember(mark_name(want.source, row.scope), f"{made.id} {fingerprint(want.secret, key)}", MARK_S)
    if replacing and row.id is not None and provider.remove is not None:
        await answered(provider.remove(api, row.id), provider)
        await marks.forget(old_name(want.source, row.scope))
    after = _row(provider, row.hook, made, secret=False, now=now)
    return replace(after, done="replaced" if replacing else done)


async def renew(provider: Provider, api: Api, row: Row, now: float) -> Found:
    """Extend the life of a hook that stands."""
    assert provider.renew is not None  # only asked of providers whose hooks expire
    assert row.id is not None
    return await answered(provider.renew(api, Found(row.id, row.scope, {}), now), provider)


def _have(row: Row) -> Mapping[str, Any]:
    assert row.hook is not None  # rows without one are left alone
    return {**row.hook.fields, **{difference.name: difference.have for difference in row.differences}}
