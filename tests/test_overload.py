"""Admission control: shares, failed proofs, the client's address, the queue's bound, and what senders are told."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import strict_json
from gateway.app import Gateway
from gateway.configuration import Configuration
from gateway.environment import data_folder
from gateway.errors import Rejection
from gateway.events import read
from gateway.overload import Backlog, Bounds, Failures, Overload, Overloaded, Share, client_address, networks
from gateway.profiles import load_profiles
from gateway.store import Store
from gateway.structs import replace
from tests.test_app import SAMPLES, Driver, FixedKeys, configuration  # noqa: F401 (fixtures)
from tests.valkey import PrivateValkey


def scope(peer: str | None = "192.0.2.1", *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return {"type": "http", "path": "/x", "client": (peer, 1) if peer else None, "headers": headers}


# -- shares


def test_one_address_gets_a_third_one_source_a_half_and_there_is_room_for_another() -> None:
    share = Share(300)
    assert sum(share.take("a", "1") for _ in range(300)) == 100
    assert sum(share.take("a", f"x{n}") for n in range(300)) in range(48, 52)
    assert sum(share.take("b", "1") for _ in range(300)) > 40
    assert share.used < 300


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(1, 50)), max_size=60))
def test_what_is_given_back_leaves_nothing(steps: list[tuple[str, str, int]]) -> None:
    share, held = Share(100), []
    for source, address, amount in steps:
        if share.take(source, address, amount):
            held.append((source, address, amount))
        assert 0 <= share.used <= 100
    for step in held:
        share.give(*step)
    assert share.used == 0
    assert not share._held


async def test_a_slot_is_given_back_however_it_ends() -> None:
    overload = Overload(Bounds(requests=16))
    with pytest.raises(Rejection), overload.slot("a", scope()):
        raise Rejection("signature", 401)
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(overload.slot("a", scope()))
        with pytest.raises(Overloaded) as refused, overload.slot("a", scope()):
            pass
        assert (refused.value.status, refused.value.reason) == (503, "too-many-requests")
        with overload.slot("b", scope("198.51.100.7")):
            pass
    assert overload.requests.used == 0


async def test_bodies_are_charged_as_they_arrive() -> None:
    overload = Overload(Bounds(body_bytes=3000))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    with overload.slot("a", scope()) as slot:
        for taken in range(1, 4):
            await slot.metered(receive)()
            assert overload.bodies.used == taken * 400
        with pytest.raises(Overloaded, match="too-many-bytes"):
            await slot.metered(receive)()
    assert overload.bodies.used == 0


# -- failed proofs


def test_failures_empty_a_bucket_and_time_fills_it() -> None:
    now = [0.0]
    failures = Failures(2.0, lambda: now[0])
    for _ in range(40):
        failures.check("a", "x")
        failures.failed("a", "x")
    with pytest.raises(Overloaded) as refused:
        failures.check("a", "x")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    failures.check("a", "y")  # another address
    failures.check("b", "x")  # another source
    now[0] += 0.6
    failures.check("a", "x")


def test_many_addresses_empty_the_source_but_those_that_proved_themselves_pass() -> None:
    now = [0.0]
    failures = Failures(1.0, lambda: now[0])
    failures.proved("a", "provider")
    for n in range(200):
        failures.failed("a", f"bot{n}")
        failures.failed("a", "provider")  # a forger at the same address
    with pytest.raises(Overloaded):
        failures.check("a", "new")
    failures.check("a", "provider")
    failures.check("b", "new")
    now[0] += 3601
    for _ in range(500):
        failures.failed("a", "provider")
    with pytest.raises(Overloaded):
        failures.check("a", "provider")


def test_remembered_addresses_are_bounded() -> None:
    failures = Failures(1.0)
    for n in range(10_500):
        failures.failed("a", str(n))
        failures.proved("a", str(n))
    assert len(failures._addresses) == len(failures._proven) == 10_000


# -- the client's address

PROXIES = networks(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),  # no proxy of ours: the header is a claim
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),  # further left is made up
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8:1:2:3::4]:4711"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, nonsense, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("::1", ["\xff\xfe"], "::/64"),
        (None, ["203.0.113.9"], ""),
    ],
)
def test_the_address(peer: str | None, forwarded: list[str], address: str) -> None:
    assert client_address(scope(peer, *forwarded), PROXIES) == address


@given(st.text(max_size=200))
def test_any_header_gives_an_address(text: str) -> None:
    made = scope("10.0.0.1")
    made["headers"] = [(b"X-Forwarded-For", text.encode())]
    assert client_address(made, PROXIES)


# -- the queue


@dataclass
class Count:
    waiting: int
    sealed: int


async def test_the_queue_is_measured_and_counted_on() -> None:
    now, depths, asked = [10.0], {"a": 0, "b": 0}, []
    backlog = Backlog(Bounds(queue=10, queue_source=6), lambda: now[0])

    async def depth(source: str) -> Count:
        asked.append(source)
        return Count(depths[source], 0)

    await backlog.check("a", depth)
    backlog.added("a", 6)
    with pytest.raises(Overloaded, match="queue-full"):
        await backlog.check("a", depth)
    await backlog.check("b", depth)
    backlog.added("b", 5)
    with pytest.raises(Overloaded):  # both together
        await backlog.check("b", depth)
    assert asked == ["a", "b"]
    now[0] += 2.1  # what was sent meanwhile makes room
    await backlog.check("b", depth)
    depths["a"] = 6
    now[0] += 2.1
    with pytest.raises(Overloaded):
        await backlog.check("a", depth)


# -- in the application


@pytest.fixture
async def driver(server: PrivateValkey, configuration: Configuration) -> AsyncIterator[Driver]:  # noqa: F811
    with server.client() as client:
        client.flushall()
    store = await Store.open(server.url)
    keys = FixedKeys(configuration)
    yield Driver(Gateway(configuration, keys, store), keys)  # type: ignore[arg-type]  # the rings are all it is asked for
    await store.close()


def bound(driver: Driver, **bounds: Any) -> Overload:
    """Replace the driver's counters."""
    driver.gateway.overload = Overload(Bounds(**bounds))
    return driver.gateway.overload


async def forge(driver: Driver, source: str) -> tuple[int, dict[str, str], bytes]:
    headers, body = driver.signed(source)
    return await driver.post(source, headers, body + b" ")


async def test_a_forger_is_told_to_wait_and_others_are_not(driver: Driver) -> None:
    bound(driver, failures_per_s=0.1)
    assert [(await forge(driver, "github-acme"))[0] for _ in range(2)] == [401, 401]
    status, answered, content = await forge(driver, "github-acme")
    assert (status, content) == (429, b"")
    assert int(answered["retry-after"]) >= 1
    assert len(answered["gateway-delivery"]) == 36
    assert (await driver.post("linear-acme", *driver.signed("linear-acme")))[0] == 200


async def test_azure_devops_is_told_503_since_a_429_would_put_it_on_probation(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure = load_profiles(data_folder("profiles"))["azure-devops"]
    source = driver.gateway.configuration.sources["github-acme"]
    sources = {**driver.gateway.configuration.sources, "github-acme": replace(source, profile=azure)}
    monkeypatch.setattr(driver.gateway, "configuration", replace(driver.gateway.configuration, sources=sources))
    bound(driver, failures_per_s=0.05)
    wrong = {"authorization": "Basic eDp5"}
    assert [(await driver.post("github-acme", wrong, b"{}"))[0] for _ in range(2)] == [401, 503]


async def test_a_good_proof_exempts_its_address(driver: Driver) -> None:
    bound(driver, failures_per_s=0.1)
    headers, body = driver.signed("github-acme")
    assert (await driver.post("github-acme", headers, body))[0] == 200
    for _ in range(5):
        assert (await driver.post("github-acme", headers, body + b" "))[0] == 401
    assert (await driver.post("github-acme", headers, body))[0] == 200


async def test_an_unauthenticated_handshake_proves_nothing(driver: Driver) -> None:
    overload = bound(driver, failures_per_s=0.1)
    assert (await driver.post("teams-acme", {}, b"", "?validationToken=x"))[0] == 200
    assert not overload.failures._proven
    headers, body = driver.signed("teams-acme")
    foreign = json.loads(body)
    foreign["value"][0]["clientState"] = "wrong"
    assert (await driver.post("teams-acme", headers, json.dumps(foreign).encode()))[0] == 202
    assert overload.failures._addresses


async def test_a_full_queue_is_503_and_consumes_nothing(driver: Driver) -> None:
    bound(driver, queue_source=1)
    assert (await driver.post("github-acme", *driver.signed("github-acme")))[0] == 200
    headers, body = driver.signed("github-acme")
    status, answered, _ = await driver.post("github-acme", headers, body)
    assert (status, answered["retry-after"]) == (503, "60")
    assert (await driver.post("linear-acme", *driver.signed("linear-acme")))[0] == 200
    assert (await forge(driver, "github-acme"))[0] == 401
    bound(driver)
    assert (await driver.post("github-acme", headers, body))[0] == 200
    assert (await driver.newest("github-acme"))["outcome"] == "forwarded"


async def test_too_many_bytes_close_the_connection(driver: Driver) -> None:
    bound(driver, body_bytes=300)
    status, answered, _ = await driver.post("github-acme", *driver.signed("github-acme"))
    assert (status, answered["connection"]) == (503, "close")
    assert driver.gateway.overload.bodies.used == 0


async def test_a_large_body_is_decoded_off_the_loop(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def spy(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return read(*args)

    monkeypatch.setattr("gateway.app.read", spy)
    sample = json.loads(json.dumps(SAMPLES["github-acme"]))
    await driver.post("github-acme", *driver.signed("github-acme", sample))
    assert threads == {threading.get_ident()}
    sample["body"]["issue"]["body"] = "x" * 300_000
    status, _, _ = await driver.post("github-acme", *driver.signed("github-acme", sample))
    assert status == 200
    assert len(threads) == 2


async def test_the_loop_goes_on_while_the_costliest_body_is_decoded() -> None:
    """As many values as are accepted, as many bytes as a provider may send, in a form that takes the slow reader."""
    body = b"{ " + b",".join(b'"%022x":1' % number for number in range(900_000)) + b"}"
    beats, done = 0, asyncio.Event()

    async def beat() -> None:
        nonlocal beats
        while not done.is_set():
            beats += 1
            await asyncio.sleep(0.005)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    document = await Overload().off_loop(strict_json.loads, body)
    done.set()
    await beating
    assert len(document) == 900_000
    assert beats > 20  # a decoder that held the loop to its end would leave two


async def test_a_flood_on_admission_leaves_room_for_deliveries(driver: Driver) -> None:
    overload = bound(driver, requests=30, failures_per_s=0.5)
    release = asyncio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = overload.guard(slow, "/admission")
    statuses: list[int] = []

    async def call(peer: str) -> None:
        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        await guarded({**scope(peer), "path": "/admission"}, receive, send)

    flood = [asyncio.create_task(call(f"198.51.100.{n}")) for n in range(100)]
    await asyncio.sleep(0)
    assert statuses.count(503) >= 85
    sent = driver.post("github-acme", *driver.signed("github-acme"))
    assert (await asyncio.wait_for(sent, 30))[0] == 200  # while all of the flood is still there
    assert not release.is_set()
    release.set()
    await asyncio.gather(*flood)
    for _ in range(12):
        await call("198.51.100.1")
    assert statuses[-1] == 429
    assert overload.requests.used == 0
