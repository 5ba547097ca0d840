"""Explain a saved delivery: what would become of it, and for each enrolled trigger the first test that was not true.

Offline and without secrets: the proof and the times are taken as good, and so is what only a header says where the
headers were not saved. Nothing that is made here is dispatched, and no value of the delivery stands in it.
"""

from collections.abc import Container, Mapping
from typing import Any, Final

from gateway import pointers, strict_json
from gateway.delivery import Outcome, RawDelivery
from gateway.envelope import EnvelopeEvent
from gateway.errors import Rejection
from gateway.events import UNDECLARED, Event, Reading, read
from gateway.match import Considered, match_trigger
from gateway.pointers import MISSING
from gateway.profiles import Profile, Shape, Source
from gateway.structs import Value, replace
from gateway.subscriptions import Enrolled, Index
from gateway.triggers import Trigger
from gateway.verify import assumed

EVENT: Final = "event"  # the test that a trigger of another native event fails
_PLACEHOLDER_ID: Final = "00000000-0000-4000-8000-000000000000"


class Explanation(Value):
    """What would become of a delivery. `considered` holds (item of the batch, what became of the trigger there)."""

    outcome: Outcome
    reason: str | None
    considered: tuple[tuple[int, Considered], ...] = ()
    inactive: Mapping[str, str] | None = None  # digest to reason, of the source's enrollments that are not active
    supplied: tuple[str, ...] = ()  # headers that were not saved and stand here for what the provider sends

    def to_json(self) -> list[dict[str, Any]]:
        """One object a trigger."""
        return [
            {
                "digest": one.digest,
                "trigger": one.trigger,
                "item": item,
                "matched": one.matched,
                "test": one.test,
                "pointer": one.pointer,
            }
            for item, one in self.considered
        ]


def explain(raw: RawDelivery, source: Source, index: Index) -> Explanation:
    """Explain `raw`, whose headers may be partly or wholly missing. Raises nothing for what stands in a delivery."""
    inactive = {one.subscription.digest: reason for one, reason in index.inactive if one.source == source.name}
    supplied: tuple[str, ...] = ()
    try:
        raw, added = completed(raw, source.profile, index.wanted(source.name))
        supplied = tuple(added)
        verified = assumed(raw, source)
        reading = read(verified, source, index.wanted(source.name), _time_of(raw, source.profile))
    except Rejection as error:
        return Explanation(Outcome.REJECTED, error.reason, (), inactive, supplied)
    if reading.handshake is not None or reading.test:
        reason = "challenge" if reading.handshake is not None else "provider-test"
        return Explanation(Outcome.HANDSHAKE, reason, (), inactive, supplied)
    considered = [(item, one) for item, event in enumerate(reading.events) for one in consider(event, source, index)]
    if not reading.events and UNDECLARED in reading.ignored:
        considered = [
            (0, _other_event(enrolled.subscription.digest, trigger.name, source.profile))
            for enrolled, trigger in index.listed(source.name)
        ]
    return Explanation(*_outcome(reading, considered), tuple(considered), inactive, supplied)


def consider(event: Event, source: Source, index: Index) -> tuple[Considered, ...]:
    """Hold one event against every active trigger of its source."""
    return tuple(_consider(event, enrolled, trigger, source.profile) for enrolled, trigger in index.listed(source.name))


def _consider(event: Event, enrolled: Enrolled, trigger: Trigger, profile: Profile) -> Considered:
    digest = enrolled.subscription.digest
    if event.name not in trigger.native_events:
        return _other_event(digest, trigger.name, profile)
    result = match_trigger(event, enrolled, trigger)
    if isinstance(result, EnvelopeEvent):
        return Considered(digest, trigger.name, matched=True)
    return Considered(digest, trigger.name, False, result.test, result.pointer)


def _other_event(digest: str, trigger: str, profile: Profile) -> Considered:
    return Considered(digest, trigger, False, EVENT, ", ".join(profile.event.parts))


def _outcome(reading: Reading, considered: list[tuple[int, Considered]]) -> tuple[Outcome, str | None]:
    """Sum up as the receiver does. Whether an id was seen before is not known here."""
    if any(one.matched for _, one in considered):
        return Outcome.FORWARDED, None
    if reading.events:
        return Outcome.IGNORED, "no-match"
    if reading.ignored:
        return Outcome.IGNORED, reading.ignored[0]
    if reading.rejected:
        return Outcome.REJECTED, reading.rejected[0][1]
    return Outcome.IGNORED, "no-match"


def _time_of(raw: RawDelivery, profile: Profile) -> float:
    """Return the time that the body itself states where it is judged by one: a saved delivery is old."""
    freshness = profile.freshness
    if freshness is None or not freshness.at.startswith("/"):
        return raw.received_at
    sent = pointers.resolve(strict_json.loads(raw.body), pointers.parse(freshness.at))
    if not isinstance(sent, int) or isinstance(sent, bool):
        return raw.received_at
    return sent / (1000 if freshness.unit == "ms" else 1)


# ---- headers that were not saved --------------------------------------------------------------------------------------


def completed(raw: RawDelivery, profile: Profile, wanted: Container[str]) -> tuple[RawDelivery, Mapping[str, str]]:
    """Add headers that were not saved: the event's, where the body's shape leaves no doubt, and a delivery id's.

    Returns them too. Raises Rejection for a body that is no JSON.
    """
    added: dict[str, str] = {}
    header = profile.event.header
    if header is not None and profile.event.shapes and raw.header(header) is None:
        name = _event_by_shape(raw, profile, wanted)
        if name is not None:
            added[header] = name
    if not any(_all_there(raw, parts) for parts in profile.delivery_id.parts):
        named = [part.removeprefix("header:") for part in profile.delivery_id.parts[0] if part.startswith("header:")]
        added |= {name: _PLACEHOLDER_ID for name in named if name != header and raw.header(name) is None}
    pairs = tuple((name.encode(), value.encode()) for name, value in added.items())
    return replace(raw, headers=(*raw.headers, *pairs)), added


def _all_there(raw: RawDelivery, parts: tuple[str, ...]) -> bool:
    """Tell whether the headers among the parts were saved; the body's members are what they are."""
    return all(raw.header(part.removeprefix("header:")) is not None for part in parts if part.startswith("header:"))


def _event_by_shape(raw: RawDelivery, profile: Profile, wanted: Container[str]) -> str | None:
    """Return the one event that the body's members fit; of several the one that some trigger wants."""
    body = strict_json.loads(raw.body)
    fitting = [name for name, shape in profile.event.shapes.items() if _fits(body, shape)]
    action = pointers.resolve(body, ("action",))
    named = [name for name in fitting if name in wanted or f"{name}.{action}" in wanted]
    found = {name.partition(".")[0] for name in (named or fitting)}
    return found.pop() if len(found) == 1 else None


def _fits(body: Any, shape: Shape) -> bool:
    def there(pointer: str) -> bool:
        return pointers.resolve(body, pointers.parse(pointer)) not in (MISSING, None)

    return (
        all(map(there, shape.required))
        and not any(map(there, shape.forbidden))
        and all(pointers.resolve(body, pointers.parse(at)) == value for at, value in shape.equals.items())
    )
