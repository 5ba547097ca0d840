"""Modes, over a real store and the GitHub double: only a plain yes lets an asked dispatch go, once."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway import asks
from gateway.doubles.github import running
from gateway.github import GitHubApp, open_session
from gateway.settling import Gate
from gateway.store import Ask, Batch, Store
from gateway.structs import replace
from gateway.subscriptions import Enrolled
from tests.test_dispatcher import INSTALLATIONS, PEM, PUBLIC, House, until
from tests.valkey import PrivateValkey

APP_ID = 4711


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey(fsync="everysec") as server:
        yield server


@pytest.fixture
async def house(valkey: PrivateValkey) -> AsyncIterator[House]:
    valkey.client().flushall()
    store = await Store.open(valkey.url, require=True)
    async with (
        running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS) as github,
        open_session() as session,
    ):
        made = House(valkey, store, github, GitHubApp(github.address, APP_ID, PEM, session))
        yield made
        await made.stop()
    await store.close()


def start(house: House, ttl_s: float = asks.TTL_S) -> None:
    house.start(gate=asks.gate(house.store, clock=house.clock, ttl_s=ttl_s))


async def asked(house: House) -> str:
    async with asyncio.timeout(5):
        while not (found := await house.store.asked("s1")):  # noqa: ASYNC110 (another process may have asked)
            await asyncio.sleep(0.01)
    return next(iter(found))


async def test_a_yes_releases_at_once_and_only_once(house: House) -> None:
    enrolled = house.enroll("acme/web", mode="ask")
    await house.admit(enrolled)
    start(house)
    ident = await asked(house)
    await until(lambda: ("hold", "asked") in house.outcomes())
    assert house.sent == []
    assert (await house.store.dispatches([ident]))[0].status == "asked"
    now = house.clock()
    assert await house.store.answer("s1", ident, "yes", "ops", now) == "answered"
    assert house.dispatcher is not None
    house.dispatcher.wake("s1")
    await until(lambda: house.ids() == [ident], 2)
    assert await house.store.answer("s1", ident, "yes", "ops", now) == "already"
    await house.admit(enrolled)  # the next one of the same lane is another question
    assert await asked(house) != ident
    assert house.ids() == [ident]


async def test_a_no_makes_a_dead_letter_and_the_first_answer_stands(house: House) -> None:
    await house.admit(house.enroll("acme/web", mode="ask"))
    start(house)
    ident = await asked(house)
    assert await house.store.answer("s1", ident, "no", "ops", house.clock()) == "answered"
    assert await house.store.answer("s1", ident, "yes", "else", house.clock()) == "already"
    await until(lambda: ("dead", "denied") in house.outcomes())
    assert house.sent == []
    assert await house.dead() == ["denied"]


async def test_a_question_that_nobody_answers_fails_closed(house: House) -> None:
    await house.admit(house.enroll("acme/web", mode="ask"))
    start(house, ttl_s=0.2)
    ident = await asked(house)
    await until(lambda: ("dead", asks.EXPIRED) in house.outcomes())
    assert await house.store.answer("s1", ident, "yes", "ops", house.clock()) == "expired"
    assert (house.sent, await house.dead(), await house.store.asked("s1")) == ([], [asks.EXPIRED], {})


async def test_a_store_that_is_away_while_it_is_asked_lets_nothing_go(house: House, valkey: PrivateValkey) -> None:
    await house.admit(house.enroll("acme/web", mode="ask"))
    judge, judged = asks.gate(house.store, clock=house.clock), asyncio.Event()

    async def away(batch: Batch, enrolled: Enrolled) -> Gate | None:
        valkey.pause()
        try:
            return await judge(batch, enrolled)
        finally:
            valkey.resume()
            judged.set()

    house.start(gate=away)
    await asyncio.wait_for(judged.wait(), 10)
    await asyncio.sleep(0.5)
    assert house.sent == []
    assert [outcome for outcome, _ in house.outcomes() if outcome == "done"] == []


async def test_an_ask_blocks_its_own_queue_alone(house: House) -> None:
    await house.admit(house.enroll("acme/web", mode="ask"))
    await house.admit(house.enroll("acme/api"))
    start(house)
    await until(lambda: len(house.sent) == 1)
    assert await house.store.asked("s1")


async def test_a_question_survives_a_loosened_mode_and_a_restart(house: House) -> None:
    enrolled = house.enroll("acme/web", mode="ask")
    await house.admit(enrolled)
    start(house)
    ident = await asked(house)
    await until(lambda: ("hold", "asked") in house.outcomes())
    await house.stop()
    house.valkey.restart()
    house.enrolled[enrolled.subscription.digest] = replace(enrolled, mode="auto")
    house.clock.ahead = asks.LOOK_S + 1
    house.turns.clear()
    start(house)
    await until(lambda: ("hold", "asked") in house.outcomes())
    assert house.sent == []
    assert await house.store.answer("s1", ident, "yes", "ops", house.clock()) == "answered"
    await until(lambda: house.ids() == [ident])


async def test_deny_makes_dead_letters_and_a_replay_is_asked_about_anew(house: House) -> None:
    enrolled = house.enroll("acme/web", mode="ask")
    await house.admit(enrolled)
    start(house)
    ident = await asked(house)
    await house.store.answer("s1", ident, "no", "ops", house.clock())
    await until(lambda: ("dead", "denied") in house.outcomes())
    assert await house.store.replay_dead("s1", [ident], house.clock()) == [ident]
    assert await asked(house) == ident
    assert await house.store.ask_of("s1", ident) == Ask(*(await times(house, ident)))
    house.enrolled[enrolled.subscription.digest] = replace(enrolled, mode="deny")
    house.clock.ahead = asks.LOOK_S + 1
    await until(lambda: house.outcomes().count(("dead", "denied")) == 2)
    assert house.sent == []


async def times(house: House, ident: str) -> tuple[float, float]:
    found = await house.store.ask_of("s1", ident)
    assert found is not None
    return found.asked, found.expires


async def test_unknown_dispatches_cannot_be_answered(house: House) -> None:
    assert await house.store.answer("s1", "nothing", "yes", "ops", 1.0) == "unknown"
    assert await house.store.ask_of("s1", "nothing") is None


def test_only_a_plain_yes_is_one() -> None:
    for answer in ("no", "Yes", "yes ", "sure", ""):
        judged = asks.verdict(Ask(1.0, 99.0, answer, "x"), 2.0)
        assert judged is not None
        assert (judged.kind, judged.reason) == ("dead", "denied")
    assert asks.verdict(Ask(1.0, 99.0, "yes", "x"), 1000.0) is None
