"""Explain: what a saved delivery would come to, without its secret, and without a value of it in the answer."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.delivery import Outcome, RawDelivery
from gateway.explain import Explanation, explain
from gateway.subscriptions import build_index
from tests.trigger_vectors import Case, Selected, cases, edit, enrolled

FIRING: dict[tuple[str, str], Case] = {}
for one in cases():
    if one.kind == "fires":
        FIRING.setdefault((one.selected.connector, one.selected.trigger), one)
SOME = [
    FIRING[key]
    for key in (
        ("linear", "issue-created"),
        ("slack", "threaded-app-mention"),
        ("teams", "channel-message-created"),
        ("confluence", "page-created"),
        ("sentry", "error-created"),
        ("github", "issue-opened"),
        ("gitlab", "merge-request-opened"),
    )
]


def raw(body: bytes, *headers: tuple[str, str]) -> RawDelivery:
    return RawDelivery("d", "s", 1769860800.0, tuple((k.encode(), v.encode()) for k, v in headers), b"", body)


def explained(selected: Selected, body: bytes, *headers: tuple[str, str]) -> Explanation:
    source, index = enrolled(selected)
    return explain(raw(body, *headers), source, index)


@pytest.mark.parametrize("case", FIRING.values(), ids=lambda case: f"{case.selected.connector}:{case.selected.trigger}")
def test_a_body_alone_is_enough(case: Case) -> None:
    """Where no header was saved, the event's is found by the body's shape and an id is supplied."""
    found = explained(case.selected, case.body)
    assert found.outcome == Outcome.FORWARDED, found
    assert {"authorization", "x-hub-signature-256"}.isdisjoint(found.supplied)


def test_what_was_saved_is_not_replaced() -> None:
    case = FIRING["github", "issue-opened"]
    found = explained(case.selected, case.body, ("x-github-event", "pull_request"), ("x-github-delivery", "d-1"))
    assert found.supplied == ()
    assert found.outcome != Outcome.FORWARDED


def test_an_event_of_another_name_is_said_to_be_one() -> None:
    case = FIRING["linear", "issue-created"]
    body = edit(json.loads(case.body), {"/type": "Comment"})
    found = explained(case.selected, json.dumps(body).encode())
    assert (found.outcome, found.reason) == (Outcome.IGNORED, "undeclared-event")
    [(_, row)] = found.considered
    assert (row.matched, row.test, row.pointer) == (False, "event", "/type, /action")


def test_each_item_of_a_batch_is_explained() -> None:
    case = FIRING["teams", "channel-message-created"]
    body = json.loads(case.body)
    other = edit(body["value"][0], {"/resource": "teams('t1')/channels('c')/messages('1')", "/resourceData": None})
    found = explained(case.selected, json.dumps({"value": [other, body["value"][0]]}).encode())
    assert [(row["item"], row["matched"]) for row in found.to_json()] == [(0, False), (1, True)]


def test_an_old_delivery_is_not_refused_for_its_age() -> None:
    case = FIRING["linear", "issue-created"]
    body = edit(json.loads(case.body), {"/webhookTimestamp": 1})
    assert explained(case.selected, json.dumps(body).encode()).outcome == Outcome.FORWARDED


def test_tests_and_handshakes_are_told() -> None:
    github = FIRING["github", "issue-opened"].selected
    found = explained(github, b'{"zen": "x", "hook_id": 1}', ("x-github-event", "ping"))
    assert (found.outcome, found.reason) == (Outcome.HANDSHAKE, "provider-test")
    slack = FIRING["slack", "threaded-app-mention"].selected
    found = explained(slack, b'{"type": "url_verification", "challenge": "c"}')
    assert (found.outcome, found.reason) == (Outcome.HANDSHAKE, "challenge")


def test_a_trigger_of_another_event_stands_beside_the_one_that_is_meant() -> None:
    created, updated = FIRING["linear", "issue-created"], FIRING["linear", "issue-updated"]
    source, _ = enrolled(created.selected)
    both = [one for case in (created, updated) for one, _ in enrolled(case.selected)[1].listed("s")]
    found = explain(raw(created.body), source, build_index(both, {"s": source}))
    assert {one.trigger: (one.matched, one.test) for _, one in found.considered} == {
        "issue-created": (True, None),
        "issue-updated": (False, "event"),
    }


def test_what_the_reader_says_is_said() -> None:
    case = FIRING["linear", "issue-created"]
    assert explained(case.selected, b"{").reason == "json-syntax"
    for edits, reason in (
        ({"/organizationId": "other"}, "identity"),
        ({"/webhookTimestamp": None}, "freshness"),
        ({"/webhookTimestamp": True}, "freshness"),
        ({"/webhookTimestamp": "now"}, "freshness"),
        ({"/data/teamId": "other", "/data/team/id": "other"}, "no-match"),
    ):
        assert explained(case.selected, json.dumps(edit(json.loads(case.body), edits)).encode()).reason == reason
    teams = FIRING["teams", "channel-message-created"].selected
    assert explained(teams, b'{"value": [7]}').outcome == Outcome.REJECTED
    assert explained(teams, b'{"value": []}').outcome == Outcome.IGNORED
    github = FIRING["github", "issue-opened"].selected
    assert explained(github, b'{"action": "opened"}').reason == "event-missing"


def test_what_is_not_active_is_told() -> None:
    case = FIRING["linear", "issue-created"]
    source, index = enrolled(case.selected)
    [(one, _)] = index.listed("s")
    found = explain(raw(case.body), source, build_index([one, one], {"s": source}))
    assert found.inactive == {one.subscription.digest: "is enrolled already from the source s"}


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value] if isinstance(value, str) and len(value) > 3 else []


def marked(value: Any) -> Any:
    """The body with every text marked, as a stranger's would be."""
    if isinstance(value, dict):
        return {key: marked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [marked(inner) for inner in value]
    return f"planted-{value}" if isinstance(value, str) else value


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.selected.connector)
def test_no_value_of_the_delivery_is_told(case: Case) -> None:
    body = json.loads(case.body)
    headers = [(k.decode(), v.decode()) for k, v in case.headers]
    for pointer in ("", *(f"/{name}" for name in body)):
        changed = marked(body) if pointer == "" else edit(body, {pointer: marked(body[pointer[1:]])})
        found = explained(case.selected, json.dumps(changed).encode(), *headers)
        assert "planted" not in json.dumps([found.outcome, found.reason, found.to_json(), found.inactive])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SOME), st.data())
def test_nothing_that_a_file_holds_makes_an_error(case: Case, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        body = data.draw(st.binary(max_size=64))
    else:
        document = json.loads(case.body)
        for name in data.draw(st.lists(st.sampled_from(sorted(document)), max_size=2)):
            document[name] = data.draw(JSON)
        body = json.dumps(document).encode()
    names = st.sampled_from(["x-github-event", "sentry-hook-resource", "linear-event", "x-gitlab-event", "webhook-id"])
    headers = data.draw(st.lists(st.tuples(names, st.text(max_size=8)), max_size=3))
    explained(case.selected, body, *headers)
