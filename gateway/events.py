"""The reader: a verified delivery becomes events, in one fixed order, and bad input raises `Rejection` alone.

Order: JSON and its top level, a time inside the body, handshake, test message, notice or undeclared event, the header
against the body's shape, identity, delivery id, own event. So an event that nobody wants is refused for nothing that
only a wanted one needs. A batch is read item by item: what is wrong with one item refuses that item alone. What this
module does not do: prove anything (`verify`), match, or keep state.
"""

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from gateway import pointers, strict_json
from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.pointers import MISSING
from gateway.profiles import Answer, Condition, EventName, Handshake, Profile, Shape, Source
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
_tokens: Final = lru_cache(maxsize=4096)(pointers.parse)  # pointers stand in profiles: a small fixed set


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    if verified.items is not None:  # decoded while its items were proved
        return _read_items(verified, source, wanted, verified.items)
    document = _document(verified.raw, source.profile)
    _check_freshness(document, source, now)
    evidence = _Evidence(verified, source, document)
    for shake in source.profile.handshakes:
        # one with a query parameter is answered before the proof
        if not shake.unauthenticated and shake.query is None and _holds(shake.when, evidence):
            return Reading(handshake=_answer(shake, evidence))
    if source.profile.items is not None:
        return _read_items(verified, source, wanted, _unproved_items(document, source.profile.items, verified.key))
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


def _check_freshness(document: Any, source: Source, now: float) -> None:
    """Judge a time that stands inside the signed body; one in a header was judged while verifying."""
    freshness = source.profile.freshness
    if freshness is None or not freshness.at.startswith("/"):
        return
    sent = pointers.resolve(document, _tokens(freshness.at))
    if not isinstance(sent, int) or isinstance(sent, bool):
        raise Rejection("freshness", 401)
    window_s = freshness.window_s if source.freshness_s is None else source.freshness_s
    if abs(now - sent / (1000 if freshness.unit == "ms" else 1)) > window_s:
        raise Rejection("freshness", 401)


class _Evidence:
    """One body or item, and how a profile's parts are read from it and its delivery."""

    __slots__ = ("document", "facts", "name", "profile", "raw", "source", "verified", "whole")

    def __init__(self, verified: VerifiedDelivery, source: Source, document: Any, *, whole: bool = True) -> None:
        self.verified, self.source, self.document, self.whole = verified, source, document, whole
        self.profile, self.raw = source.profile, verified.raw
        self.facts: dict[str, str] = dict(verified.facts)
        for name, part in self.profile.facts.items():
            fact = _text(self.signed(part))
            if fact is not None and not strict_json.has_surrogate(fact):
                self.facts[name] = fact
        self.name = _event_name(self)

    def signed(self, part: str) -> Any:
        """Return the value at a pointer or fact, MISSING where there is none. A header is no evidence."""
        if part.startswith("@"):
            return self.facts.get(part[1:], MISSING)
        if part == "" or part.startswith("/"):
            return pointers.resolve(self.document, _tokens(part))
        return MISSING

    def claimed(self, part: str) -> Any:
        """Return the value of a part that may also be a header: what its sender says, until something agrees."""
        if not part.startswith(_HEADER):
            return self.signed(part)
        value = self.raw.header(part.removeprefix(_HEADER))
        return MISSING if value is None else value.decode("latin-1")

    def present(self, pointer: str) -> bool:
        """Tell whether a member is there; an explicit null carries nothing, so it is not."""
        return self.signed(pointer) not in (MISSING, None)

    def digest(self) -> str:
        """Return the digest of the signed bytes; items of one batch share those, so each has a digest of its own."""
        return hashlib.sha256(self.raw.body).hexdigest() if self.whole else _digest(self.document)


def _text(value: Any) -> str | None:
    """Return a nonempty string as it is and an integer in decimal; anything else names nothing."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value's one JSON form (sorted, ASCII): any decoded JSON has it, lone surrogates too."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _event_name(evidence: _Evidence) -> str | None:
    """Return the native event's name, None where neither header nor body says it."""
    spec = evidence.profile.event
    for parts in (spec.parts, *spec.alternatives):
        found = [_name_part(evidence, part, alone=len(parts) == 1) for part in parts]
        if all(text is not None or part.endswith("?") for part, text in zip(parts, found, strict=True)):
            return ".".join(text for text in found if text is not None) or None
    return None


def _name_part(evidence: _Evidence, part: str, *, alone: bool) -> str | None:
    value = evidence.claimed(part.removesuffix("?"))
    if not isinstance(value, str):
        return None
    # an unsigned `issues.opened` must not stand for header and signed action both
    forged = not alone and part.startswith(_HEADER) and "." in value
    return None if forged else value or None


def _holds(condition: Condition, evidence: _Evidence) -> bool:
    """Tell whether all that a condition states is so; one that states nothing never holds."""
    if condition == Condition():
        return False
    return (
        (condition.event is None or condition.event == evidence.name)
        and all(_same(evidence.signed(pointer), value) for pointer, value in condition.equals.items())
        and all(map(evidence.present, condition.present))
    )


def _same(value: Any, wanted: str | int | bool) -> bool:
    """Compare type and value: `0` is not `false`."""
    return type(value) is type(wanted) and bool(value == wanted)


def _answer(shake: Handshake, evidence: _Evidence) -> HandshakeAnswer:
    """Build what a signed handshake wants back; raises Rejection `handshake` (400) where it asks for no bounded text."""
    answer = shake.answer
    headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
    if answer.echo_header is not None:
        echo = evidence.claimed(_HEADER + answer.echo_header)
        if not isinstance(echo, str) or len(echo) > shake.max_bytes or not _VISIBLE.fullmatch(echo):
            raise Rejection("handshake", 400)
        headers.append((answer.echo_header, echo))
    body = b"" if answer.body_from is None else _answer_body(answer, evidence.signed(answer.body_from), shake.max_bytes)
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
    items = pointers.resolve(document, _tokens(at))
    if not isinstance(items, list):
        raise Rejection("json-shape", 400)
    return [ItemProof(item, key, None) for item in items]


def _read_items(
    verified: VerifiedDelivery,
    source: Source,
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
            outcome = _judge_item(verified, source, wanted, item)
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


def _judge_item(verified: VerifiedDelivery, source: Source, wanted: Container[str], item: ItemProof) -> Event | str:
    if item.reason is not None:
        raise Rejection(item.reason, 401)
    if not isinstance(item.value, dict):
        raise Rejection("json-shape", 400)
    return _judge(_Evidence(verified, source, item.value, whole=False), wanted)


def _judge(evidence: _Evidence, wanted: Container[str]) -> Event | str:
    """Return the event of one body or item, or why it is ignored; raises Rejection. Steps 3 to 8 of `read`."""
    profile = evidence.profile
    if any(_holds(test, evidence) for test in profile.tests):
        return PROVIDER_TEST
    if profile.lifecycle is not None and _holds(profile.lifecycle, evidence):
        _check_identity(evidence)  # renewal acts for it: a stranger's notice is refused
        return LIFECYCLE
    claim = None if profile.event.header is None else _text(evidence.claimed(_HEADER + profile.event.header))
    name = evidence.name
    if name in profile.event_ignored or claim in profile.event_ignored:
        return NOTICE
    if name is None:
        raise Rejection("event-missing", 400)
    if name not in wanted:
        return UNDECLARED
    _check_header(evidence, profile.event, claim)
    _check_shape(evidence, profile.event, name)
    for reason, condition in profile.refused.items():
        if _holds(condition, evidence):
            raise Rejection(reason, 400)
    _check_identity(evidence)
    dedupe = _dedupe(evidence)
    if any(_text(evidence.signed(actor)) in evidence.source.self_ids for actor in profile.actors):
        return OWN_EVENT
    facts = {**evidence.facts, "event": name}
    return Event(name, evidence.document, facts, dedupe, _ttl_s(evidence.source), evidence.verified.jti)


def _check_header(evidence: _Evidence, spec: EventName, claim: str | None) -> None:
    """Refuse an unsigned event header that contradicts the body; where it is missing, the body speaks."""
    if claim is None:
        if spec.header_required:
            raise Rejection("event-missing", 400)
        return
    if spec.header_equals is None:
        return
    # with a table of values, one that is not listed claims nothing that the body does not say itself
    meant = spec.header_values.get(claim) if spec.header_values else claim
    if meant is not None and evidence.signed(spec.header_equals) != meant:
        raise Rejection("event-mismatch", 400)


def _check_shape(evidence: _Evidence, spec: EventName, name: str) -> None:
    """Refuse a body without the members of the event that its header names, or with those of another."""
    if not spec.shapes:
        return
    shape = spec.shapes.get(name) or spec.shapes.get(name.partition(".")[0])
    if shape is None and spec.open:
        return
    if shape is None or not _fits(evidence, shape):
        raise Rejection("event-mismatch", 400)


def _fits(evidence: _Evidence, shape: Shape) -> bool:
    return (
        all(map(evidence.present, shape.required))
        and not any(map(evidence.present, shape.forbidden))
        and all(_same(evidence.signed(pointer), value) for pointer, value in shape.equals.items())
    )


def _check_identity(evidence: _Evidence) -> None:
    """Refuse a body that is not from the tenant that the source names; a missing member equals nothing."""
    source = evidence.source
    for name, part in source.profile.identity.items():
        allowed = source.identity.get(name)
        if allowed is None and name in source.profile.identity_optional:
            continue
        if _text(evidence.signed(part)) not in (allowed or ()):
            raise Rejection("identity", 403)


def _dedupe(evidence: _Evidence) -> tuple[str, ...]:
    identifier = "id:" + _delivery_id(evidence)
    return (identifier,) if evidence.profile.delivery_id.signed else (identifier, "body:" + evidence.digest())


def _delivery_id(evidence: _Evidence) -> str:
    """Return the text of the first tuple of parts that are all there."""
    spec = evidence.profile.delivery_id
    agreeing = {value for part in spec.agree if (value := _id_part(evidence, part)) is not None}
    if len(agreeing) > 1:
        raise Rejection("delivery-id-invalid", 400)
    for parts in spec.parts:
        values = [_id_part(evidence, part) for part in parts]
        there = [value is not None for value in values]
        if any(there) and all(found or part.endswith("?") for part, found in zip(parts, there, strict=True)):
            _check_id(parts, values)
            return _joined(values)
    raise Rejection("delivery-id-missing", 400)


def _id_part(evidence: _Evidence, part: str) -> str | int | None:
    """Return one part of a delivery id: text, an integer or a digest; None where it is not there or is neither."""
    part = part.removesuffix("?")
    if part == _BODY_DIGEST:
        return evidence.digest()
    if part.startswith(_DIGEST):
        pointer, _, without = part.removeprefix(_DIGEST).partition(" without ")
        value = evidence.signed(pointer)
        if isinstance(value, dict):
            value = {key: inner for key, inner in value.items() if key != without} if without else value
        return None if value is MISSING or value is None else _digest(value)
    value = evidence.claimed(part)
    return value if _text(value) is not None else None


def _check_id(parts: Sequence[str], values: Sequence[str | int | None]) -> None:
    """Refuse an id that is too long or not visible ASCII.

    Members of an id that we compose ourselves (a digest or an optional part among them) may be any text, they are
    hashed; but a header's value never.
    """
    composed = any(part.endswith("?") or part == _BODY_DIGEST or part.startswith(_DIGEST) for part in parts)
    for part, value in zip(parts, values, strict=True):
        if value is None or (composed and not part.startswith(_HEADER)):
            continue
        text = str(value)
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
