"""Enrollments that no delivery can reach: the grant and the source's identity name different tenants.

A profile says where a delivery names its tenant (`identity`), a declaration where it reads what a grant must hold
(`normalize`). Where both look at the same member, a value has to be in both.
"""

from collections.abc import Iterator

from gateway.profiles import Profile, Source
from gateway.subscriptions import Enrolled
from gateway.triggers import Trigger

SHOWN = 3


def unreachable(one: Enrolled, source: Source | None) -> str | None:
    """Say why a trigger of the enrollment can never match on its source, naming both keys; None where each can."""
    if source is None:
        return None
    told: dict[str, list[str]] = {}
    for name, trigger in one.subscription.triggers.items():
        for identity, collection in _same(trigger, source.profile):
            granted = {str(value) for _, value in one.subscription.grants[collection]}
            wanted = set(source.identity.get(identity, ())) or granted  # an optional one that is not set binds nothing
            if granted.isdisjoint(wanted):
                keys = f"grants.{collection} ({_some(granted)})"
                keys += f" and sources.{source.name}.identity.{identity} ({_some(wanted)}) have nothing in common"
                told.setdefault(keys, []).append(name)
    return "; ".join(f"{keys}, so it never matches: {', '.join(names)}" for keys, names in told.items()) or None


def _same(trigger: Trigger, profile: Profile) -> Iterator[tuple[str, str]]:
    """Identities and collections that are read from the same place in every shape of the trigger."""
    places = {
        identity: {_place(part, profile) for part in (at, *profile.identity_same.get(identity, ()))}
        for identity, at in profile.identity.items()
    }
    for resource, collection in trigger.resources.items():
        read = {_place(form.normalize.get(resource, ""), profile) for form in trigger.forms}
        yield from ((identity, collection) for identity, known in places.items() if read and read <= known)


def _place(part: str, profile: Profile) -> str:
    """A fact that is a member by another name is that member."""
    return profile.facts.get(part[1:], part) if part.startswith("@") else part


def _some(values: set[str]) -> str:
    shown = sorted(values)[:SHOWN]
    return ", ".join(shown) + (", ..." if len(values) > SHOWN else "")
