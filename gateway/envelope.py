"""`Envelope`: the closed wire form of one `repository_dispatch`, its published JSON Schema, and its checker.

An envelope says which resource an event is about, which one trigger named it, and which granted scope and chosen filters
it matched. It has no place for a body, a title, a user or a header. `validate` is what the sender runs before each send
and what a receiver runs on what it got.

The endpoint and its limits (`event_type` of at most 100 characters, `client_payload` of at most 10 top-level properties
and under 64 KB): https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson
from jsonschema_rs import Draft202012Validator

from gateway.canonical import MAX_URL_BYTES, canonical_json, digest, event_id, has_bad_segment, parse_origin
from gateway.structs import Value

VERSION: Final = 2
PROJECTION: Final = "resource-url-types-filters/v2"
MAX_EVENTS: Final = 20
MAX_BYTES: Final = 60_000
"""A dispatch body that we make stays under this; GitHub's own limit is `MAX_PAYLOAD_BYTES`."""
MAX_PAYLOAD_BYTES: Final = 65_536
MAX_EVENT_BYTES: Final = 16_384
MAX_FILTER_CHARACTERS: Final = 1024
MAX_FILTERS: Final = 16
QUEUED_LESS: Final = 200
"""Bytes that an event takes on the wire beyond its queued text: identity 76, type at most 76, two for each filter's list."""
MAX_FAULTS: Final = 16  # looked at to name one

_NAME: Final = "^[a-z][a-z0-9-]{0,62}$"
_SHA256: Final = "^sha256:[0-9a-f]{64}$"
_UUID7: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_URL: Final = r"^https://[a-z0-9.:-]+/([A-Za-z0-9._~!$&'()*+,;=:@/?#-]|%[0-9A-F]{2})+$"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:webhook-gateway:envelope:2",
    "title": "Body of a repository_dispatch sent by the webhook gateway, version 2",
    **_object(
        {
            "event_type": {"type": "string", "pattern": "^[!-~]{1,100}$"},
            "client_payload": {"$ref": "#/$defs/client_payload"},
        }
    ),
    "$defs": {
        "client_payload": _object({"gateway": {"$ref": "#/$defs/gateway"}}),
        "gateway": _object(
            {
                "version": {"type": "integer", "const": VERSION},
                "projection": {"const": PROJECTION},
                "subscription": {"type": "string", "pattern": _SHA256},
                "dispatch": {"type": "string", "pattern": _UUID7},
                "events": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/event"},
                    "minItems": 1,
                    "maxItems": MAX_EVENTS,
                    "uniqueItems": True,
                },
            }
        ),
        "event": _object(
            {
                "id": {"type": "string", "pattern": "^uri:[0-9a-f]{64}$"},
                "url": {"type": "string", "pattern": _URL, "maxLength": MAX_URL_BYTES},
                "types": {
                    "type": "array",
                    "items": {"type": "string", "pattern": _NAME},
                    "minItems": 1,
                    "maxItems": 1,
                },
                "filters": {
                    "type": "object",
                    "propertyNames": {"pattern": _NAME},
                    "maxProperties": MAX_FILTERS,
                    "additionalProperties": {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1, "maxLength": MAX_FILTER_CHARACTERS},
                        "minItems": 1,
                        "maxItems": 1,
                    },
                },
            }
        ),
    },
}
"""The published schema of the whole dispatch body; `#/$defs/client_payload` is what a workflow run sees."""


_BODY: Final = Draft202012Validator(SCHEMA)


class EnvelopeEvent(Value):
    """One event as it leaves: `filters` maps a collection to its one matched value. Its identity follows from its URL."""

    url: str
    type: str
    filters: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return {
            "id": event_id(self.url),
            "url": self.url,
            "types": [self.type],
            "filters": {name: [value] for name, value in self.filters.items()},
        }

    def queued(self) -> str:
        """Return the canonical JSON that the queue keeps: neither the identity nor the type, which its lane names.

        The store holds one for each event that waits, so what follows from the rest is left out; the wire form is at most
        `QUEUED_LESS` bytes longer.
        """
        return orjson.dumps({"filters": self.filters, "url": self.url}, option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def from_queue(cls, text: str, type_: str) -> "EnvelopeEvent":
        """Read back what `queued` made. Raises ValueError for anything else; whether it can be sent, `build` judges."""
        match orjson.loads(text):
            case {"filters": dict(filters), "url": str(url), **rest} if not rest:
                if all(isinstance(value, str) for value in filters.values()):
                    return cls(url, type_, filters)
        raise ValueError("$: is no queued event")


def merge(events: Iterable[EnvelopeEvent]) -> tuple[EnvelopeEvent, ...]:
    """Return the events in order, equal ones once."""
    first: dict[tuple[str, str, frozenset[tuple[str, str]]], EnvelopeEvent] = {}
    for event in events:
        first.setdefault((event.url, event.type, frozenset(event.filters.items())), event)
    return tuple(first.values())


def build(
    subscription_digest: str, event_type: str, dispatch_id: str, events: Sequence[EnvelopeEvent]
) -> dict[str, Any]:
    """Return the whole `repository_dispatch` body of one sealed batch, equal events merged, checked by `validate`.

    The same arguments give the same body. Raises ValueError where they do not make a valid one.
    """
    payload = client_payload(subscription_digest, dispatch_id, [event.to_json() for event in merge(events)])
    body = {"event_type": event_type, "client_payload": payload}
    validate(body)
    return body


def client_payload(subscription_digest: str, dispatch_id: str, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a run sees, made of events in their wire form; nothing is checked."""
    return {
        "gateway": {
            "version": VERSION,
            "projection": PROJECTION,
            "subscription": subscription_digest,
            "dispatch": dispatch_id,
            "events": list(events),
        }
    }


def encode(body: Mapping[str, Any]) -> bytes:
    """Return the body's canonical JSON, so that a repeated send is the same bytes. Raises ValueError at `MAX_BYTES`."""
    data = canonical_json(body)
    if len(data) >= MAX_BYTES:
        raise ValueError(f"an envelope stays under {MAX_BYTES} bytes")
    return data


def envelope_digest(client_payload: Any) -> str:
    """Return `sha256:` and the hex SHA-256 of the RFC 8785 form of `client_payload`."""
    return digest(client_payload)


def validate(body: Any) -> None:
    """Check a whole dispatch body. Raises ValueError that names the place and the rule, never a value."""
    _check(body)
    _check_payload(body["client_payload"])


def sendable(event: EnvelopeEvent) -> bool:
    """Tell whether a matched event, whose URL a template built and whose names a declaration checked, fits the schema.

    The same answer as `validate`, for what matching makes, at a hundredth of its cost; the suite compares them.
    """
    sizes = [len(text) for text in event.filters.values()]
    if len(sizes) > MAX_FILTERS or (sizes and (min(sizes) == 0 or max(sizes) > MAX_FILTER_CHARACTERS)):
        return False
    # a character takes at most six bytes in JSON: only what could be too large is measured
    small = 6 * sum(sizes) + len(event.url) < MAX_EVENT_BYTES - 2048
    return small or len(canonical_json(event.to_json())) <= MAX_EVENT_BYTES


def _check(document: Any) -> None:
    try:
        errors = list(islice(_BODY.iter_errors(document), MAX_FAULTS))
    except ValueError as error:  # a lone surrogate, or a key that is no text: nothing that JSON could carry
        raise ValueError("$: fails encoding") from error
    if errors:
        place, rule = errors[0].instance_path, errors[0].kind.name
        lacking = [e.kind.value for e in errors if e.kind.name == rule == "required" and e.instance_path == place]
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{_shown(step)}" for step in place)
        raise ValueError(f"${path}: fails {rule}" + (f" ({', '.join(lacking)})" if lacking else ""))


def _shown(member: str) -> str:
    """Write a member of the place; what is no name of a member is a text that somebody sent."""
    return member if re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", member) else "*"


def _check_payload(client_payload: Any) -> None:
    """Check what the schema cannot say: identities, origins, one kind of event, the size as sent."""
    if len(canonical_json(client_payload)) >= MAX_PAYLOAD_BYTES:
        raise ValueError(f"$.client_payload: is not under {MAX_PAYLOAD_BYTES} bytes")
    events = client_payload["gateway"]["events"]
    if len({event["types"][0] for event in events}) > 1:
        raise ValueError("$.client_payload.gateway.events: are of more than one type")
    for index, event in enumerate(events):
        _check_event(event, f"$.client_payload.gateway.events[{index}]")


def _check_event(event: Any, place: str) -> None:
    if event["id"] != event_id(event["url"]):
        raise ValueError(f"{place}.id: is not the identity of its url")
    slash = event["url"].index("/", 8)
    origin, path = event["url"][:slash], re.split("[?#]", event["url"][slash:], maxsplit=1)[0]
    if has_bad_segment(path):
        raise ValueError(f"{place}.url: its path has an empty segment or one of dots")
    try:
        normal = parse_origin(origin)
    except ValueError as error:
        raise ValueError(f"{place}.url: {error}") from error
    if normal != origin:
        raise ValueError(f"{place}.url: its origin is not in canonical form")
    if len(canonical_json(event)) > MAX_EVENT_BYTES:
        raise ValueError(f"{place}: is over {MAX_EVENT_BYTES} bytes")
