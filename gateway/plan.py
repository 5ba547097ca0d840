"""The plan of a source: what its profile says of reading a delivery, parsed once.

Every part of a profile (a pointer, a fact, a header, a condition, a shape) becomes a function of one body or item.
What decides with them is `events`.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from gateway import pointers, strict_json
from gateway.pointers import MISSING, resolve
from gateway.profiles import Condition, Handshake, Shape, Source
from gateway.structs import Value
from gateway.verify import VerifiedDelivery

HEADER: Final = "header:"
_DIGEST: Final = "digest:"
_BODY_DIGEST: Final = "body-digest"


class ItemEvidence:
    """One body or item beside its delivery: what a profile's parts are read from."""

    __slots__ = ("document", "facts", "name", "plan", "raw", "verified", "whole")

    def __init__(self, verified: VerifiedDelivery, plan: "Plan", document: Any, *, whole: bool = True) -> None:
        self.verified, self.plan, self.document, self.whole = verified, plan, document, whole
        self.raw = verified.raw
        self.facts: dict[str, str] = dict(verified.facts)
        for name, read_fact in plan.facts:
            fact = as_text(read_fact(self))
            if fact is not None and not strict_json.has_surrogate(fact):
                self.facts[name] = fact
        self.name = _event_name(self, plan.names)

    def digest(self) -> str:
        """Return the digest of the signed bytes; items of one batch share those, so each has a digest of its own."""
        return hashlib.sha256(self.raw.body).hexdigest() if self.whole else _digest(self.document)


Reader: TypeAlias = Callable[[ItemEvidence], Any]
Check: TypeAlias = Callable[[ItemEvidence], bool]


def signed(part: str) -> Reader:
    """Return what reads a pointer or fact, MISSING where there is none. A header is no evidence."""
    if part.startswith("@"):
        fact = part[1:]
        return lambda evidence: evidence.facts.get(fact, MISSING)
    if part == "" or part.startswith("/"):
        tokens = pointers.parse(part)
        return lambda evidence: resolve(evidence.document, tokens)
    return lambda _: MISSING


def claimed(part: str) -> Reader:
    """Return what reads a part that may also be a header: what its sender says, until something agrees."""
    if not part.startswith(HEADER):
        return signed(part)
    name = part.removeprefix(HEADER)

    def read_header(evidence: ItemEvidence) -> Any:
        sent = evidence.raw.header(name)
        return MISSING if sent is None else sent.decode("latin-1")

    return read_header


def _all_of(required: Iterable[str], forbidden: Iterable[str], equals: Mapping[str, str | int | bool]) -> Check:
    """Return the check that members are there, are not, and have a value. An explicit null carries nothing, so it is not."""
    there, absent = _presence(required), _presence(forbidden)
    values = [(signed(pointer), wanted) for pointer, wanted in equals.items()]

    def check(evidence: ItemEvidence) -> bool:
        return (
            there(evidence, True)
            and absent(evidence, False)
            and (not values or all(_same(reader(evidence), wanted) for reader, wanted in values))
        )

    return check


def _presence(parts: Iterable[str]) -> Callable[[ItemEvidence, bool], bool]:
    """Return what tells whether all of the parts are there, or all are not."""
    listed = tuple(parts)
    keys = [tokens[0] for part in listed if part.startswith("/") and len(tokens := pointers.parse(part)) == 1]
    readers = [signed(part) for part in listed]
    if len(keys) < len(listed):
        return lambda evidence, wanted: all([_there(reader(evidence)) is wanted for reader in readers])  # noqa: C419

    def check(evidence: ItemEvidence, wanted: bool) -> bool:
        document = evidence.document
        if not isinstance(document, dict):
            return all([_there(reader(evidence)) is wanted for reader in readers])  # noqa: C419
        return all([(document.get(key) is not None) is wanted for key in keys])  # noqa: C419

    return check


def _there(found: Any) -> bool:
    return found is not MISSING and found is not None


def _condition(condition: Condition) -> Check:
    """Return the check that all that a condition states is so; one that states nothing never holds."""
    if condition == Condition():
        return lambda _: False
    event, rest = condition.event, _all_of(condition.present, (), condition.equals)
    if event is None:
        return rest
    if not condition.present and not condition.equals:
        return lambda evidence: evidence.name == event
    return lambda evidence: evidence.name == event and rest(evidence)


def _shape(shape: Shape) -> Check:
    return _all_of(shape.required, shape.forbidden, shape.equals)


class NamePart(Value):
    """One part of a native event's name. `dotless`: an unsigned `issues.opened` must not stand for header and signed action both."""

    read: Reader
    optional: bool
    dotless: bool


class IdPart(Value):
    """One part of a delivery id. `hashed`: any text will do, since what is composed of it is hashed; a header's never."""

    read: Reader
    optional: bool
    hashed: bool


class Plan(Value):
    """A source's profile, its parts compiled and without what this source has no use for."""

    source: Source
    sent_at: Callable[[Any], Any] | None  # a time inside the body
    facts: tuple[tuple[str, Reader], ...]
    names: tuple[tuple[NamePart, ...], ...]
    handshakes: tuple[tuple[Handshake, Check], ...]  # signed ones: one with a query is answered before the proof
    tests: tuple[Check, ...]
    lifecycle: Check | None
    claim: Reader | None
    claim_equals: Reader | None
    shapes: Mapping[str, Check]
    refused: tuple[tuple[str, Check], ...]
    identity: tuple[tuple[Reader, tuple[str, ...]], ...]
    id_agree: tuple[IdPart, ...]
    ids: tuple[tuple[IdPart, ...], ...]
    actors: tuple[Reader, ...]
    ttl_s: int


@lru_cache(maxsize=4096)
def plan_of(source: Source) -> Plan:
    """Return the plan of a source, made at its first delivery."""
    profile, spec, freshness = source.profile, source.profile.event, source.profile.freshness
    in_body = pointers.parse(freshness.at) if freshness is not None and freshness.at.startswith("/") else None
    return Plan(
        source=source,
        sent_at=None if in_body is None else lambda document: resolve(document, in_body),
        facts=tuple((name, signed(part)) for name, part in profile.facts.items()),
        names=tuple(_name_parts(parts) for parts in (spec.parts, *spec.alternatives)),
        handshakes=tuple(
            (shake, _condition(shake.when))
            for shake in profile.handshakes
            if not shake.unauthenticated and shake.query is None
        ),
        tests=tuple(map(_condition, profile.tests)),
        lifecycle=None if profile.lifecycle is None else _condition(profile.lifecycle),
        claim=None if spec.header is None else claimed(HEADER + spec.header),
        claim_equals=None if spec.header_equals is None else signed(spec.header_equals),
        shapes={name: _shape(shape) for name, shape in spec.shapes.items()},
        refused=tuple((reason, _condition(condition)) for reason, condition in profile.refused.items()),
        identity=tuple(
            (signed(part), source.identity.get(name) or ())
            for name, part in profile.identity.items()
            if source.identity.get(name) is not None or name not in profile.identity_optional
        ),
        id_agree=tuple(_id_part(part, hashed=False) for part in profile.delivery_id.agree),
        ids=tuple(map(_id_parts, profile.delivery_id.parts)),
        actors=tuple(map(signed, profile.actors)) if source.self_ids else (),
        ttl_s=_ttl_s(source),
    )


def _name_parts(parts: Sequence[str]) -> tuple[NamePart, ...]:
    return tuple(
        NamePart(claimed(part.removesuffix("?")), part.endswith("?"), len(parts) > 1 and part.startswith(HEADER))
        for part in parts
    )


def _id_parts(parts: Sequence[str]) -> tuple[IdPart, ...]:
    composed = any(part.endswith("?") or part == _BODY_DIGEST or part.startswith(_DIGEST) for part in parts)
    return tuple(_id_part(part, hashed=composed and not part.startswith(HEADER)) for part in parts)


def _id_part(text: str, *, hashed: bool) -> IdPart:
    part = text.removesuffix("?")
    if part == _BODY_DIGEST:
        reader: Reader = ItemEvidence.digest
    elif part.startswith(_DIGEST):
        reader = _digest_of(part.removeprefix(_DIGEST))
    else:
        reader = claimed(part)
    return IdPart(reader, text.endswith("?"), hashed)


def _digest_of(text: str) -> Reader:
    """Return what digests the value at a pointer, where it is an object optionally without one of its members."""
    pointer, _, without = text.partition(" without ")
    reader = signed(pointer)

    def digest(evidence: ItemEvidence) -> Any:
        found = reader(evidence)
        if isinstance(found, dict) and without:
            found = {key: inner for key, inner in found.items() if key != without}
        return MISSING if found is MISSING or found is None else _digest(found)

    return digest


def as_text(value: Any) -> str | None:
    """Return a nonempty string as it is and an integer in decimal; anything else names nothing."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value's one JSON form (sorted, ASCII): any decoded JSON has it, lone surrogates too."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _event_name(evidence: ItemEvidence, alternatives: Iterable[Sequence[NamePart]]) -> str | None:
    """Return the native event's name, None where neither header nor body says it."""
    for parts in alternatives:
        texts: list[str] = []
        for part in parts:
            text = part.read(evidence)
            if isinstance(text, str) and text and not (part.dotless and "." in text):
                texts.append(text)
            elif not part.optional:
                break
        else:
            return ".".join(texts) or None
    return None


def _same(value: Any, wanted: str | int | bool) -> bool:
    """Compare type and value: `0` is not `false`."""
    return type(value) is type(wanted) and bool(value == wanted)


def _ttl_s(source: Source) -> int:
    """Return how long a key is kept: at least twice the window, since a time may lie ahead of us as far as behind."""
    window_s = 0.0 if source.freshness_s is None or source.profile.freshness is None else source.freshness_s
    return max(source.profile.delivery_id.ttl_s, math.ceil(2 * window_s))
