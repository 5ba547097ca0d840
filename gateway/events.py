"""The reader: a verified delivery becomes events, in one fixed order, and bad input raises `Rejection` alone.

Order: JSON and its top level, a time inside the body, handshake, test message, notice or undeclared event, the header
against the body's shape, identity, delivery id, own event. So an event that nobody wants is refused for nothing that
only a wanted one needs. A batch is read item by item: what is wrong with one item refuses that item alone. What this
module does not do: prove anything (`verify`), parse a profile (`plan`), match, or keep state.
"""

import base64
import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from gateway import pointers, strict_json
from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.plan import HEADER, IdPart, ItemEvidence, Plan, as_text, claimed, plan_of, signed
from gateway.pointers import resolve
from gateway.profiles import Answer, Handshake, Profile, Source
from gateway.structs import Opaque
from gateway.verify import HandshakeAnswer, ItemProof, VerifiedDelivery

MAX_ID_CHARS: Final = 200

UNDECLARED: Final = "undeclared-event"
NOTICE: Final = "notice"
OWN_EVENT: Final = "own-event"
PROVIDER_TEST: Final = "provider-test"
LIFECYCLE: Final = "lifecycle"

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Event(Opaque):
    """One authentic native event that some trigger names.

    `body` is the evidence (the decoded body, or a batch's item), `facts` what the proof and the profile established
    (`event` is the native name), `dedupe` one or two opaque texts that must both be new: `id:...` and, where the id is
    outside the proof, `body:` + the digest of the signed bytes (of the item, in a batch). `jti` is a token's single-use
    id and when it ends.
    """

    name: str
    body: Any
    facts: Mapping[str, str]
    dedupe: tuple[str, ...]
    dedupe_ttl_s: int
    jti: tuple[str, float] | None


class Reading(Opaque):
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
    lifecycle: tuple[Any, ...] = ()


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
    plan = plan_of(source)
    if verified.items is not None:  # decoded while its items were proved
        return _read_items(verified, plan, wanted, verified.items)
    document = _document(verified.raw, source.profile)
    if plan.sent_at is not None:
        _check_freshness(plan.sent_at(document), source, now)
    evidence = ItemEvidence(verified, plan, document)
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


def _answer(shake: Handshake, evidence: ItemEvidence) -> HandshakeAnswer:
    """Build what a signed handshake wants back; raises Rejection `handshake` (400) where it asks for no bounded text."""
    answer = shake.answer
    headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
    if answer.echo_header is not None:
        echo = claimed(HEADER + answer.echo_header)(evidence)
        if not isinstance(echo, str) or len(echo) > shake.max_bytes or not _VISIBLE.fullmatch(echo):
            raise Rejection("handshake", 400)
        headers.append((answer.echo_header, echo))
    body = (
        b"" if answer.body_from is None else _answer_body(answer, signed(answer.body_from)(evidence), shake.max_bytes)
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
    plan: Plan,
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


def _judge_item(verified: VerifiedDelivery, plan: Plan, wanted: Container[str], item: ItemProof) -> Event | str:
    if item.reason is not None:
        raise Rejection(item.reason, 401)
    if not isinstance(item.value, dict):
        raise Rejection("json-shape", 400)
    return _judge(ItemEvidence(verified, plan, item.value, whole=False), wanted)


def _judge(evidence: ItemEvidence, wanted: Container[str]) -> Event | str:
    """Return the event of one body or item, or why it is ignored; raises Rejection. Steps 3 to 8 of `read`."""
    plan = evidence.plan
    profile = plan.source.profile
    if any([holds(evidence) for holds in plan.tests]):  # noqa: C419 (short lists: cheaper than a generator)
        return PROVIDER_TEST
    if plan.lifecycle is not None and plan.lifecycle(evidence):
        _check_identity(evidence)  # renewal acts for it: a stranger's notice is refused
        return LIFECYCLE
    claim = None if plan.claim is None else as_text(plan.claim(evidence))
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
    if any([as_text(actor(evidence)) in plan.source.self_ids for actor in plan.actors]):  # noqa: C419
        return OWN_EVENT
    facts = {**evidence.facts, "event": name}
    return Event(name, evidence.document, facts, dedupe, plan.ttl_s, evidence.verified.jti)


def _check_header(evidence: ItemEvidence, claim: str | None) -> None:
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


def _check_shape(evidence: ItemEvidence, name: str) -> None:
    """Refuse a body without the members of the event that its header names, or with those of another."""
    shapes = evidence.plan.shapes
    if not shapes:
        return
    fits = shapes.get(name) or shapes.get(name.partition(".")[0])
    if fits is None and evidence.plan.source.profile.event.open:
        return
    if fits is None or not fits(evidence):
        raise Rejection("event-mismatch", 400)


def _check_identity(evidence: ItemEvidence) -> None:
    """Refuse a body that is not from the tenant that the source names; a missing member equals nothing."""
    for reader, allowed in evidence.plan.identity:
        if as_text(reader(evidence)) not in allowed:
            raise Rejection("identity", 403)


def _dedupe(evidence: ItemEvidence) -> tuple[str, ...]:
    identifier = "id:" + _delivery_id(evidence)
    if evidence.plan.source.profile.delivery_id.signed:
        return (identifier,)
    return (identifier, "body:" + _short(evidence.digest()))


def _short(digest: str) -> str:
    """Write a hexadecimal digest in 43 characters instead of 64: the store keeps one for each delivery."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode("ascii")


def _delivery_id(evidence: ItemEvidence) -> str:
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


def _id_value(evidence: ItemEvidence, part: IdPart) -> str | int | None:
    """Return one part of a delivery id: text, an integer or a digest; None where it is not there or is neither."""
    found = part.read(evidence)
    return found if as_text(found) is not None else None


def _check_id(parts: Sequence[IdPart], values: Sequence[str | int | None]) -> None:
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
