"""The loop over real sockets: a real Valkey, the GitHub double, and time made short where it would be long."""

import asyncio
import hashlib
import itertools
import json
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway import dispatcher, pace, settling
from gateway.circuit import Circuit
from gateway.dispatcher import Dispatcher
from gateway.doubles.github import Running, running
from gateway.envelope import EnvelopeEvent
from gateway.errors import Unavailable
from gateway.github import GitHubApp, open_session
from gateway.pace import Limits, backoff_s
from gateway.settling import Gate, Settled
from gateway.store import Admit, AdmitItem, Batch, QueueEntry, Store
from gateway.structs import replace
from gateway.subscriptions import Enrolled, Subscription
from tests.valkey import PrivateValkey

APP_ID = 4711
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
HASH = "sha256:" + "0" * 64
INSTALLATIONS = {11: ["acme/web", "acme/api"], 12: ["beta/app"]}
numbers = itertools.count(1)


def digest_of(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def enrolled_for(repository: str, installation: int = 11, mode: str = "auto", name: str = "") -> Enrolled:
    subscription = Subscription(
        document={},
        digest=digest_of(repository + name),
        repository=repository,
        repository_id=None,
        workflow=".github/workflows/x.lock.yml",
        workflow_hash=HASH,
        event_type="gateway-x",
        connector="linear",
        triggers={},
        grants={},
        filters={},
    )
    return Enrolled(subscription=subscription, source="s1", installation=installation, mode=mode)


def event(url: str, trigger: str = "issue-created") -> str:
    return EnvelopeEvent(url, trigger, {"teams": "t1"}).queued()


class Clock:
    """Real time plus what a test adds."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class House:
    """A store, a double and at most one dispatcher over them."""

    def __init__(self, valkey: PrivateValkey, store: Store, github: Running, app: GitHubApp) -> None:
        self.valkey, self.store, self.github, self.app = valkey, store, github, app
        self.clock = Clock()
        self.enrolled: dict[str, Enrolled] = {}
        self.turns: list[Settled] = []
        self.dispatcher: Dispatcher | None = None
        self.task: asyncio.Task[None] | None = None
        self.sources = ["s1"]

    def enroll(self, repository: str, installation: int = 11, mode: str = "auto", name: str = "") -> Enrolled:
        made = enrolled_for(repository, installation, mode, name)
        self.enrolled[made.subscription.digest] = made
        return made

    async def admit(
        self,
        enrolled: Enrolled,
        *events: str,
        trigger: str = "issue-created",
        source: str = "s1",
        ahead_s: float = 0.0,
    ) -> None:
        events = events or (event(f"https://linear.app/acme/issue/A-{next(numbers)}", trigger),)
        delivery = f"d{next(numbers)}"
        entries = tuple(QueueEntry(f"{enrolled.subscription.digest}:{trigger}", each, delivery) for each in events)
        item = AdmitItem((f"id:{delivery}",), 3600, None, entries)
        await self.store.admit(Admit(source, delivery, (item,), json.dumps({"id": delivery}), time.time() + ahead_s))

    def start(self, **more: Any) -> Dispatcher:
        async def observe(settled: Settled) -> None:
            self.turns.append(settled)

        settings: dict[str, Any] = {"observe": observe, "clock": self.clock, "sources": lambda: self.sources, **more}
        self.dispatcher = Dispatcher(store=self.store, github=self.app, enrolled=self.enrolled.get, **settings)
        self.task = asyncio.create_task(self.dispatcher.run())
        return self.dispatcher

    async def stop(self) -> None:
        if self.dispatcher is not None and self.task is not None:
            self.dispatcher.stop()
            await self.task

    def script(self, repo: str, *answers: dict[str, Any]) -> None:
        self.github.double.script(repo, *answers)

    @property
    def sent(self) -> list[dict[str, Any]]:
        return self.github.double.dispatches

    def ids(self) -> list[str]:
        return [sent["client_payload"]["gateway"]["dispatch"] for sent in self.sent]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(turn.outcome, turn.reason) for turn in self.turns]

    async def dead(self) -> list[str | None]:
        return [letter.reason for letter in await self.store.dead_letters("s1")]


async def until(true: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 (what it waits for is in other processes too)
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey(fsync="everysec") as server:
        yield server


@pytest.fixture
async def house(valkey: PrivateValkey) -> AsyncIterator[House]:
    with valkey.client() as client:
        client.flushall()
    store = await Store.open(valkey.url, require=True)
    double = running(app_id=APP_ID, public_key_pem=PUBLIC, installations=INSTALLATIONS)
    try:
        async with double as github, open_session() as session:
            house = House(valkey, store, github, GitHubApp(github.address, APP_ID, PEM, session))
            try:
                yield house
            finally:
                await house.stop()
    finally:
        await store.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "BACKOFF_S", 0.02)
    monkeypatch.setattr(pace, "BACKOFF_MAX_S", 0.05)


# -- sending ----------------------------------------------------------------------------------------------------------


async def test_an_admitted_event_is_dispatched(house: House) -> None:
    enrolled = house.enroll("acme/web")
    await house.admit(enrolled, event("https://linear.app/acme/issue/A-1"))
    house.start()
    await until(lambda: bool(house.turns))
    (sent,) = house.sent
    gateway = sent["client_payload"]["gateway"]
    assert (sent["repo"], sent["installation"], sent["event_type"]) == ("acme/web", 11, "gateway-x")
    assert gateway["subscription"] == enrolled.subscription.digest
    assert gateway["events"] == [
        EnvelopeEvent("https://linear.app/acme/issue/A-1", "issue-created", {"teams": "t1"}).to_json()
    ]
    assert house.outcomes() == [("done", "done")]
    kept = await house.store.dispatch(gateway["dispatch"])
    assert kept is not None
    assert (kept.status, kept.attempts) == ("sent", 1)
    assert kept.envelope_digest is not None
    assert kept.envelope_digest.startswith("sha256:")


async def test_a_wake_is_answered_before_the_next_poll(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_MIN_S", "POLL_MAX_S"):
        monkeypatch.setattr(f"gateway.dispatcher.{name}", 600.0)
    enrolled = house.enroll("acme/web")
    dispatcher = house.start()
    await house.app.token(11, "acme/web")
    for sources in (("s1",), ()):
        await asyncio.sleep(0.5)  # it looked, found nothing and sleeps
        seen = len(house.sent)
        await house.admit(enrolled)
        dispatcher.wake(*sources)
        await until(lambda seen=seen: len(house.sent) > seen, 30)  # type: ignore[misc]


async def test_without_a_wake_a_poll_finds_it(house: House) -> None:
    house.start()
    await asyncio.sleep(0.1)
    await house.admit(house.enroll("acme/web"))
    await until(lambda: len(house.sent) == 1, 15)


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
async def test_a_receivers_wrong_clock_puts_nothing_off(house: House, ahead_s: int) -> None:
    one = house.enroll("acme/web")
    entry = QueueEntry(f"{one.subscription.digest}:issue-created", event("https://linear.app/acme/issue/C-1"), "d")
    item = AdmitItem((f"id:d{ahead_s}",), 3600, None, (entry,))
    await house.store.admit(Admit("s1", f"d{ahead_s}", (item,), '{"id":"d"}', time.time() + ahead_s))
    house.start(clock=house.store.clock)
    await until(lambda: len(house.sent) == 1)


async def test_order_within_a_lane(house: House, quick: None) -> None:
    enrolled = house.enroll("acme/web")
    house.script("acme/web", {"status": 500}, {"delay_s": 0.1}, {"status": 502})
    house.start()
    urls = [f"https://linear.app/acme/issue/A-{number}" for number in range(30)]
    for url in urls:
        await house.admit(enrolled, event(url))
    await until(lambda: sum(len(sent["client_payload"]["gateway"]["events"]) for sent in house.sent) == 30)
    assert [each["url"] for sent in house.sent for each in sent["client_payload"]["gateway"]["events"]] == urls


async def test_several_sources(house: House) -> None:
    house.sources = ["s1", "s2", "s3"]
    enrolled = house.enroll("acme/web")
    for source in house.sources:
        await house.admit(enrolled, source=source)
    house.start()
    await until(lambda: len(house.sent) == 3)


async def test_more_lanes_than_one_turn_takes(house: House) -> None:
    for number in range(60):
        await house.admit(house.enroll("acme/web" if number % 2 else "acme/api", name=str(number)))
    house.start()
    await until(lambda: len(house.sent) == 60, 15)
    assert len(set(house.ids())) == 60


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 503}, {"cut": True}, {"status": 200}])
async def test_a_passing_failure_is_retried_as_the_same_dispatch(
    house: House, quick: None, fault: dict[str, Any]
) -> None:
    house.script("acme/web", fault, fault)
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: len(house.turns) == 3)
    assert [outcome for outcome, _ in house.outcomes()] == ["retry", "retry", "done"]
    kept = await house.store.dispatch(house.ids()[0])
    assert kept is not None
    assert kept.attempts == 3


async def test_after_an_unknown_outcome_the_same_dispatch_is_sent_again(house: House, quick: None) -> None:
    house.script("acme/web", {"cut": True, "taken": True}, {"status": 500, "taken": True})
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: len(house.turns) == 3)
    assert len(house.sent) == 3
    assert len(set(house.ids())) == 1
    assert house.sent[0]["raw"] == house.sent[2]["raw"]


@pytest.mark.parametrize(
    ("status", "reason"), [(403, "forbidden"), (404, "not-found"), (409, "http-409"), (422, "unprocessable")]
)
async def test_a_refusal_is_a_dead_letter(house: House, status: int, reason: str) -> None:
    house.script("acme/web", {"status": status})
    enrolled = house.enroll("acme/web")
    await house.admit(enrolled)
    house.start()
    await until(lambda: bool(house.turns))
    assert house.outcomes() == [("dead", reason)]
    assert await house.dead() == [reason]
    await house.admit(enrolled)
    await until(lambda: len(house.sent) == 1)
    assert await house.store.suspended() == {}


async def test_a_rate_limit_parks_the_installation_and_no_other(house: House) -> None:
    web, api, app = house.enroll("acme/web"), house.enroll("acme/api"), house.enroll("beta/app", 12)
    house.script("acme/web", {"status": 403, "headers": {"Retry-After": "2"}})
    await house.admit(web)
    house.start()
    await until(lambda: bool(house.turns))
    parked_at = time.monotonic()
    assert house.outcomes() == [("park", "rate-limited")]
    assert await house.store.parked() == {11: pytest.approx(time.time() + 2, abs=0.5)}
    await house.admit(api)
    await house.admit(app)
    await until(lambda: len(house.sent) == 1, 1.5)
    assert house.sent[0]["repo"] == "beta/app"
    await until(lambda: len(house.sent) == 3, 5)
    assert time.monotonic() - parked_at > 1.8
    assert house.github.double.calls["dispatch"] == 4


async def test_another_process_parks(house: House) -> None:
    await house.store.park(11, time.time() + 1.2, "rate-limited")
    began = time.monotonic()
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: len(house.sent) == 1)
    assert time.monotonic() - began > 1.0
    assert house.github.double.calls["dispatch"] == 1


async def test_a_moved_repository_suspends_and_holds_what_follows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "HOLD_S", 0.1)
    house.script("acme/web", {"status": 301, "headers": {"Location": "/repositories/1/dispatches"}})
    enrolled = house.enroll("acme/web")
    digest = enrolled.subscription.digest
    await house.admit(enrolled)
    house.start()
    await until(lambda: bool(house.turns))
    assert house.outcomes() == [("dead", "repository-moved")]
    assert await house.store.suspended() == {digest: "repository-moved"}
    await house.admit(enrolled)
    await until(lambda: ("hold", "suspended") in house.outcomes())
    assert house.sent == []
    await house.store.resume(digest)
    await until(lambda: len(house.sent) == 1)


async def test_a_repository_that_is_gone_suspends(house: House) -> None:
    enrolled = house.enroll("acme/web")
    await house.app.token(11, "acme/web")
    house.github.double.world.repos.clear()
    await house.admit(enrolled)
    house.start()
    await until(lambda: bool(house.turns))
    assert house.outcomes() == [("dead", "not-found")]
    assert await house.store.suspended() == {enrolled.subscription.digest: "repository-gone"}


async def test_a_404_of_a_repository_that_is_there_is_looked_into_once_a_minute(house: House) -> None:
    enrolled = house.enroll("acme/web")
    house.script("acme/web", {"status": 404}, {"status": 404})
    house.start()
    for number in (1, 2):
        await house.admit(enrolled)
        await until(lambda number=number: len(house.turns) == number)  # type: ignore[misc]
    assert house.github.double.calls["repository"] == 1
    assert await house.store.suspended() == {}


async def test_a_look_that_fails_suspends_nothing(house: House) -> None:
    house.script("acme/web", {"status": 404})
    house.github.double.script("acme/web", {"status": 500}, on="repository")
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: bool(house.turns))
    assert await house.store.suspended() == {}
    assert await house.dead() == ["not-found"]


async def test_a_renamed_repository_suspends_though_no_token_can_be_had(house: House) -> None:
    enrolled = house.enroll("acme/web")
    house.github.double.world.repos["acme/web"].moved_to = "acme/site"
    await house.admit(enrolled)
    house.start()
    await until(lambda: bool(house.turns))
    assert house.outcomes() == [("dead", "repository-moved")]
    assert await house.store.suspended() == {enrolled.subscription.digest: "repository-moved"}


# -- what is not sent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known_by", ["store", "time"])
async def test_a_revoked_subscription_is_a_dead_letter(
    house: House, known_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled = enrolled_for("acme/web")
    await house.admit(enrolled)
    if known_by == "store":
        await house.store.revoke(enrolled.subscription.digest)
    else:
        monkeypatch.setattr(dispatcher, "UNREAD_S", 0.5)
    house.start()
    await until(lambda: bool(house.turns))
    assert await house.dead() == ["revoked"]
    assert house.sent == []


@pytest.mark.parametrize("ahead_s", [0, 3600, -3600])
async def test_what_this_process_has_not_read_yet_is_sent_when_it_has(house: House, ahead_s: int) -> None:
    """Whatever the clock of the receiver says."""
    enrolled = enrolled_for("acme/web")
    await house.admit(enrolled, ahead_s=ahead_s)
    house.start()
    await asyncio.sleep(0.5)
    assert (await house.dead(), house.sent) == ([], [])
    house.enrolled[enrolled.subscription.digest] = enrolled
    await until(lambda: bool(house.sent), within_s=10)
    assert await house.dead() == []


async def test_nothing_unknown_is_given_up_before_the_folder_was_read_after_it_came(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this process refuses a set that others took, or has ten thousand files to look at, it cannot know."""
    monkeypatch.setattr(dispatcher, "UNREAD_S", 0.5)
    enrolled = enrolled_for("acme/web")
    await house.admit(enrolled)
    read_at = asyncio.get_running_loop().time()
    house.start(read_at=lambda: read_at)
    await asyncio.sleep(2)
    assert (await house.dead(), house.sent) == ([], [])
    read_at = asyncio.get_running_loop().time()
    await until(lambda: bool(house.turns))
    assert await house.dead() == ["revoked"]


async def test_work_of_a_removed_source_is_a_dead_letter(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "UNREAD_S", 0.5)
    await house.admit(enrolled_for("acme/web"))
    house.start(sources=tuple)
    await until(lambda: bool(house.turns))
    assert await house.dead() == ["revoked"]


async def test_a_denied_one_is_a_dead_letter(house: House) -> None:
    await house.admit(house.enroll("acme/web", mode="deny"))
    house.start()
    await until(lambda: bool(house.turns))
    assert await house.dead() == ["denied"]


async def test_an_ask_waits_where_nobody_can_be_asked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HOLD_S", 0.1)
    await house.admit(house.enroll("acme/web", mode="ask"))
    await house.admit(house.enroll("acme/api"))
    house.start()
    await until(lambda: house.outcomes().count(("hold", "asked")) >= 2 and len(house.sent) == 1)
    assert house.sent[0]["repo"] == "acme/api"
    kept = await house.store.dispatch(house.turns[0].batch.dispatch)
    assert kept is not None


async def test_a_gate_decides(house: House) -> None:
    verdicts = iter([Gate("hold", "asked", time.time() + 0.1), None, Gate("dead", "ask-expired")])

    async def gate(batch: Batch, enrolled: Enrolled) -> Gate | None:
        return next(verdicts)

    enrolled = house.enroll("acme/web", mode="ask")
    await house.admit(enrolled)
    house.start(gate=gate)
    await until(lambda: len(house.turns) == 2)
    await house.admit(enrolled)
    await until(lambda: len(house.turns) == 3)
    assert house.outcomes() == [("hold", "asked"), ("done", "done"), ("dead", "ask-expired")]


async def test_a_day_after_its_first_attempt_it_expires(house: House, quick: None) -> None:
    house.script("acme/web", *[{"status": 500}] * 200)
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: len(house.turns) == 3)
    house.clock.ahead = 86_380.0
    seen = len(house.turns)
    await until(lambda: len(house.turns) > seen + 1)
    assert house.outcomes()[-1][0] == "retry"
    house.clock.ahead = 86_402.0
    await until(lambda: house.outcomes()[-1] == ("dead", "expired"))
    assert await house.dead() == ["expired"]


async def test_the_age_of_a_held_batch_stands_still(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HOLD_S", 90_000.0)
    monkeypatch.setattr(settling, "backoff_s", lambda attempts: 0.5)
    house.script("acme/web", {"status": 500})
    enrolled = house.enroll("acme/web")
    digest = enrolled.subscription.digest
    await house.admit(enrolled)
    house.start()
    await until(lambda: bool(house.turns))
    await house.stop()
    await house.store.suspend(digest, "hash-changed")
    house.start()
    await until(lambda: ("hold", "suspended") in house.outcomes())
    assert house.sent == []
    await house.store.resume(digest)
    await until(lambda: house.dispatcher is not None and not house.dispatcher._settling.suspended)
    house.clock.ahead = 90_001.0
    await until(lambda: len(house.sent) == 1)
    assert await house.dead() == []


@pytest.mark.parametrize("queued", ['{"id":"x"}', "[]", "no json", event("http://plain.example/1")])
async def test_what_makes_no_valid_envelope_is_a_dead_letter(house: House, queued: str) -> None:
    await house.admit(house.enroll("acme/web"), queued)
    house.start()
    await until(lambda: bool(house.turns))
    assert await house.dead() == ["envelope-invalid"]
    assert house.sent == []


# -- pace -------------------------------------------------------------------------------------------------------------


async def test_a_stuck_repository_delays_no_other(house: House) -> None:
    house.script("acme/web", *[{"delay_s": 20.0}] * 40)
    for number in range(40):
        await house.admit(house.enroll("acme/web", name=str(number)))
    house.start()
    await until(lambda: house.github.double.in_flight >= 4)
    for _ in range(5):
        await house.admit(house.enroll("acme/api"))
        await house.admit(house.enroll("beta/app", 12))
    assert house.dispatcher is not None
    house.dispatcher.wake()
    await until(lambda: {sent["repo"] for sent in house.sent} == {"acme/api", "beta/app"}, 15)
    house.dispatcher._drain_s = 0.0


@pytest.mark.parametrize("act", ["suspend", "revoke", "deny"])
async def test_what_was_ended_while_it_waited_for_a_slot_is_not_sent(house: House, act: str) -> None:
    house.script("acme/web", *[{"delay_s": 2.5}] * 4)
    for number in range(4):
        await house.admit(house.enroll("acme/web", name=str(number)))
    house.start()
    await until(lambda: house.github.double.in_flight == 4)
    late = house.enroll("acme/web", name="late")
    await house.admit(late)
    assert house.dispatcher is not None
    await until(lambda: house.dispatcher is not None and house.dispatcher.in_flight == 5)
    digest = late.subscription.digest
    if act == "suspend":
        await house.store.suspend(digest, "opt-in-revoked")
    elif act == "revoke":
        await house.store.revoke(digest)
        del house.enrolled[digest]
    else:
        house.enrolled[digest] = replace(late, mode="deny")
    await until(lambda: any(turn.batch.digest == digest for turn in house.turns), 15)
    assert len(house.sent) == 4
    assert await house.dead() == {"suspend": [], "revoke": ["revoked"], "deny": ["denied"]}[act]


async def test_a_repository_that_answers_500_for_ever_delays_no_other(house: House) -> None:
    """Its failures come in a row, as those of a dead GitHub do, and there are more of them than of anything else."""
    house.script("acme/web", *[{"status": 500}] * 5_000)
    for number in range(60):
        await house.admit(house.enroll("acme/web", name=str(number)))
    dispatcher = house.start()
    calls = house.github.double.calls
    await until(lambda: dispatcher.circuit.holds("acme/web"), 30)
    for number in range(12):
        sent, failed = len(house.sent), calls["dispatch"] - len(house.sent)
        await house.admit(house.enroll("beta/app" if number % 2 else "acme/api", 12 if number % 2 else 11))
        dispatcher.wake()
        await until(lambda sent=sent: len(house.sent) > sent, 20)  # type: ignore[misc]
        assert calls["dispatch"] - len(house.sent) - failed < 60  # not even one turn of the stuck ones came before
        await asyncio.sleep(0.1)
    assert {one["repo"] for one in house.sent} == {"acme/api", "beta/app"}


async def test_a_thousand_subscriptions_share_one_dispatcher(house: House) -> None:
    """Each gets its turn while a third of them is stuck, and all of them in the end; what is under way is bounded."""
    repositories = [("acme/web", 11), ("acme/api", 11), ("beta/app", 12)]
    house.script("acme/web", *[{"status": 500}] * 2_000)
    urls: dict[str, set[str]] = {repository: set() for repository, _ in repositories}
    admissions = []
    for number in range(1_000):
        repository, installation = repositories[number % 3]
        enrolled = house.enroll(repository, installation, name=str(number))
        for part in range(2):
            url = f"https://linear.app/acme/issue/T-{number}-{part}"
            urls[repository].add(url)
            admissions.append(house.admit(enrolled, event(url), source=f"s{number % 5}"))
    await asyncio.gather(*admissions)
    house.sources = [f"s{number}" for number in range(5)]
    dispatcher = house.start(limits=Limits(taken=128))
    most = 0

    def sent(repository: str) -> list[str]:
        nonlocal most
        most = max(most, dispatcher.in_flight)
        bodies = [one["client_payload"]["gateway"] for one in house.sent if one["repo"] == repository]
        return [each["url"] for body in bodies for each in body["events"]]

    healthy = ("acme/api", "beta/app")
    await until(lambda: all(len(sent(one)) >= len(urls[one]) for one in healthy), 40)
    assert sent("acme/web") == []
    house.github.double.scripts.clear()
    await until(lambda: len(sent("acme/web")) >= len(urls["acme/web"]), 60)
    await until(lambda: not dispatcher.in_flight)
    assert {one: sorted(sent(one)) for one in urls} == {one: sorted(urls[one]) for one in urls}
    assert most <= 128
    assert house.github.double.most_in_flight <= Limits().overall
    assert not dispatcher._slots._slots
    assert not dispatcher._slots._taken


async def test_memory_is_bounded_however_much_is_queued(house: House) -> None:
    """Of a long queue only what is under way is in memory: the same for 50,000 events as for 1,000."""
    house.github.double.script("acme/web", *[{"delay_s": 0.2}] * 50)
    one = house.enroll("acme/web")
    lane, peaks = f"{one.subscription.digest}:issue-created", []
    with house.valkey.client() as client:
        for total in (1_000, 50_000):
            pipe = client.pipeline(transaction=False)
            have = client.llen(f"gw:{{s1}}:lane:{lane}")
            for number in range(have, total):
                entry = event(f"https://linear.app/acme/issue/M-{number}-{'x' * 200}")
                pipe.rpush(f"gw:{{s1}}:lane:{lane}", f"{int(time.time() * 1000)}\nd{number}\n{entry}")
            pipe.zadd("gw:{s1}:ready", {lane: 0})
            pipe.execute()
            tracemalloc.start()
            dispatcher = house.start()
            await until(lambda: house.github.double.in_flight == 1)
            await house.store.depth("s1")
            await house.store.lanes("s1")
            await asyncio.sleep(0.3)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            await house.stop()
            assert dispatcher.in_flight == 0
        assert client.llen(f"gw:{{s1}}:lane:{lane}") > 49_000
    assert peaks[1] < peaks[0] * 1.5 + 500_000, peaks


async def test_an_installation_has_at_most_its_slots(house: House) -> None:
    for repo in ("acme/web", "acme/api"):
        house.script(repo, *[{"delay_s": 0.05}] * 20)
        for number in range(20):
            await house.admit(house.enroll(repo, name=str(number)))
    house.start(limits=Limits(installation=5))
    await until(lambda: len(house.sent) == 40, 10)
    assert house.github.double.most_in_flight <= 5
    assert house.dispatcher is not None
    await until(lambda: house.dispatcher is not None and not house.dispatcher.in_flight)
    assert not house.dispatcher._slots._slots
    assert not house.dispatcher._slots._taken


def test_backoff_doubles_to_a_quarter_of_an_hour_with_full_jitter() -> None:
    for attempts, most in ((0, 1.0), (3, 8.0), (10, 900.0), (5_000, 900.0)):
        waits = [backoff_s(attempts) for _ in range(300)]
        assert 0 <= min(waits) < most * 0.2
        assert most * 0.8 < max(waits) <= most


def test_a_circuit_opens_probes_and_closes() -> None:
    circuit = Circuit(threshold=3, first_s=1.0, most_s=4.0)
    circuit.record("a", True, 0)
    circuit.record("a", True, 0)
    circuit.record("b", False, 0)
    for _ in range(2):
        circuit.record("a", True, 0)
    assert not circuit.holds("a")
    circuit.record("a", True, 0)
    assert circuit.holds("a")
    assert circuit.probe_at is not None
    assert 0.5 <= circuit.probe_at <= 1.0
    first = circuit.probe_at
    for _ in range(50):  # what was under way
        circuit.record("a", True, 0.1)
    assert circuit.probe_at == first
    assert not circuit.probe(0.1)
    now = 0.0
    for longest in (2.0, 4.0, 4.0, 4.0):
        now = circuit.probe_at
        assert circuit.probe(now)
        assert not circuit.probe(now)  # one at a time
        circuit.record("a", True, now)
        assert longest / 2 <= circuit.probe_at - now <= longest
    circuit.record("a", False, now)
    assert not circuit.holds("a")


def test_a_circuit_tells_a_repository_from_the_host() -> None:
    circuit = Circuit()
    for _ in range(50):
        circuit.record("a", True, 0)
        circuit.record("b", True, 0)
    assert ([circuit.holds(one) for one in "abc"], circuit.wide) == ([True, True, False], False)
    circuit.record("c", True, 0)
    assert ([circuit.holds(one) for one in "abcd"], circuit.wide) == ([True] * 4, True)
    circuit.record("d", False, 0)
    assert not any(circuit.holds(one) for one in "abcd")


async def test_an_outage_is_probed_not_hammered(house: House, quick: None) -> None:
    lanes = 30
    for number in range(lanes):
        await house.admit(house.enroll("acme/web", name=str(number)))
    house.script("acme/web", *[{"status": 503}] * 200)
    house.start()
    await until(lambda: house.dispatcher is not None and house.dispatcher.circuit.probe_at is not None)
    before, began = house.github.double.calls["dispatch"], time.monotonic()
    await asyncio.sleep(2.5)
    # At most the four under way when it opened and two probes a second; unpaced it would be a hundred a second.
    assert house.github.double.calls["dispatch"] - before <= 4 + 2 * (time.monotonic() - began)
    house.github.double.scripts.clear()
    await until(lambda: len(set(house.ids())) == lanes, 15)


# -- ends and outages -------------------------------------------------------------------------------------------------


async def test_stop_waits_for_what_is_under_way(house: House) -> None:
    house.script("acme/web", {"delay_s": 0.5})
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: house.github.double.in_flight == 1)
    await asyncio.sleep(0.1)
    await house.stop()
    assert house.outcomes() == [("done", "done")]
    await house.admit(house.enroll("acme/api"))
    await asyncio.sleep(0.3)
    assert len(house.sent) == 1


async def test_stop_gives_back_what_only_waited(house: House) -> None:
    house.script("acme/web", *[{"delay_s": 0.5}] * 20)
    for number in range(10):
        await house.admit(house.enroll("acme/web", name=str(number)))
    house.start()
    await until(lambda: house.github.double.in_flight == 4)
    await house.stop()
    assert len(house.sent) <= 4
    house.github.double.scripts.clear()
    house.start()  # at once: nothing waits for a lease
    await until(lambda: len(house.sent) == 10, 3)


async def test_stop_is_bounded_and_the_lease_brings_it_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "LEASE_S", 1.5)
    house.script("acme/web", {"delay_s": 5})
    await house.admit(house.enroll("acme/web"))
    house.start(drain_s=0.1)
    await until(lambda: house.github.double.in_flight == 1)
    await asyncio.wait_for(house.stop(), 4)  # the answer would take five
    assert house.sent == []
    house.start()
    await until(lambda: len(house.sent) == 1, 5)
    kept = await house.store.dispatch(house.ids()[0])
    assert kept is not None
    assert kept.attempts == 2


async def test_a_store_that_goes_and_comes_back(house: House, caplog: pytest.LogCaptureFixture) -> None:
    enrolled = house.enroll("acme/web")
    house.start()
    await house.admit(enrolled)
    await until(lambda: len(house.sent) == 1)
    with caplog.at_level(logging.INFO, "gateway"):
        house.valkey.kill()
        await asyncio.sleep(2)
        house.valkey.start()
        await house.admit(enrolled)
        await until(lambda: len(house.sent) == 2, 10)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("store-away") == 1
    assert said.count("store-back") == 1


async def test_settling_outlives_a_store_that_is_away(house: House) -> None:
    house.script("acme/web", {"delay_s": 0.5})
    await house.admit(house.enroll("acme/web"))
    house.start()
    await until(lambda: house.github.double.in_flight == 1)
    await asyncio.sleep(0.1)
    house.valkey.kill()
    await until(lambda: len(house.sent) == 1)
    await asyncio.sleep(0.5)
    house.valkey.start()
    await until(lambda: bool(house.turns), 10)
    kept = await house.store.dispatch(house.ids()[0])
    assert kept is not None
    assert kept.status == "sent"
    assert len(house.sent) == 1


async def test_settling_gives_up_with_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle() -> None:
        raise Unavailable("store-away")

    monkeypatch.setattr(settling, "POLL_MIN_S", 0.02)
    with pytest.raises(Unavailable):
        await settling.insist(settle, asyncio.get_running_loop().time() + 0.2)


async def test_a_lost_lease_is_not_sent(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def gate(batch: Batch, enrolled: Enrolled) -> Gate | None:
        if not stolen:
            stolen.append(batch)
            await house.store.release(batch, house.clock() + 0.3)
        return None

    stolen: list[Batch] = []
    await house.admit(house.enroll("acme/web"))
    with caplog.at_level(logging.INFO, "gateway"):
        house.start(gate=gate)
        await until(lambda: len(house.sent) == 1)
    assert [record.getMessage() for record in caplog.records].count("lease-lost") == 1
    assert house.github.double.calls["dispatch"] == 1


async def test_a_bug_costs_one_turn(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def observe(settled: Settled) -> None:
        raise RuntimeError("a bug")

    enrolled = house.enroll("acme/web")
    await house.admit(enrolled)
    house.start(observe=observe)
    await until(lambda: len(house.sent) == 1)
    await house.admit(enrolled)
    await until(lambda: len(house.sent) == 2)
    assert "dispatch-bug" in [record.getMessage() for record in caplog.records]


async def test_a_log_line_names_the_dispatch_and_no_secret(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gateway"):
        await house.admit(house.enroll("acme/web"), event("https://linear.app/acme/issue/SECRET-1"))
        house.start()
        await until(lambda: bool(house.turns))
    (line,) = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "dispatch-done"]
    assert (line["source"], line["trigger"], line["status"], line["attempts"]) == ("s1", "issue-created", 204, 1)
    assert line["dispatch"] == house.ids()[0]
    text = " ".join(str(vars(record)) for record in caplog.records)
    assert not [secret for secret in ("ghs_", "eyJ", "PRIVATE", "SECRET-1") if secret in text]
