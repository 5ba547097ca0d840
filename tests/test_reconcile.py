"""Reconciliation against the GitHub double: what suspends, what resumes, and a rollover without a gap."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from gateway import reconcile
from gateway.destination import Seen
from gateway.errors import Rejection
from gateway.reconcile import LOOKS, Reconciler, Row, forget
from gateway.structs import replace
from gateway.subscriptions import Enrolled, load_subscription, seal
from gateway.suspension import state_of
from gateway.words import settled
from tests.destination_house import URL, House, enrolled_with, house
from tests.valkey import PrivateValkey

OLD, NEW = "on: repository_dispatch\n", "on: repository_dispatch # new\n"


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server, OLD) as made:
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


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("text", ["on: push\n", None])
async def test_enrolling_again_what_still_has_another_workflow_leaves_it_suspended(
    home: House, looked: bool, text: str | None
) -> None:
    """Were it pending, a revert would make it active with nobody deciding that."""
    await home.reconciler.run()
    home.file(text)
    if looked:
        await home.reconciler.run()
    row = await one_row(home, digests=[home.digest], enrolling=True)
    assert (row.state, row.reason) == ("suspended", "workflow-missing" if text is None else "workflow-hash")
    home.file(OLD)
    assert (await one_row(home)).state == "suspended"
    assert (await one_row(home, digests=[home.digest], enrolling=True)).state == "active"


@pytest.mark.parametrize("before", ["opt-in-revoked", "repository-gone", "repository-moved", "workflow-missing"])
async def test_enrolling_again_names_what_does_not_agree_now(home: House, before: str) -> None:
    await home.store.suspend(home.digest, before)
    home.file("on: push\n")
    row = await one_row(home, digests=[home.digest], enrolling=True)
    assert (row.state, row.reason) == ("suspended", "workflow-hash")


async def test_a_superseded_workflow_that_is_enrolled_again_waits_for_its_revert(home: House) -> None:
    await home.reconciler.run()
    await rolled(home)
    await home.reconciler.run()
    assert (await home.store.suspended())[home.digest] == "workflow-superseded"
    await home.reconciler.run([home.digest], enrolling=True)
    assert (await home.store.suspended())[home.digest] == "workflow-pending"


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


async def test_a_repository_that_is_spelled_otherwise_now_suspends_as_none_of_its_runs_could_be_admitted(
    home: House,
) -> None:
    home.github.double.add_repository(home.one.subscription.repository).full_name = "Acme/App"
    dispatch = await home.dispatch()
    with pytest.raises(Rejection, match="repository"):
        await home.admit(home.token(repository="Acme/App"), dispatch)
    assert await home.store.suspended() == {home.digest: "repository-moved"}
    assert (await one_row(home)).reason == "repository-moved"


@pytest.mark.parametrize("on", ["token", "repository", "contents"])
@pytest.mark.parametrize(
    "answer",
    [
        {"status": 302, "headers": {"Location": "https://login.example/"}},
        {"status": 307, "headers": {"Location": "/elsewhere"}},
        {"status": 304},
        {"status": 429},
        {"status": 403, "headers": {"Retry-After": "60"}},
        {"status": 503, "body": "<html>"},
        {"status": 204},
    ],
)
async def test_what_says_nothing_of_the_repository_changes_nothing(
    home: House, on: str, answer: dict[str, Any]
) -> None:
    home.github.double.script(home.one.subscription.repository, answer, on=on)
    row = await one_row(home)
    assert (row.state, row.agrees) == ("active", None)
    assert await home.store.suspended() == {}


async def test_a_repository_that_joined_the_installation_since_is_not_gone(home: House) -> None:
    await home.reconciler.run()
    joined = enrolled_with(OLD, {"repository": "acme/joined", "repository_id": 7})
    home.enrolled[joined.subscription.digest] = joined
    home.app._clock = lambda: time.time() + 60
    repo = home.github.double.add_repository("acme/joined", 7)
    repo.contents[(joined.subscription.workflow, None)] = OLD.encode()
    row = next(one for one in await home.reconciler.run() if one.repository == "acme/joined")
    assert (row.reason, settled(row.reason, row.installation)) == (
        "repository-gone",
        "The repository is gone, or the App is not installed on it (installation 11).",
    )
    home.github.double.world.installations[11].repositories.add("acme/joined")
    home.app._clock = lambda: time.time() + 120
    assert await home.destinations.branch(joined) == "main"  # a run that asks for admission
    rows = await home.reconciler.run([joined.subscription.digest], enrolling=True)
    assert [one.state for one in rows] == ["active"]


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


async def test_refused_admissions_share_a_look_and_the_last_of_a_minute_gets_one_after_it(home: House) -> None:
    home.reconciler = Reconciler(home.store, home.destinations, lambda: list(home.enrolled.values()), reread_s=1.0)
    looks = 0
    run = home.reconciler.run

    async def counted(digests: Any) -> Any:
        nonlocal looks
        looks += 1
        return await run(digests)

    home.reconciler.run = counted  # type: ignore[method-assign, assignment]
    await home.reconciler.disagreed(home.one)
    assert looks == 1
    refused = [asyncio.create_task(home.reconciler.disagreed(home.one)) for _ in range(20)]
    await asyncio.sleep(0.2)
    home.file("on: push\n")  # changed within the minute that the first look began
    assert (looks, await home.store.suspended()) == (1, {})
    await asyncio.gather(*refused)
    assert (looks, await home.store.suspended()) == (2, {home.digest: "workflow-hash"})


async def test_a_refused_admission_suspends_only_where_the_branch_disagrees(home: House) -> None:
    dispatch = await home.dispatch()
    bad = {"workflow_sha": "c" * 40, "job_workflow_sha": None}
    home.file("on: push\n", "c" * 40)
    with pytest.raises(Rejection, match="workflow-hash"):
        await home.admit(home.token(**bad), dispatch)
    assert await home.store.suspended() == {}
    home.file("on: push\n")
    with pytest.raises(Rejection, match="workflow-hash"):
        await home.admit(home.token(**bad), dispatch)
    assert await home.store.suspended() == {home.digest: "workflow-hash"}
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)


async def test_a_merge_before_its_enrollment_is_a_rollover_too(home: House) -> None:
    """The old digest was suspended for its changed workflow; the new one takes over what waits, once it is enrolled."""
    await home.reconciler.run()
    await home.queue()
    home.file(NEW)
    await home.reconciler.run()
    assert await home.store.suspended() == {home.digest: "workflow-hash"}
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}
    async with home.dispatching():
        for _ in range(500):
            if home.github.double.dispatches:
                break
            await asyncio.sleep(0.02)
    (sent,) = home.github.double.dispatches
    assert sent["client_payload"]["gateway"]["subscription"] == new.subscription.digest


@pytest.mark.parametrize("reason", [None, "opt-in-revoked", "workflow-superseded"])
async def test_no_run_is_admitted_of_what_was_revoked_whatever_it_was(home: House, reason: str | None) -> None:
    dispatch = await home.dispatch()
    if reason is not None:
        await home.store.suspend(home.digest, reason)
    await forget(home.store, home.digest)
    for _ in range(2):
        with pytest.raises(Rejection, match="suspended"):
            await home.admit(home.token(), dispatch)
        await home.reconciler.run()  # by a process that has not read its folder


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


async def rolled(home: House, **changes: Any) -> Enrolled:
    """Enroll and merge a new version, and let a look switch."""
    new = enrolled_with(NEW, **changes)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    home.file(NEW)
    home.file(NEW, "b" * 40)
    return new


async def sent_for(home: House, digest: str) -> list[dict[str, Any]]:
    """Run a dispatcher until something was sent for a digest."""
    end = time.monotonic() + 10
    async with home.dispatching():
        while time.monotonic() < end:
            bodies = [one["body"]["client_payload"]["gateway"] for one in home.github.double.dispatches]
            if found := [body for body in bodies if body["subscription"] == digest]:
                return found
            await asyncio.sleep(0.02)
    raise AssertionError("nothing was sent")


async def test_what_was_queued_goes_on_under_the_new_digest(home: House) -> None:
    for n in range(3):
        await home.queue(f"https://linear.app/acme/issue/ENG-{n}")
    new = await rolled(home)
    await home.reconciler.run()
    (body,) = await sent_for(home, new.subscription.digest)
    assert [event["url"][-5:] for event in body["events"]] == ["ENG-0", "ENG-1", "ENG-2"]
    assert len(home.github.double.dispatches) == 1
    token = home.token(
        aud=f"gh-aw-gateway:{new.subscription.workflow_hash}", workflow_sha="b" * 40, job_workflow_sha=None
    )
    await home.admit(token, body["dispatch"], new.subscription.digest)


async def test_what_was_sent_and_found_the_new_workflow_is_sent_again_once(
    home: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    dispatch = await home.dispatch()
    new = await rolled(home)
    token = {
        "aud": f"gh-aw-gateway:{new.subscription.workflow_hash}",
        "workflow_sha": "b" * 40,
        "job_workflow_sha": None,
    }
    for _ in range(3):
        with pytest.raises(Rejection, match="audience"):
            await home.admit(home.token(**token), dispatch)
    assert [one.getMessage() for one in caplog.records].count("rolled-over") == 1  # as often as it was queued
    (body,) = await sent_for(home, new.subscription.digest)
    assert len(home.github.double.dispatches) == 2
    await home.admit(home.token(**token), body["dispatch"], new.subscription.digest)
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)


async def test_what_found_the_new_workflow_while_github_was_away_is_sent_again(home: House) -> None:
    """Nobody else asks for a look: the run of the one event that was sent is refused once, and does not come again."""
    dispatch = await home.dispatch()
    new = await rolled(home)
    home.github.double.script(home.one.subscription.repository, {"status": 500}, {"status": 500}, on="repository")
    with pytest.raises(Rejection, match="audience"):
        await home.admit(home.token(aud="gh-aw-gateway:another-subscription"), dispatch)
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}
    (body,) = await sent_for(home, new.subscription.digest)
    assert [event["url"] for event in body["events"]] == [URL]


async def test_a_look_for_a_refused_run_ends_where_github_stays_away(home: House) -> None:
    home.reconciler._reread_s = 0.01
    home.github.double.script(home.one.subscription.repository, *[{"status": 500}] * (LOOKS + 5), on="repository")
    before = home.github.double.calls["repository"]
    await home.reconciler.disagreed(home.one)
    assert home.github.double.calls["repository"] - before == LOOKS
    assert (home.reconciler._next, home.reconciler._waiting) == ({}, {})


async def test_what_was_admitted_before_the_switch_is_not_sent_again(home: House) -> None:
    dispatch = await home.dispatch()
    await home.admit(home.token(), dispatch)
    new = await rolled(home)
    await home.reconciler.run()
    await home.rollover.refused(home.one, dispatch)
    depth = await home.store.depth("linear-acme")
    assert (depth.waiting, depth.sealed) == (0, 0)
    assert new.subscription.digest not in await home.store.suspended()


async def test_what_the_new_digest_does_not_grant_becomes_a_dead_letter(home: House) -> None:
    await home.queue()
    document = {
        **home.one.subscription.document,
        "grants": {"organizations": ["11111111-1111-4111-8111-111111111111"], "teams": ["other"]},
    }
    document.pop("digest")
    document["workflow_hash"] = enrolled_with(NEW).subscription.workflow_hash
    narrower = load_subscription(json.dumps(seal(document)).encode(), "test")
    await rolled(home, subscription=narrower)
    await home.reconciler.run()
    async with home.dispatching():
        for _ in range(500):
            if letters := await home.store.dead_letters("linear-acme"):
                break
            await asyncio.sleep(0.02)
    assert [letter.reason for letter in letters] == ["superseded"]
    assert home.github.double.dispatches == []


async def test_documents_that_were_only_put_there_settle_by_a_look(home: House) -> None:
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run()
    assert await home.store.suspended() == {new.subscription.digest: "workflow-pending"}
    home.file(NEW)
    await home.reconciler.run()
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}


async def test_two_active_versions_are_settled_without_being_asked(home: House) -> None:
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    listed = list(home.enrolled.values())
    watching = asyncio.create_task(Reconciler(home.store, home.destinations, lambda: listed).watch())
    for _ in range(200):
        if await home.store.suspended():
            break
        await asyncio.sleep(0.02)
    await ended(watching)
    assert await home.store.suspended() == {new.subscription.digest: "workflow-pending"}
    assert home.github.double.calls["repository"] == 1


async def ended(watching: "asyncio.Task[None]") -> None:
    """End a watch, before its store is closed under a call of it: that would leave a connection open."""
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def watched_until(home: House, wanted: dict[str, str]) -> None:
    """Let a process watch its entries until the store has the wanted suspensions, and a little longer."""
    listed = list(home.enrolled.values())
    watching = asyncio.create_task(Reconciler(home.store, home.destinations, lambda: listed).watch())
    for _ in range(100):
        if await home.store.suspended() == wanted and home.github.double.calls["repository"]:
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    await ended(watching)
    assert await home.store.suspended() == wanted


async def test_an_entry_that_nobody_compared_is_looked_at_once(home: House) -> None:
    """Written by hand, or enrolled before the store was there: the repository has still to have opted in."""
    aw(home, None)
    await watched_until(home, {home.digest: "opt-in-revoked"})
    aw(home, '{"gateway-dispatch": true}')
    await watched_until(home, {home.digest: "opt-in-revoked"})  # only an operator lifts it
    await home.reconciler.run([home.digest], enrolling=True)
    calls = home.github.double.calls["repository"]
    await watched_until(home, {})
    assert home.github.double.calls["repository"] == calls  # it was found good, once


async def test_a_bug_at_one_workflow_keeps_no_other_from_being_compared(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = enrolled_with(OLD, {"repository": "acme/other"})
    home.enrolled[other.subscription.digest] = other

    async def look(enrolled: Enrolled) -> Seen:
        if enrolled is home.one:
            raise KeyError("a bug")
        return Seen("main", opted_in=False, workflow_hash="")

    monkeypatch.setattr(home.destinations, "look", look)
    monkeypatch.setattr(reconcile, "WATCH_S", 0.01)
    watching = asyncio.create_task(
        Reconciler(home.store, home.destinations, lambda: list(home.enrolled.values())).watch()
    )
    async with asyncio.timeout(10):
        while await home.store.suspended() != {other.subscription.digest: "opt-in-revoked"}:  # noqa: ASYNC110 (the store tells nobody)
            await asyncio.sleep(0.01)
    assert not watching.done()
    await ended(watching)


async def test_an_entry_from_before_its_workflow_waits_for_it(home: House) -> None:
    home.file(None)
    await watched_until(home, {home.digest: "workflow-pending"})
    home.file(OLD)
    await home.reconciler.run()
    assert await home.store.suspended() == {}


async def test_an_entry_that_cannot_be_read_yet_stays_as_it_is_and_an_attested_one_is_not_read(home: House) -> None:
    home.github.double.script(home.one.subscription.repository, {"status": 500}, on="repository")
    await watched_until(home, {})
    assert home.github.double.calls["repository"] == 1
    home.enrolled[home.digest] = replace(home.one, attested=True)
    home.github.double.calls.clear()
    listed = list(home.enrolled.values())
    watching = asyncio.create_task(Reconciler(home.store, home.destinations, lambda: listed).watch())
    await asyncio.sleep(0.2)
    await ended(watching)
    assert home.github.double.calls["repository"] == 0


def asked(home: House) -> int:
    """How often the store was asked for one value."""
    with home.valkey.client() as client:
        found: int = client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
        return found


async def test_a_workflow_that_was_just_looked_at_is_not_asked_for_again(home: House) -> None:
    home.github.double.script(home.one.subscription.repository, {"status": 500}, on="repository")
    home.reconciler._reread_s = 60
    listed = list(home.enrolled.values())
    groups = reconcile._groups(listed)
    assert await home.reconciler._settle_new(groups, {}, listed) == groups
    before = asked(home)
    for _ in range(5):
        assert await home.reconciler._settle_new(groups, {}, listed) == groups
    assert asked(home) == before  # a thousand subscriptions of one workflow would ask a thousand times a second


async def test_one_workflow_that_cannot_be_read_has_nobody_ask_for_all_others(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other enrollment was asked for each second: of ten thousand, all of a process's time."""
    others = [enrolled_with(OLD, {"repository": f"acme/other-{number}"}) for number in range(20)]
    home.enrolled |= {one.subscription.digest: one for one in others}
    for one in others:
        await home.store.remember(reconcile._fact(one.subscription.digest), "1", 60)
    home.github.double.script(home.one.subscription.repository, *[{"status": 500}] * 9, on="repository")
    monkeypatch.setattr(reconcile, "WATCH_S", 0.01)
    listed = list(home.enrolled.values())
    before = asked(home)
    watching = asyncio.create_task(Reconciler(home.store, home.destinations, lambda: listed).watch())
    await asyncio.sleep(0.5)
    assert 20 <= asked(home) - before < 40  # once each, and what the look itself asks
    listed = list(home.enrolled.values())  # taken in anew: all of it is asked for once more
    await asyncio.sleep(0.5)
    await ended(watching)
    assert 40 <= asked(home) - before < 80


@contextlib.asynccontextmanager
async def watched(home: House, listed: Callable[[], Sequence[Enrolled]]) -> AsyncIterator[None]:
    """Another process watches, and looks around a hundred times a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "WATCH_S", 0.01)
        watching = asyncio.create_task(Reconciler(home.store, home.destinations, listed, reread_s=0.05).watch())
        await asyncio.sleep(0.2)
        yield
        assert not watching.done()
        await ended(watching)


async def looked(home: House, times: int) -> None:
    """GitHub is asked for a repository so often, and then no more."""
    async with asyncio.timeout(5):
        while home.github.double.calls["repository"] < times:  # noqa: ASYNC110 (the double tells nobody)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert home.github.double.calls["repository"] == times


async def suspended_as(home: House, wanted: Mapping[str, str]) -> None:
    async with asyncio.timeout(5):
        while await home.store.suspended() != wanted:  # noqa: ASYNC110 (the store tells nobody)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("before", ["revoked", "opt-in-revoked", "workflow-pending"])
@pytest.mark.parametrize("found_good", [True, False])
async def test_what_was_enrolled_again_while_github_was_away_is_compared_when_it_is_back(
    home: House, before: str, found_good: bool
) -> None:
    """A process that had read the folder first found it suspended, and took it for settled for good."""
    if found_good:
        await home.reconciler.run()
    await home.store.suspend(home.digest, before)
    listed = list(home.enrolled.values())
    async with watched(home, lambda: listed):
        aw(home, None)
        home.github.double.script(home.one.subscription.repository, {"status": 500}, on="repository")
        assert (await one_row(home, digests=[home.digest], enrolling=True)).state == "active"
        await suspended_as(home, {home.digest: "opt-in-revoked"})


async def test_what_a_look_made_active_is_looked_at_no_more(home: House) -> None:
    await home.store.suspend(home.digest, "opt-in-revoked")
    listed = list(home.enrolled.values())
    async with watched(home, lambda: listed):
        assert (await one_row(home, digests=[home.digest], enrolling=True)).agrees
        calls = home.github.double.calls["repository"]
        await asyncio.sleep(0.3)
        assert home.github.double.calls["repository"] == calls


async def test_what_once_was_active_does_not_wait_for_a_revert_where_it_was_resumed_unread(home: House) -> None:
    await home.reconciler.run()
    await home.store.suspend(home.digest, "opt-in-revoked")
    home.github.double.script(home.one.subscription.repository, {"status": 500}, on="repository")
    await home.reconciler.run([home.digest], enrolling=True)
    home.file("on: push\n")
    listed = list(home.enrolled.values())
    async with watched(home, lambda: listed):
        await suspended_as(home, {home.digest: "workflow-hash"})


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "mistake",
    [{"installation": 99}, {"repository_id": 5}, {"repository": "ACME/app"}],
    ids=["installation", "repository-id", "spelling"],
)
async def test_a_mistake_in_one_enrollment_of_a_workflow_says_nothing_of_another(
    home: House, mistake: dict[str, Any], first: bool
) -> None:
    """All were judged by what the first one's installation, id and spelling showed."""
    grants = {**home.one.subscription.document["grants"], "teams": ["other"]}
    spelled = {name: value for name, value in mistake.items() if name == "repository"}
    changes = {name: value for name, value in mistake.items() if name not in spelled}
    wrong = enrolled_with(OLD, {"grants": grants, **spelled}, **changes)
    both = [wrong, home.one] if first else [home.one, wrong]
    rows = await Reconciler(home.store, home.destinations, lambda: both).run()
    assert {row.digest: row.state for row in rows} == {home.digest: "active", wrong.subscription.digest: "suspended"}
    assert list(await home.store.suspended()) == [wrong.subscription.digest]


async def test_a_limited_installation_is_asked_nothing_more_for_any_of_its_workflows(home: House) -> None:
    """GitHub counts on against who goes on; the dispatcher waits with it."""
    others = [enrolled_with(OLD, {"repository": f"acme/other-{number}"}) for number in range(20)]
    answer = {"status": 429, "headers": {"Retry-After": "60"}}
    home.github.double.script(home.one.subscription.repository, *[answer] * 9, on="repository")
    listed = [home.one, *others]
    async with watched(home, lambda: listed):
        await looked(home, 1)
    assert list(await home.store.parked()) == [home.one.installation]


async def test_what_github_does_not_show_is_looked_at_seldom_and_at_once_where_it_is_enrolled_otherwise(
    home: House,
) -> None:
    """Once a minute each, fifty such workflows spend what an installation may ask in an hour."""
    home.github.double.script(home.one.subscription.repository, *[{"status": 403}] * 9, on="contents")
    listed = [home.one]
    async with watched(home, lambda: listed):
        await looked(home, 1)
        listed = [replace(home.one, url_template=None)]
        await looked(home, 2)


async def test_what_was_taken_out_during_a_look_is_looked_at_no_more(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [enrolled_with(OLD, {"repository": f"acme/other-{number}"}) for number in range(3)]
    listed, asked_for = [home.one, *others], []

    async def look(enrolled: Enrolled) -> Seen:
        nonlocal listed
        asked_for.append(enrolled)
        listed = [home.one]
        return Seen("main", opted_in=False, workflow_hash="")

    monkeypatch.setattr(home.destinations, "look", look)
    async with watched(home, lambda: listed):
        await suspended_as(home, {home.digest: "opt-in-revoked"})
        await asyncio.sleep(0.2)
    assert asked_for == [home.one]


async def test_a_look_costs_what_a_workflow_has_enrolled_and_not_its_square(home: House) -> None:
    """Each of thousands compared with each of the others held the loop for a minute, where GitHub was away."""
    subscription = home.one.subscription
    made = [replace(home.one, subscription=replace(subscription, digest=f"sha256:{n:064x}")) for n in range(2_000)]
    home.github.double.script(home.one.subscription.repository, *[{"status": 500}] * 2, on="repository")
    asked = 0
    version = reconcile._is_version

    def counted(other: Enrolled, one: Enrolled) -> bool:
        nonlocal asked
        asked += 1
        return version(other, one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "_is_version", counted)
        look = Reconciler(home.store, home.destinations, lambda: made)
        assert len(await look.run()) == 2_000
        assert asked == 0
        assert len(await look.run([made[7].subscription.digest], enrolling=True)) == 2_000
    assert asked == 2_000


async def test_enrolling_where_nothing_can_be_read(home: House) -> None:
    name, new = home.one.subscription.repository, enrolled_with(NEW)
    await home.store.suspend(home.digest, "opt-in-revoked")
    home.github.double.script(name, {"status": 500}, on="repository")
    assert (await one_row(home, digests=[home.digest], enrolling=True)).state == "active"  # the operator's act
    home.enrolled[new.subscription.digest] = new
    home.github.double.script(name, {"status": 500}, on="repository")
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    assert await home.store.suspended() == {new.subscription.digest: "workflow-pending"}
    home.enrolled[new.subscription.digest] = replace(new, attested=True)
    home.github.double.script(name, {"status": 403}, on="contents")
    await home.reconciler.run([new.subscription.digest], enrolling=True)
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
