"""Every trigger: it fires on exactly its evidence, and on nothing that only looks like it."""

import json
from collections import Counter

import pytest

from gateway import families
from gateway.app import project
from gateway.cli.connectors import load_connectors
from gateway.delivery import Outcome, RawDelivery
from gateway.events import read
from gateway.match import match
from gateway.verify import assumed
from tests.trigger_vectors import FILES, KINDS, Case, cases, enrolled, run

NAMES = {
    "linear": "issue-created issue-updated issue-removed issue-closed issue-reopened issue-labeled issue-unlabeled",
    "jira": "issue-created issue-updated issue-deleted issue-closed issue-reopened issue-labeled issue-unlabeled",
    "azure-devops": "work-item-created work-item-updated work-item-deleted work-item-restored work-item-closed"
    " work-item-reopened work-item-labeled work-item-unlabeled",
    "slack": "threaded-app-mention",
    "teams": "channel-message-created",
    "confluence": "page-created page-updated",
    "sentry": "error-created error-regressed issue-alert-triggered",
    "servicenow": "incident-updated requested-item-updated",
    "gitlab": "merge-request-opened pipeline-updated",
}
ALL = list(cases())


def test_every_named_trigger_is_shipped_and_no_other() -> None:
    shipped = {name: sorted(one.triggers) for name, one in load_connectors().items()}
    assert shipped == {name: sorted(triggers.split()) for name, triggers in NAMES.items()}


def test_every_trigger_has_vectors_of_each_kind() -> None:
    wanted = {(connector, name) for connector, triggers in NAMES.items() for name in triggers.split()}
    wanted |= {("github", families.trigger_name(f, a)) for f, row in families.FAMILIES.items() for a in row.activities}
    wanted.add(("github", families.SLASH_COMMAND))
    counts = Counter((case.selected.connector, case.selected.trigger, case.kind) for case in ALL)
    assert {(connector, trigger) for connector, trigger, _ in counts} == wanted
    for connector, trigger in wanted:
        assert all(counts[connector, trigger, kind] for kind in KINDS), (connector, trigger)


def test_every_file_cites_the_provider() -> None:
    for file in FILES:
        document = json.loads(file.read_text())
        assert document["docs"], file
        assert all(url.startswith("https://") for url in document["docs"]), file


@pytest.mark.parametrize("case", [case for case in ALL if case.kind == "fires"], ids=str)
def test_fires(case: Case) -> None:
    found = run(case)
    assert (found.outcome, found.reason) == (Outcome.FORWARDED, None), found
    source, index = enrolled(case.selected)
    raw = RawDelivery("d", "s", 1769860800.0, case.headers, b"", case.body)
    [event] = read(assumed(raw, source), source, index.wanted("s"), 1769860800.0).events
    [one], _ = match(event, source, index)
    assert (one.event.type, one.event.url, one.event.filters) == (case.selected.trigger, case.url, case.scope)
    [item] = project(raw, [(event, (one,))], (), 0.0).items
    assert len(item.entries) == 1


@pytest.mark.parametrize("case", [case for case in ALL if case.kind != "fires"], ids=str)
def test_does_not_fire(case: Case) -> None:
    found = run(case)
    assert found.outcome != Outcome.FORWARDED, found
    assert not any(one.matched for _, one in found.considered)
    if case.reason is not None:
        assert found.reason in case.reason.split("|"), found
    if case.test is not None or case.pointer is not None:
        [(_, one)] = found.considered
        assert case.test in (None, one.test), one
        assert case.pointer in (None, one.pointer), one


def test_the_vectors_are_of_shipped_connectors() -> None:
    assert {file.stem for file in FILES} == {*NAMES, families.CONNECTOR}
