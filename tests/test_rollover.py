"""A rollover while runs are on their way: each event has one admitted run, under the old digest or under the new one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.errors import Rejection
from gateway.subscriptions import Enrolled
from tests.destination_house import COMMIT, House, enrolled_with, house
from tests.valkey import PrivateValkey

OLD, NEW = "on: repository_dispatch\n", "on: repository_dispatch # new\n"


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server, OLD) as made:
        made.file(OLD, COMMIT)
        await made.reconciler.run()
        yield made


async def switched(home: House) -> Enrolled:
    """Enroll a new version, merge it, and let a look switch."""
    new = enrolled_with(NEW)
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    home.file(NEW)
    await home.reconciler.run()
    assert await home.store.suspended() == {home.digest: "workflow-superseded"}
    return new


async def waiting(home: House) -> int:
    return (await home.store.depth("linear-acme")).waiting


async def test_what_was_sent_to_a_run_that_asks_after_the_switch_is_sent_again_once(home: House) -> None:
    dispatch = await home.dispatch()
    await switched(home)
    for _ in range(2):
        with pytest.raises(Rejection, match="suspended"):
            await home.admit(home.token(), dispatch)
        assert await waiting(home) == 1


async def test_a_run_that_is_judged_while_its_dispatch_is_carried_over_is_not_admitted(home: House) -> None:
    dispatch = await home.dispatch()
    home.github.double.script(home.one.subscription.repository, {"delay_s": 1.0}, on="contents")
    calls = home.github.double.calls
    before = calls["contents"]
    early = asyncio.create_task(home.admit(home.token(), dispatch))
    async with asyncio.timeout(10):
        while calls["contents"] == before:  # noqa: ASYNC110 (the double counts, and tells nobody)
            await asyncio.sleep(0.01)
    await switched(home)
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)
    assert not early.done()
    with pytest.raises(Rejection, match="suspended"):
        await early
    assert await waiting(home) == 1


async def test_what_a_full_store_does_not_carry_over_keeps_its_run(home: House) -> None:
    dispatch = await home.dispatch()
    await switched(home)
    with home.valkey.full(), pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)
    assert await waiting(home) == 0
    await home.store.resume(home.digest)
    assert (await home.admit(home.token(), dispatch)).dispatch == dispatch


async def test_what_a_full_store_did_not_carry_over_is_by_the_next_call(home: House) -> None:
    dispatch = await home.dispatch()
    await switched(home)
    with home.valkey.full(), pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), dispatch)
    assert await waiting(home) == 1


async def test_of_a_delivery_that_filled_two_dispatches_only_the_refused_one_goes_on(home: House) -> None:
    urls = [f"https://linear.app/acme/issue/ENG-{number}" for number in range(30)]
    async with home.dispatching():
        await home.queue(*urls)
        async with asyncio.timeout(10):
            while len(home.github.double.dispatches) < 2:  # noqa: ASYNC110 (the double tells nobody)
                await asyncio.sleep(0.01)
    sent = [body["body"]["client_payload"]["gateway"] for body in home.github.double.dispatches]
    first, second = sorted(sent, key=lambda one: -len(one["events"]))
    await home.admit(home.token(), first["dispatch"])
    await switched(home)
    with pytest.raises(Rejection, match="suspended"):
        await home.admit(home.token(), second["dispatch"])
    assert await waiting(home) == 10
    before = len(home.github.double.dispatches)
    async with home.dispatching():
        async with asyncio.timeout(10):
            while len(home.github.double.dispatches) == before:  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.01)
    again = home.github.double.dispatches[-1]["body"]["client_payload"]["gateway"]
    assert again["events"] == second["events"]
