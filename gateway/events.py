"""The reader: a verified delivery becomes events, in one fixed order, and bad input raises `Rejection` alone.

Order: JSON and its top level, a time inside the body, handshake, test message, notice or undeclared event, the header
against the body's shape, identity, delivery id, own event. So an event that nobody wants is refused for nothing that
only a wanted one needs. A batch is read item by item: what is wrong with one item refuses that item alone. What this
module does not do: prove anything (`verify`), match, or keep state.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from gateway import pointers, strict_json
from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.pointers import MISSING, resolve
from gateway.profiles import Answer, Condition, Handshake, Profile, Shape, Source
from gateway.structs import struct
from gateway.verify import HandshakeAnswer, ItemProof, VerifiedDelivery

MAX_ID_CHARS: Final = 200

UNDECLARED: Final = "undeclared-event"
NOTICE: Final = "notice"
OWN_EVENT: Final = "own-event"
PROVIDER_TEST: Final = "provider-test"
LIFECYCLE: Final = "lifecycle"

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HEADER: Final = "header:"
_DIGEST: Final = "digest:"
_BODY_DIGEST: Final = "body-digest"


@struct
class Event:
    """One authentic native event that some trigger names.

    `body` is the evidence (the decoded body, or a batch's item), `facts` what the proof and the profile established
    (`event` is the native name), `dedupe` one or two opaque texts that must both be new: `id:...` and, where the id is
    outside the proof, `body:` + the digest of the signed bytes (of the item, in a batch). `jti` is a token's single-use
    id and when it ends.
    """

    name: str
    body: Any = field(repr=False)
    facts: Mapping[str, str] = field(repr=False)
    dedupe: tuple[str, ...]
    dedupe_ttl_s: int
    jti: tuple[str, float] | None


@struct
class Reading:
    """What a verified delivery said. Without a handshake or test it is a list of items, one for most providers.

    `ignored` holds a reason for each authentic item that is not dispatched: `undeclared-event`, `notice`, `own-event`,
    `lifecycle`, and in a batch `provider-test`. `rejected` holds index and reason of each refused item of a batch;
    `lifecycle` the notices about a provider's subscription, for renewal.
    """

    handshake: HandshakeAnswer | None = None
    test: bool = False
    events: tuple[Event, ...] = ()
    ignored: tuple[str, ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    lifecycle: tuple[Any, ...] = field(default=(), repr=False)


def read(verified: VerifiedDelivery, source: Source, wanted: Container[str], now: float) -> Reading:
    """Read the events of `verified` that are in `wanted` (native event names); raises Rejection and nothing else.

    1. Decode: a form body's one field `payload`, strict JSON, the top level that the profile names (400).
    2. Freshness of a time inside the body: `freshness` (401).
    3. A signed handshake is answered, a provider's test message recognized, before the identity.
    4. A notice, or an event that is not in `wanted`, is ignored; its delivery id is not looked at.
    5. The event header against the body's shape: `event-missing`, `event-mismatch` (400).
    6. Identity: the tenant is one that the source names: `identity` (403).
    7. Delivery id: `delivery-id-missing`, `delivery-id-invalid` (400).
    8. An event that we caused ourselves is ignored.
    """
    plan = _plan(source)
    if verified.items is not None:  # decoded while its items were proved
        return _read_items(verified, plan, wanted, verified.items)
    document = _document(verified.raw, source.profile)
    if plan.sent_at is not None:
        _check_freshness(plan.sent_at(document), source, now)
    evidence = _Evidence(verified, plan, document)
    for shake, holds in plan.handshakes:
        if holds(evidence):
            return Reading(handshake=_answer(shake, evidence))
    if source.profile.items is not None:
        return _read_items(verified, plan, wanted, _unproved_items(document, source.profile.items, verified.key))
    outcome = _judge(evidence, wanted)
    if isinstance(outcome, Event):
        return Reading(events=(outcome,))
    if outcome == PROVIDER_TEST:
        return Reading(test=True)
    return Reading(ignored=(outcome,), lifecycle=(document,) if outcome == LIFECYCLE else ())


def _document(raw: RawDelivery, profile: Profile) -> Any:
    body = raw.body
    if profile.body == "json-or-form-payload" and _is_form(raw):
        body = _payload(body)
    document = strict_json.loads(body)
    if not isinstance(document, dict if profile.top == "object" else list):
        raise Rejection("json-shape", 400)
    return document


def _is_form(raw: RawDelivery) -> bool:
    content_type = raw.header("content-type") or b""
    return content_type.partition(b";")[0].strip().lower() == b"application/x-www-form-urlencoded"


def _payload(body: bytes) -> bytes:
    """Decode a form of exactly one field, `payload` (https://url.spec.whatwg.org/#urlencoded-parsing).

    A second field or a broken escape is refused: form decoders differ there, and only one reading was meant.
    """
    name, _, value = body.partition(b"=")
    if name != b"payload" or b"&" in value or _BAD_ESCAPE.search(value):
        raise Rejection("json-syntax", 400)
    return unquote_to_bytes(value.replace(b"+", b" "))


def _check_freshness(sent: Any, source: Source, now: float) -> None:
    """Judge a time that stands inside the signed body; one in a header was judged while verifying."""
    freshness = source.profile.freshness
    if freshness is None or not isinstance(sent, int) or isinstance(sent, bool):
        raise Rejection("freshness", 401)
    window_s = freshness.window_s if source.freshness_s is None else source.freshness_s
    if abs(now - sent / (1000 if freshness.unit == "ms" else 1)) > window_s:
        raise Rejection("freshness", 401)


# --- a profile's texts, parsed once for a source ----------------------------------------------------------------------


class _Evidence:
    """One body or item beside its delivery: what a profile's parts are read from."""

    __slots__ = ("document", "facts", "name", "plan", "raw", "verified", "whole")

    def __init__(self, verified: VerifiedDelivery, plan: "_Plan", document: Any, *, whole: bool = True) -> None:
        self.verified, self.plan, self.document, self.whole = verified, plan, document, whole
        self.raw = verified.raw
        self.facts: dict[str, str] = dict(verified.facts)
        for name, read_fact in plan.facts:
            fact = _text(read_fact(self))
            if fact is not None and not strict_json.has_surrogate(fact):
                self.facts[name] = fact
        self.name = _event_name(self, plan.names)

    def digest(self) -> str:
        """Return the digest of the signed bytes; items of one batch share those, so each has a digest of its own."""
        return hashlib.sha256(self.raw.body).hexdigest() if self.whole else _digest(self.document)


_Reader: TypeAlias = Callable[[_Evidence], Any]
_Check: TypeAlias = Callable[[_Evidence], bool]


def _signed(part: str) -> _Reader:
    """Return what reads a pointer or fact, MISSING where there is none. A header is no evidence."""
    if part.startswith("@"):
        fact = part[1:]
        return lambda evidence: evidence.facts.get(fact, MISSING)
    if part == "" or part.startswith("/"):
        tokens = pointers.parse(part)
        return lambda evidence: resolve(evidence.document, tokens)
    return lambda _: MISSING


def _claimed(part: str) -> _Reader:
    """Return what reads a part that may also be a header: what its sender says, until something agrees."""
    if not part.startswith(_HEADER):
        return _signed(part)
    name = part.removeprefix(_HEADER)

    def read_header(evidence: _Evidence) -> Any:
        sent = evidence.raw.header(name)
        return MISSING if sent is None else sent.decode("latin-1")

    return read_header


def _all_of(required: Iterable[str], forbidden: Iterable[str], equals: Mapping[str, str | int | bool]) -> _Check:
    """Return the check that members are there, are not, and have a value. An explicit null carries nothing, so it is not."""
    there, absent = _presence(required), _presence(forbidden)
    values = [(_signed(pointer), wanted) for pointer, wanted in equals.items()]

    def check(evidence: _Evidence) -> bool:
        return (
            there(evidence, True)
            and absent(evidence, False)
            and (not values or all(_same(reader(evidence), wanted) for reader, wanted in values))
        )

    return check


def _presence(parts: Iterable[str]) -> Callable[[_Evidence, bool], bool]:
    """Return what tells whether all of the parts are there, or all are not."""
    listed = tuple(parts)
    keys = [tokens[0] for part in listed if part.startswith("/") and len(tokens := pointers.parse(part)) == 1]
    readers = [_signed(part) for part in listed]
    if len(keys) < len(listed):
        return lambda evidence, wanted: all([_there(reader(evidence)) is wanted for reader in readers])  # noqa: C419

    def check(evidence: _Evidence, wanted: bool) -> bool:
        document = evidence.document
        if not isinstance(document, dict):
            return all([_there(reader(evidence)) is wanted for reader in readers])  # noqa: C419
        return all([(document.get(key) is not None) is wanted for key in keys])  # noqa: C419

    return check


def _there(found: Any) -> bool:
    return found is not MISSING and found is not None


def _condition(condition: Condition) -> _Check:
    """Return the check that all that a condition states is so; one that states nothing never holds."""
    if condition == Condition():
        return lambda _: False
    event, rest = condition.event, _all_of(condition.present, (), condition.equals)
    if event is None:
        return rest
    if not condition.present and not condition.equals:
        return lambda evidence: evidence.name == event
    return lambda evidence: evidence.name == event and rest(evidence)


def _shape(shape: Shape) -> _Check:
    return _all_of(shape.required, shape.forbidden, shape.equals)


@dataclass(frozen=True, slots=True)
class _NamePart:
    """One part of a native event's name. `dotless`: an unsigned `issues.opened` must not stand for header and signed action both."""

    read: _Reader
    optional: bool
    dotless: bool


@dataclass(frozen=True, slots=True)
class _IdPart:
    """One part of a delivery id. `hashed`: any text will do, since what is composed of it is hashed; a header's never."""

    read: _Reader
    optional: bool
    hashed: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """A source's profile, its parts compiled and without what this source has no use for."""

    source: Source
    sent_at: Callable[[Any], Any] | None  # a time inside the body
    facts: tuple[tuple[str, _Reader], ...]
    names: tuple[tuple[_NamePart, ...], ...]
    handshakes: tuple[tuple[Handshake, _Check], ...]  # signed ones: one with a query is answered before the proof
    tests: tuple[_Check, ...]
    lifecycle: _Check | None
    claim: _Reader | None
    claim_equals: _Reader | None
    shapes: Mapping[str, _Check]
    refused: tuple[tuple[str, _Check], ...]
    identity: tuple[tuple[_Reader, tuple[str, ...]], ...]
    id_agree: tuple[_IdPart, ...]
    ids: tuple[tuple[_IdPart, ...], ...]
    actors: tuple[_Reader, ...]
    ttl_s: int


@lru_cache(maxsize=4096)
def _plan(source: Source) -> _Plan:
    profile, spec, freshness = source.profile, source.profile.event, source.profile.freshness
    in_body = pointers.parse(freshness.at) if freshness is not None and freshness.at.startswith("/") else None
    return _Plan(
        source=source,
        sent_at=None if in_body is None else lambda document: resolve(document, in_body),
        facts=tuple((name, _signed(part)) for name, part in profile.facts.items()),
        names=tuple(_name_parts(parts) for parts in (spec.parts, *spec.alternatives)),
        handshakes=tuple(
            (shake, _condition(shake.when))
            for shake in profile.handshakes
            if not shake.unauthenticated and shake.query is None
        ),
        tests=tuple(map(_condition, profile.tests)),
        lifecycle=None if profile.lifecycle is None else _condition(profile.lifecycle),
        claim=None if spec.header is None else _claimed(_HEADER + spec.header),
        claim_equals=None if spec.header_equals is None else _signed(spec.header_equals),
        shapes={name: _shape(shape) for name, shape in spec.shapes.items()},
        refused=tuple((reason, _condition(condition)) for reason, condition in profile.refused.items()),
        identity=tuple(
            (_signed(part), source.identity.get(name) or ())
            for name, part in profile.identity.items()
            if source.identity.get(name) is not None or name not in profile.identity_optional
        ),
        id_agree=tuple(_id_part(part, hashed=False) for part in profile.delivery_id.agree),
        ids=tuple(map(_id_parts, profile.delivery_id.parts)),
        actors=tuple(map(_signed, profile.actors)) if source.self_ids else (),
        ttl_s=_ttl_s(source),
    )


def _name_parts(parts: Sequence[str]) -> tuple[_NamePart, ...]:
    return tuple(
        _NamePart(_claimed(part.removesuffix("?")), part.endswith("?"), len(parts) > 1 and part.startswith(_HEADER))
        for part in parts
    )


def _id_parts(parts: Sequence[str]) -> tuple[_IdPart, ...]:
    composed = any(part.endswith("?") or part == _BODY_DIGEST or part.startswith(_DIGEST) for part in parts)
    return tuple(_id_part(part, hashed=composed and not part.startswith(_HEADER)) for part in parts)


def _id_part(text: str, *, hashed: bool) -> _IdPart:
    part = text.removesuffix("?")
    if part == _BODY_DIGEST:
        reader: _Reader = _Evidence.digest
    elif part.startswith(_DIGEST):
        reader = _digest_of(part.removeprefix(_DIGEST))
    else:
        reader = _claimed(part)
    return _IdPart(reader, text.endswith("?"), hashed)


def _digest_of(text: str) -> _Reader:
    """Return what digests the value at a pointer, where it is an object optionally without one of its members."""
    pointer, _, without = text.partition(" without ")
    reader = _signed(pointer)

    def digest(evidence: _Evidence) -> Any:
        found = reader(evidence)
        if isinstance(found, dict) and without:
            found = {key: inner for key, inner in found.items() if key != without}
        return MISSING if found is MISSING or found is None else _digest(found)

    return digest


# --- reading ------------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    """Return a nonempty string as it is and an integer in decimal; anything else names nothing."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value's one JSON form (sorted, ASCII): any decoded JSON has it, lone surrogates too."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _event_name(evidence: _Evidence, alternatives: Iterable[Sequence[_NamePart]]) -> str | None:
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


def _answer(shake: Handshake, evidence: _Evidence) -> HandshakeAnswer:
    """Build what a signed handshake wants back; raises Rejection `handshake` (400) where it asks for no bounded text."""
    answer = shake.answer
    headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
    if answer.echo_header is not None:
        echo = _claimed(_HEADER + answer.echo_header)(evidence)
        if not isinstance(echo, str) or len(echo) > shake.max_bytes or not _VISIBLE.fullmatch(echo):
            raise Rejection("handshake", 400)
        headers.append((answer.echo_header, echo))
    body = (
        b"" if answer.body_from is None else _answer_body(answer, _signed(answer.body_from)(evidence), shake.max_bytes)
    )
    return HandshakeAnswer(answer.status, answer.content_type, body, tuple(headers))


def _answer_body(answer: Answer, value: Any, max_bytes: int) -> bytes:
    if not isinstance(value, str) or not value or strict_json.has_surrogate(value):
        raise Rejection("handshake", 400)
    body = value.encode()
    if len(body) > max_bytes:
        raise Rejection("handshake", 400)
    return body if answer.json_member is None else json.dumps({answer.json_member: value}).encode("ascii")


def _unproved_items(document: Any, at: str, key: str) -> Iterable[ItemProof]:
    """Split a batch that one proof covers whole."""
    items = resolve(document, pointers.parse(at))
    if not isinstance(items, list):
        raise Rejection("json-shape", 400)
    return [ItemProof(item, key, None) for item in items]


def _read_items(
    verified: VerifiedDelivery,
    plan: _Plan,
    wanted: Container[str],
    items: Iterable[ItemProof],
) -> Reading:
    """Read each item on its own: a refusal is that item's alone."""
    events: list[Event] = []
    ignored: list[str] = []
    rejected: list[tuple[int, str]] = []
    lifecycle: list[Any] = []
    for index, item in enumerate(items):
        try:
            outcome = _judge_item(verified, plan, wanted, item)
        except Rejection as rejection:
            rejected.append((index, rejection.reason))
            continue
        if isinstance(outcome, Event):
            events.append(outcome)
        else:
            ignored.append(outcome)
        if outcome == LIFECYCLE:
            lifecycle.append(item.value)
    return Reading(None, False, tuple(events), tuple(ignored), tuple(rejected), tuple(lifecycle))


def _judge_item(verified: VerifiedDelivery, plan: _Plan, wanted: Container[str], item: ItemProof) -> Event | str:
    if item.reason is not None:
        raise Rejection(item.reason, 401)
    if not isinstance(item.value, dict):
        raise Rejection("json-shape", 400)
    return _judge(_Evidence(verified, plan, item.value, whole=False), wanted)


def _judge(evidence: _Evidence, wanted: Container[str]) -> Event | str:
    """Return the event of one body or item, or why it is ignored; raises Rejection. Steps 3 to 8 of `read`."""
    plan = evidence.plan
    profile = plan.source.profile
    if any([holds(evidence) for holds in plan.tests]):  # noqa: C419 (short lists: cheaper than a generator)
        return PROVIDER_TEST
    if plan.lifecycle is not None and plan.lifecycle(evidence):
        _check_identity(evidence)  # renewal acts for it: a stranger's notice is refused
        return LIFECYCLE
    claim = None if plan.claim is None else _text(plan.claim(evidence))
    name = evidence.name
    if name in profile.event_ignored or claim in profile.event_ignored:
        return NOTICE
    if name is None:
        raise Rejection("event-missing", 400)
    if name not in wanted:
        return UNDECLARED
    _check_header(evidence, claim)
    _check_shape(evidence, name)
    for reason, holds in plan.refused:
        if holds(evidence):
            raise Rejection(reason, 400)
    _check_identity(evidence)
    dedupe = _dedupe(evidence)
    if any([_text(actor(evidence)) in plan.source.self_ids for actor in plan.actors]):  # noqa: C419
        return OWN_EVENT
    facts = {**evidence.facts, "event": name}
    return Event(name, evidence.document, facts, dedupe, plan.ttl_s, evidence.verified.jti)


def _check_header(evidence: _Evidence, claim: str | None) -> None:
    """Refuse an unsigned event header that contradicts the body; where it is missing, the body speaks."""
    spec = evidence.plan.source.profile.event
    if claim is None:
        if spec.header_required:
            raise Rejection("event-missing", 400)
        return
    if evidence.plan.claim_equals is None:
        return
    # with a table of values, one that is not listed claims nothing that the body does not say itself
    meant = spec.header_values.get(claim) if spec.header_values else claim
    if meant is not None and evidence.plan.claim_equals(evidence) != meant:
        raise Rejection("event-mismatch", 400)


def _check_shape(evidence: _Evidence, name: str) -> None:
    """Refuse a body without the members of the event that its header names, or with those of another."""
    shapes = evidence.plan.shapes
    if not shapes:
        return
    fits = shapes.get(name) or shapes.get(name.partition(".")[0])
    if fits is None and evidence.plan.source.profile.event.open:
        return
    if fits is None or not fits(evidence):
        raise Rejection("event-mismatch", 400)


def _check_identity(evidence: _Evidence) -> None:
    """Refuse a body that is not from the tenant that the source names; a missing member equals nothing."""
    for reader, allowed in evidence.plan.identity:
        if _text(reader(evidence)) not in allowed:
            raise Rejection("identity", 403)


def _dedupe(evidence: _Evidence) -> tuple[str, ...]:
    identifier = "id:" + _delivery_id(evidence)
    if evidence.plan.source.profile.delivery_id.signed:
        return (identifier,)
    return (identifier, "body:" + _short(evidence.digest()))


def _short(digest: str) -> str:
    """Write a hexadecimal digest in 43 characters instead of 64: the store keeps one for each delivery."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode("ascii")


def _delivery_id(evidence: _Evidence) -> str:
    """Return the text of the first tuple of parts that are all there."""
    agreeing = {found for part in evidence.plan.id_agree if (found := _id_value(evidence, part)) is not None}
    if len(agreeing) > 1:
        raise Rejection("delivery-id-invalid", 400)
    for parts in evidence.plan.ids:
        values = [_id_value(evidence, part) for part in parts]
        there = [one is not None for one in values]
        if any(there) and all(found or part.optional for part, found in zip(parts, there, strict=True)):
            _check_id(parts, values)
            return _joined(values)
    raise Rejection("delivery-id-missing", 400)


def _id_value(evidence: _Evidence, part: _IdPart) -> str | int | None:
    """Return one part of a delivery id: text, an integer or a digest; None where it is not there or is neither."""
    found = part.read(evidence)
    return found if _text(found) is not None else None


def _check_id(parts: Sequence[_IdPart], values: Sequence[str | int | None]) -> None:
    """Refuse an id that is too long or not visible ASCII."""
    for part, one in zip(parts, values, strict=True):
        if one is None or part.hashed:
            continue
        text = str(one)
        if len(text) > MAX_ID_CHARS or not _VISIBLE.fullmatch(text):
            raise Rejection("delivery-id-invalid", 400)


def _joined(values: Sequence[str | int | None]) -> str:
    """Join parts so that no two lists give one text: a JSON array, which has a space and so is no single id either."""
    if len(values) == 1:
        return str(values[0])
    text = json.dumps(values)
    return text if len(text) <= MAX_ID_CHARS else "sha256 " + hashlib.sha256(text.encode("ascii")).hexdigest()


def _ttl_s(source: Source) -> int:
    """Return how long a key is kept: at least twice the window, since a time may lie ahead of us as far as behind."""
    window_s = 0.0 if source.freshness_s is None or source.profile.freshness is None else source.freshness_s
    return max(source.profile.delivery_id.ttl_s, math.ceil(2 * window_s))
