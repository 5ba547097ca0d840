import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import envelope
from gateway.canonical import canonical_json, digest, event_id
from gateway.envelope import SCHEMA, EnvelopeEvent, sendable

SUBSCRIPTION = "sha256:" + "ab" * 32
DISPATCH = "018f2f6e-7b1a-7c3d-8e4f-0123456789ab"
URL = "https://linear.app/acme/issue/ENG-1"


def event(url: str = URL, type_: str = "issue-created", **filters: str) -> EnvelopeEvent:
    return EnvelopeEvent(url, type_, filters or {"teams": "t"})


def body(*events: EnvelopeEvent) -> dict[str, Any]:
    return envelope.build(SUBSCRIPTION, "gateway-acme", DISPATCH, events or (event(),))


def test_build_makes_the_whole_dispatch_body() -> None:
    assert body(event(organizations="o", teams="t")) == {
        "event_type": "gateway-acme",
        "client_payload": {
            "gateway": {
                "version": 2,
                "projection": "resource-url-types-filters/v2",
                "subscription": SUBSCRIPTION,
                "dispatch": DISPATCH,
                "events": [
                    {
                        "id": event_id(URL),
                        "url": URL,
                        "types": ["issue-created"],
                        "filters": {"organizations": ["o"], "teams": ["t"]},
                    }
                ],
            }
        },
    }


def test_an_event_survives_the_queue() -> None:
    original = event(organizations="o", teams="é")
    assert EnvelopeEvent.from_queue(original.queued(), original.type) == original
    assert original.queued() == event(teams="é", organizations="o").queued()
    for text in ("", "{", "null", "[]", '{"url":"https://a/b"}', original.queued()[:-1] + ',"id":"x"}',
                 '{"filters":{"a":["b"]},"url":"https://a/b"}', '{"filters":[],"url":"https://a/b"}'):  # fmt: skip
        with pytest.raises(ValueError, match=r"queued event|JSON|unexpected|empty"):
            EnvelopeEvent.from_queue(text, "issue-created")


@given(
    st.dictionaries(st.from_regex("[a-z][a-z0-9-]{0,62}", fullmatch=True), st.text(), max_size=envelope.MAX_FILTERS),
    st.from_regex("[a-z][a-z0-9-]{0,62}", fullmatch=True),
)
def test_the_wire_form_is_little_longer_than_what_is_queued(filters: dict[str, str], type_: str) -> None:
    made = EnvelopeEvent(URL, type_, filters)
    assert len(canonical_json(made.to_json())) - len(made.queued().encode()) <= envelope.QUEUED_LESS


def test_equal_events_merge_in_their_order() -> None:
    first, second, third = event(), event(URL + "2"), event(teams="u")
    assert envelope.merge([first, second, first, third, second]) == (first, second, third)
    assert envelope.merge([event(a="1", b="2"), event(b="2", a="1")]) == (event(a="1", b="2"),)
    assert len(body(first, first)["client_payload"]["gateway"]["events"]) == 1


def test_a_repeated_send_is_the_same_bytes() -> None:
    sent = body(event(b="2", a="1"))
    assert envelope.encode(sent) == envelope.encode(json.loads(envelope.encode(sent))) == canonical_json(sent)
    assert envelope.envelope_digest(sent["client_payload"]) == digest(sent["client_payload"])


def test_encode_keeps_under_its_bound() -> None:
    with pytest.raises(ValueError, match="60000"):
        envelope.encode({"x": "x" * 60_000})
    assert len(envelope.encode({"x": "x" * 59_991})) == 59_999
    with pytest.raises(ValueError, match="60000"):
        envelope.encode({"x": "x" * 59_992})


def test_twenty_events_and_no_more() -> None:
    events = [event(f"{URL}/{n}") for n in range(21)]
    assert body(*events[:20])
    with pytest.raises(ValueError, match=r"events: fails maxItems"):
        body(*events)
    with pytest.raises(ValueError, match=r"events: fails minItems"):
        envelope.build(SUBSCRIPTION, "gateway-acme", DISPATCH, ())


def test_the_schema_is_a_valid_closed_2020_12_schema() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    assert SCHEMA["$id"] == "urn:webhook-gateway:envelope:2"
    jsonschema_rs.validate(SCHEMA, body())
    for part in (SCHEMA, *(SCHEMA["$defs"][name] for name in ("client_payload", "gateway", "event"))):
        assert part["additionalProperties"] is False
        assert set(part["required"]) == set(part["properties"])


Change = Callable[[dict[str, Any]], object]


def gateway_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["client_payload"]["gateway"]
    return found


def event_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = gateway_of(document)["events"][0]
    return found


def url(text: str) -> Change:
    return lambda d: event_of(d).update(url=text, id=event_id(text))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(x=1), r"\$: fails additionalProperties"),
        (lambda d: d.pop("event_type"), r"\$: fails required"),
        (lambda d: d.update(event_type=""), "event_type: fails pattern"),
        (lambda d: d.update(event_type="x" * 101), "event_type: fails pattern"),
        (lambda d: d.update(event_type="x\n"), "event_type: fails pattern"),
        (lambda d: d.update(event_type=7), "event_type: fails type"),
        (lambda d: d["client_payload"].update(x=1), "client_payload: fails additionalProperties"),
        (lambda d: gateway_of(d).update(body={}), "gateway: fails additionalProperties"),
        (lambda d: gateway_of(d).update(version=1), "version: fails const"),
        (lambda d: gateway_of(d).update(version="2"), "version: fails"),
        (lambda d: gateway_of(d).update(projection="x"), "projection: fails const"),
        (lambda d: gateway_of(d).update(subscription="sha256:x"), "subscription: fails pattern"),
        (lambda d: gateway_of(d).update(dispatch=DISPATCH.replace("-7", "-4")), "dispatch: fails pattern"),
        (lambda d: gateway_of(d).update(dispatch=DISPATCH + "\n"), "dispatch: fails pattern"),
        (lambda d: gateway_of(d).update(dispatch=DISPATCH.upper()), "dispatch: fails pattern"),
        (lambda d: gateway_of(d)["events"].append(event_of(d)), "events: fails uniqueItems"),
        (lambda d: event_of(d).update(title="t"), r"events\[0\]: fails additionalProperties"),
        (lambda d: event_of(d).update(types=["a", "b"]), "types: fails maxItems"),
        (lambda d: event_of(d).update(types=[]), "types: fails minItems"),
        (lambda d: event_of(d).update(types=["A"]), r"types\[0\]: fails pattern"),
        (lambda d: event_of(d).update(id="uri:x"), "id: fails pattern"),
        (lambda d: event_of(d).update(id="uri:" + "0" * 64), "id: is not the identity"),
        (lambda d: event_of(d).update(filters={"Teams": ["t"]}), "filters: fails propertyNames"),
        (lambda d: event_of(d).update(filters={"teams\n": ["t"]}), "filters: fails propertyNames"),
        (lambda d: event_of(d).update(filters={"teams": []}), "teams: fails minItems"),
        (lambda d: event_of(d).update(filters={"teams": ["a", "b"]}), "teams: fails maxItems"),
        (lambda d: event_of(d).update(filters={"teams": [7]}), r"teams\[0\]: fails type"),
        (lambda d: event_of(d).update(filters={"teams": [""]}), r"teams\[0\]: fails minLength"),
        (lambda d: event_of(d).update(filters={"teams": ["x" * 1025]}), r"teams\[0\]: fails maxLength"),
        (lambda d: event_of(d).update(filters={"teams": "t"}), "teams: fails type"),
        (lambda d: event_of(d).update(filters={"teams": ["a\ud800"]}), "UTF-8"),
        (lambda d: event_of(d).update(filters={f"c{n}": ["é" * 1024] for n in range(16)}), r"events\[0\]: is over"),
        (lambda d: event_of(d).update(filters={f"c{n}": ["x"] for n in range(17)}), "fails maxProperties"),
        (lambda d: gateway_of(d)["events"].append(event(type_="other").to_json()), "more than one type"),
        (url("http://linear.app/a"), "url: fails pattern"),
        (url("https://linear.app"), "url: fails pattern"),
        (url("https://u@linear.app/a"), "url: fails pattern"),
        (url("https://linear.app/a b"), "url: fails pattern"),
        (url("https://linear.app/%2"), "url: fails pattern"),
        (url("https://linear.app/é"), "url: fails pattern"),
        (url("https://linear.app/a\n"), "url: fails pattern"),
        (url("https://linear.app/" + "a" * 2030), "url: fails maxLength"),
        (url("https://linear..app/a"), "url: its host"),
        (url("https://linear.app:443/a"), "url: its origin"),
        (url("https://linear.app/a/../b"), "url: its path"),
        (url("https://linear.app//b"), "url: its path"),
        (url("https://linear.app/?a"), "url: its path"),
        (url("https://linear.app/a//"), "url: its path"),
        (url("https://linear.app/a/./"), "url: its path"),
    ],
)
def test_nothing_else_is_an_envelope(change: Change, problem: str) -> None:
    document = copy.deepcopy(body())
    envelope.validate(document)
    change(document)
    with pytest.raises(ValueError, match=problem) as caught:
        envelope.validate(document)
    assert URL not in str(caught.value)


def test_a_payload_stays_under_githubs_limit() -> None:
    events = [event(f"{URL}/{n}", a="x" * 1000, b="x" * 1000, c="x" * 1000, d="x" * 1000) for n in range(20)]
    with pytest.raises(ValueError, match="not under 65536 bytes"):
        body(*events)


def test_a_query_may_hold_what_a_path_may_not() -> None:
    assert body(event("https://acme.slack.com/archives/C1/p1?thread_ts=1.2&next=a//../b#x-1"))


def test_a_path_may_end_with_one_slash() -> None:
    assert body(event("https://acme.sentry.io/issues/12/"))
    assert body(event("https://acme.sentry.io/issues/12/?a=b/"))


def test_hostile_nesting_is_a_value_error() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"x": [deep]}
    with pytest.raises(ValueError, match="fails"):
        envelope.validate({"event_type": "x", "client_payload": deep})
    twice = [copy.copy(deep), copy.copy(deep)]
    document = body()
    gateway_of(document)["events"] = twice
    with pytest.raises(ValueError, match="fails"):
        envelope.validate(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_anything_else_raises_value_error_alone(document: Any) -> None:
    with pytest.raises(ValueError, match="fails"):
        envelope.validate(document)


@given(st.sampled_from(["version", "projection", "subscription", "dispatch", "events"]), JSON)
def test_any_replaced_member_is_refused_or_equal(member: str, value: Any) -> None:
    document = body()
    original = gateway_of(document)[member]
    gateway_of(document)[member] = value
    if value != original:
        with pytest.raises(ValueError, match="fails"):
            envelope.validate(document)


@given(
    st.dictionaries(
        st.sampled_from([f"name-{n}" for n in range(18)]), st.text(max_size=1100) | st.just("\U0001f600" * 1024)
    ),
    st.sampled_from(["https://a.example/x", "https://a.example/" + "y" * 2000]),
)
def test_sendable_answers_as_the_schema_does(filters: dict[str, str], url: str) -> None:
    event = EnvelopeEvent(url, "issue-created", filters)
    try:
        envelope.validate(body(event))
    except ValueError:
        assert not sendable(event)
    else:
        assert sendable(event)
