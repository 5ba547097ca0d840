"""Explaining: what would become of a saved delivery, with or without its headers, and never a value of it."""

import json
from dataclasses import replace

import pytest

from gateway.delivery import Outcome, RawDelivery
from gateway.explain import completed, explain
from gateway.profiles import Source
from gateway.subscriptions import Enrolled, build_index
from tests.trigger_vectors import Case, cases, dump, edit, enrolled, run

FIRST = list({str(case.selected): case for case in cases() if case.kind == "fires"}.values())
LINEAR = next(case for case in FIRST if (case.selected.connector, case.selected.trigger) == ("linear", "issue-created"))


def of(case: Case, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> RawDelivery:
    return RawDelivery("d", "s", 1769860800.0, headers, b"", body)


@pytest.mark.parametrize("case", FIRST, ids=lambda case: f"{case.selected.connector}:{case.selected.trigger}")
def test_a_body_alone_is_explained_as_the_whole_delivery_is(case: Case) -> None:
    whole, alone = run(case), run(replace(case, headers=()))
    assert (whole.outcome, whole.reason) == (alone.outcome, alone.reason) == (Outcome.FORWARDED, None)
    assert whole.considered == alone.considered
    [row] = alone.to_json()
    assert row == {
        "digest": row["digest"],
        "trigger": case.selected.trigger,
        "item": 0,
        "matched": True,
        "test": None,
        "pointer": None,
    }


def test_headers_that_were_saved_are_kept_and_others_named() -> None:
    source, index = enrolled(LINEAR.selected)
    raw, supplied = completed(of(LINEAR, LINEAR.body), source.profile, index.wanted("s"))
    assert supplied
    assert set(supplied) <= {name.decode() for name, _ in raw.headers}
    again, nothing = completed(raw, source.profile, index.wanted("s"))
    assert (again, nothing) == (raw, ())


def test_what_the_reader_says_is_said() -> None:
    source, index = enrolled(LINEAR.selected)
    assert run(replace(LINEAR, body=b"{")).reason == "json-syntax"
    foreign = edit(json.loads(LINEAR.body), {"/organizationId": "other"})
    assert explain(of(LINEAR, dump(foreign)), source, index).reason == "identity"
    unmatched = edit(json.loads(LINEAR.body), {"/data/teamId": "other", "/data/team/id": "other"})
    found = explain(of(LINEAR, dump(unmatched)), source, index)
    assert (found.outcome, found.reason) == (Outcome.IGNORED, "no-match")
    assert [(one.test, one.pointer) for _, one in found.considered] == [("resources", "/data/teamId")]


def test_another_event_is_told_as_such() -> None:
    source, index = enrolled(LINEAR.selected)
    other = edit(json.loads(LINEAR.body), {"/action": "remove"})
    found = explain(of(LINEAR, dump(other)), source, index)
    assert found.reason == "undeclared-event"
    [(_, one)] = found.considered
    assert (one.test, one.matched) == ("event", False)
    assert "remove" not in str(one.pointer)


def test_a_trigger_of_another_event_stands_beside_the_one_that_is_meant() -> None:
    updated = next(c for c in FIRST if (c.selected.connector, c.selected.trigger) == ("linear", "issue-updated"))
    source, _ = enrolled(LINEAR.selected)
    both = [one for case in (LINEAR, updated) for one, _ in enrolled(case.selected)[1].listed("s")]
    found = explain(of(LINEAR, LINEAR.body), source, build_index(both, {"s": source}))
    assert {one.trigger: (one.matched, one.test) for _, one in found.considered} == {
        "issue-created": (True, None),
        "issue-updated": (False, "event"),
    }


@pytest.mark.parametrize(
    ("profile", "body", "headers", "reason"),
    [
        ("slack", {"type": "url_verification", "challenge": "x", "token": "t"}, {}, "challenge"),
        ("github", {"zen": "x", "hook_id": 1, "hook": {}}, {"x-github-event": "ping"}, "provider-test"),
    ],
)
def test_a_handshake_is_one(profile: str, body: object, headers: dict[str, str], reason: str) -> None:
    case = next(case for case in FIRST if case.selected.profile == profile)
    source, index = enrolled(case.selected)
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    found = explain(of(case, dump(body), pairs), source, index)
    assert (found.outcome, found.reason) == (Outcome.HANDSHAKE, reason)


def test_a_batch_whose_items_are_all_refused_is_a_rejection() -> None:
    case = next(case for case in FIRST if case.selected.connector == "teams")
    source, index = enrolled(case.selected)
    assert explain(of(case, dump({"value": [7]})), source, index).outcome == Outcome.REJECTED
    empty = explain(of(case, dump({"value": []})), source, index)
    assert empty.outcome in (Outcome.IGNORED, Outcome.REJECTED)


@pytest.mark.parametrize("time", [None, "now", True, 1.5])
def test_a_time_that_is_none_is_refused_as_on_the_way_in(time: object) -> None:
    source, index = enrolled(LINEAR.selected)
    body = edit(json.loads(LINEAR.body), {"/webhookTimestamp": time})
    assert explain(of(LINEAR, dump(body)), source, index).reason == "freshness"


def test_what_is_not_active_is_told() -> None:
    source, index = enrolled(LINEAR.selected)
    [(one, _)] = index.listed("s")
    elsewhere: Source = replace(source, name="elsewhere")
    index = build_index([one, one, Enrolled(one.subscription, "elsewhere", 1)], {"s": source, "elsewhere": elsewhere})
    found = explain(of(LINEAR, LINEAR.body), source, index)
    assert found.inactive == {one.subscription.digest: "is enrolled already from the source s"}
