"""Provenance: an envelope of the subscription, and none of another one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gateway.canonical import event_id
from gateway.compile import encode
from gateway.envelope import EnvelopeEvent, build
from gateway.provenance import check, scope_of
from gateway.subscriptions import load_subscription, seal
from tests.trigger_vectors import cases, enrolled, run

FIRES = next(
    c for c in cases() if (c.selected.connector, c.selected.trigger, c.kind) == ("linear", "issue-updated", "fires")
)
[(ONE, _)] = enrolled(FIRES.selected)[1].listed("s")
DISPATCH = "01890a5d-ac96-774b-bcce-b302099a8057"


def body() -> Any:
    subscription = ONE.subscription
    event = EnvelopeEvent(FIRES.url, FIRES.selected.trigger, FIRES.scope)
    return build(subscription.digest, subscription.event_type, DISPATCH, [event])


def event_of(document: Any) -> Any:
    return document["client_payload"]["gateway"]["events"][0]


def at(url: str) -> Callable[[Any], object]:
    return lambda document: event_of(document).update(url=url, id=event_id(url))


def test_what_was_matched_is_of_its_subscription() -> None:
    assert run(FIRES).considered
    check(body(), ONE.subscription)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(event_type="gateway-other"), "event_type"),
        (lambda d: d["client_payload"]["gateway"].update(subscription="sha256:" + "0" * 64), "another digest"),
        (lambda d: event_of(d).update(types=["issue-created"]), "no trigger"),
        (at("https://evil.example/acme/issue/APP-7"), "origin"),
        (at("https://linear.app.evil.example/acme"), "origin"),
        (lambda d: event_of(d)["filters"].popitem(), "exactly the scope"),
        (lambda d: event_of(d)["filters"].update(labels=["x"]), "exactly the scope"),
        (lambda d: event_of(d)["filters"].update(teams=["other"]), "teams: is not granted"),
        (lambda d: event_of(d).update(body="text"), "additionalProperties"),
    ],
)
def test_what_is_not_within_it_is_refused(change: Callable[[Any], object], problem: str) -> None:
    document = copy.deepcopy(body())
    change(document)
    with pytest.raises(ValueError, match=problem) as caught:
        check(document, ONE.subscription)
    assert "evil" not in str(caught.value)


def test_a_filter_on_a_granted_collection_only_narrows() -> None:
    content = {key: value for key, value in ONE.subscription.document.items() if key != "digest"}
    trigger = content["triggers"]["issue-updated"]
    narrowed = {
        **content,
        "triggers": {"issue-updated": {**trigger, "filters": {"teams": "team", "projects": "project"}}},
        "grants": {**content["grants"], "teams": ["t", "u"]},
        "filters": {"teams": ["u", "v"], "projects": ["p"]},
    }
    subscription = load_subscription(encode(seal(narrowed)), "d")
    scope = scope_of(subscription.triggers["issue-updated"], subscription)
    assert scope["teams"] == {"u"}
    assert scope["projects"] == {"p"}
