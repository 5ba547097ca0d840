"""Reconciliation against the GitHub double: what suspends, what resumes, and a rollover without a gap."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import Rejection
from gateway.reconcile import Row, state_of
from tests.destination_house import House, enrolled_with, house
from tests.valkey import PrivateValkey

OLD, NEW = "on: repository_dispatch\n", "on: repository_dispatch # new\n"


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as running:
        yield running


@pytest.fixture
async def home(valkey: PrivateValkey) -> AsyncIterator[House]:
    async with house(valkey, OLD) as made:
        yield made


def aw(home: House, text: str | None) -> None:
    home.file(text, path=".github/workflows/aw.json")


async def one_row(home: House, **more: Any) -> Row:
    (row,) = await home.reconciler.run(**more)
    return row


async def test_what_agrees_is_active(home: House) -> None:
    row = await one_row(home)
    assert (row.state, row.reason, row.agrees) == ("active", None, True)
    assert await home.store.suspended() == {}


@pytest.mark.parametrize(
    "text", [None, "{}", '{"gateway-dispatch": false}', '{"gateway-dispatch": "true"}', '{"gateway-dispatch": 1}', "[]", "x",
             '{"gateway-dispatch": true, "gateway-dispatch": true}']
)  # fmt: skip
async def test_a_revoked_opt_in_suspends_until_it_is_enrolled_again(home: House, text: str | None) -> None:
    aw(home, text)
    assert (await one_row(home)).reason == "opt-in-revoked"
    assert await home.store.suspended() == {home.digest: "opt-in-revoked"}
    aw(home, '{"gateway-dispatch": true}')
    row = await one_row(home)
    assert (row.state, row.reason, row.agrees) == ("suspended", "opt-in-revoked", True)  # never widened by a look
    row = await one_row(home, digests=[home.digest], enrolling=True)
    assert (row.state, row.reason) == ("active", None)


async def test_a_changed_or_missing_workflow_suspends(home: House) -> None:
    home.file("on: push\n")
    assert (await one_row(home)).reason == "workflow-hash"
    home.file(None)
    assert (await one_row(home)).reason == "workflow-hash"  # the first reason stays
    await home.store.resume(home.digest)
    assert (await one_row(home)).reason == "workflow-missing"


async def test_a_repository_that_moved_went_or_was_replaced_suspends(home: House) -> None:
    double, name = home.github.double, home.one.subscription.repository
    double.add_repository(name).id = 5
    assert (await one_row(home)).reason == "repository-replaced"
    await home.store.resume(home.digest)
    double.add_repository(name).moved_to = "acme/new"
    assert (await one_row(home)).reason == "repository-moved"
    await home.store.resume(home.digest)
    double.script(name, {"status": 404, "body": {"message": "Not Found"}}, on="repository")
    assert (await one_row(home)).reason == "repository-gone"


async def test_github_away_or_without_permission_changes_nothing(home: House) -> None:
    name = home.one.subscription.repository
    home.github.double.script(name, {"status": 500}, on="repository")
    row = await one_row(home)
    assert (row.state, row.agrees) == ("active", None)
    home.github.double.script(name, {"status": 403, "body": {"message": "Resource not accessible"}}, on="contents")
    row = await one_row(home)
    assert (row.state, row.agrees) == ("active", None)
    assert await home.store.suspended() == {}


async def test_an_attested_enrollment_without_permission_says_so(home: House) -> None:
    home.enrolled[home.digest] = replace(home.one, attested=True)
    home.github.double.script(home.one.subscription.repository, {"status": 403}, on="contents")
    row = await one_row(home)
    assert (row.state, row.reason, row.agrees) == ("active", "attested", None)


async def test_a_refused_admission_looks_at_most_once_a_minute_and_suspends_only_where_the_branch_disagrees(
    home: House,
) -> None:
    dispatch = await home.dispatch()
    ticks = [0.0]
    home.reconciler._clock = lambda: ticks[0]
    bad = {"workflow_sha": "c" * 40, "job_workflow_sha": None}
    home.file("on: push\n", "c" * 40)
    for _ in range(3):
        with pytest.raises(Rejection, match="workflow-hash"):
            await home.admit(home.token(**bad), dispatch)
    assert home.github.double.calls["repository"] == 2  # one for the branch, one look
    assert await home.store.suspended() == {}
    home.file("on: push\n")
    ticks[0] = 61
    with pytest.raises(Rejection, match="workflow-hash"):
        await home.admit(home.token(**bad), dispatch)
    assert await home.store.suspended() == {home.digest: "workflow-hash"}
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)


async def test_a_strangers_refused_run_makes_nobody_look(home: House) -> None:
    dispatch = await home.dispatch()
    with pytest.raises(Rejection, match="audience"):
        await home.admit(home.token(aud="x", repository_id="5"), dispatch)
    assert home.github.double.calls["repository"] == 0


async def test_rollover_without_a_gap(home: House) -> None:
    old, new = home.digest, enrolled_with(NEW)
    await home.reconciler.run()
    home.enrolled[new.subscription.digest] = new
    rows = await home.reconciler.run([new.subscription.digest], enrolling=True)
    assert {row.digest: (row.state, row.reason) for row in rows} == {
        old: ("active", None),
        new.subscription.digest: ("mismatched", "workflow-pending"),
    }
    dispatch = await home.dispatch()
    await home.admit(home.token(), dispatch)  # the old one goes on
    home.file(NEW)
    rows = await home.reconciler.run()
    assert {row.digest: (row.state, row.reason) for row in rows} == {
        old: ("mismatched", "workflow-superseded"),
        new.subscription.digest: ("active", None),
    }


async def test_an_admission_sees_the_merged_workflow_and_switches(home: House) -> None:
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    dispatch = await home.dispatch()
    home.file(NEW)
    home.file(NEW, "b" * 40)
    token = home.token(
        aud=f"gh-aw-gateway:{new.subscription.workflow_hash}", workflow_sha="b" * 40, job_workflow_sha=None
    )
    with pytest.raises(Rejection):
        await home.admit(token, dispatch)
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}


async def test_documents_that_were_only_put_there_settle_by_a_look(home: House) -> None:
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run()
    assert await home.store.suspended() == {new.subscription.digest: "workflow-pending"}
    home.file(NEW)
    await home.reconciler.run()
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}


async def test_a_first_workflow_may_be_enrolled_before_it_is_merged(home: House) -> None:
    home.file(None)
    row = await one_row(home, digests=[home.digest], enrolling=True)
    assert (row.state, row.reason) == ("mismatched", "workflow-pending")
    assert (await one_row(home)).reason == "workflow-pending"
    aw(home, None)
    assert (await one_row(home)).reason == "workflow-pending"
    aw(home, '{"gateway-dispatch": true}')
    home.file(OLD)
    assert (await one_row(home)).state == "active"


def test_states() -> None:
    assert [state_of(reason) for reason in (None, "workflow-pending", "workflow-hash")] == [
        "active",
        "mismatched",
        "suspended",
    ]
