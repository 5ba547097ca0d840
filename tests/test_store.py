"""The store on a real server: what is acknowledged is queued once, survives, and leaves in order."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from gateway.errors import ConfigError, Unavailable
from gateway.store import Admit, AdmitItem, Batch, Limits, QueueEntry, Store, check_durability, uuid7
from gateway.store import client as store_client
from gateway.store import records as store_records
from gateway.store.client import SCHEMA, _slug, bounded
from gateway.store.connect import build, client_for
from gateway.store.records import _Place
from tests.valkey import PrivateValkey

S = "linear-acme"
DIGEST = "sha256:" + "a" * 64
LANE = f"{DIGEST}:issue-created"
NOW = 1_790_000_000.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[PrivateValkey]:
    with PrivateValkey() as running:
        yield running


@pytest.fixture
def server(shared_server: PrivateValkey) -> PrivateValkey:
    if shared_server.process and shared_server.process.poll() is not None:  # a test failed while it was down
        shared_server.start()
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
async def store(server: PrivateValkey) -> AsyncIterator[Store]:
    opened = await Store.open(server.url, require=True)
    yield opened
    await opened.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def event(number: int | str) -> str:
    return json.dumps({"id": f"uri:{number}", "url": f"https://x.example/{number}"}, separators=(",", ":"))


def record(delivery: str, now: float = NOW, outcome: str = "forwarded", source: str = S) -> str:
    return json.dumps({"id": delivery, "source": source, "received_at": now, "outcome": outcome, "reason": None})


def admit(
    delivery: str,
    *keys: str,
    events: tuple[str, ...] | None = None,
    lane: str = LANE,
    now: float = NOW,
    source: str = S,
    jti: tuple[str, float] | None = None,
) -> Admit:
    entries = tuple(QueueEntry(lane, one, delivery) for one in (events if events is not None else (event(delivery),)))
    item = AdmitItem(keys or (f"id:{delivery}",), 3600, jti, entries)
    return Admit(source, delivery, (item,), record(delivery, now, source=source), now)


async def status(store: Store, one: Admit) -> tuple[str, str | None]:
    (result,) = (await store.admit(one)).items
    return result.status, result.first


async def one_batch(store: Store, now: float = NOW, lease_s: float = 30, source: str = S) -> Batch:
    (batch,) = await store.seal(source, now, lease_s, 10)
    return batch


async def drain(store: Store, source: str = S, now: float = NOW) -> list[str]:
    events: list[str] = []
    while batches := await store.seal(source, now, 30, 50):
        for batch in batches:
            events.extend(batch.events)
            assert await store.done(batch, now, "sent")
    return events


# -- admission


async def test_dedupe_and_enqueue(store: Store) -> None:
    assert await status(store, admit("d1", "id:1", "body:1")) == ("queued", None)
    assert await status(store, admit("d1", "id:1", "body:1")) == ("queued", None)
    assert await status(store, admit("d2", "id:1", "body:1")) == ("duplicate", "d1")
    assert await status(store, admit("d3", "id:other", "body:1")) == ("replayed-body", "d1")
    assert await status(store, admit("d4", "id:2", "body:2")) == ("queued", None)
    assert await drain(store) == [event("d1"), event("d4")]
    assert (await store.depth(S)).lanes == 0


async def test_sources_do_not_share_ids(store: Store) -> None:
    assert await status(store, admit("d1", "id:1")) == ("queued", None)
    assert await status(store, admit("d2", "id:1", source="other")) == ("queued", None)


async def test_token_is_used_once_and_consumes_nothing_else(store: Store) -> None:
    jti = ("token", NOW + 60)
    assert await status(store, admit("d1", "id:1", jti=jti)) == ("queued", None)
    assert await status(store, admit("d1", "id:1", jti=jti)) == ("queued", None)
    assert await status(store, admit("d2", "id:1", jti=jti)) == ("duplicate", "d1")
    assert await status(store, admit("d3", "id:3", jti=jti)) == ("replayed-token", "d1")
    assert await status(store, admit("d4", "id:3")) == ("queued", None)
    found = await store.delivery("d3")
    assert found
    assert (found["outcome"], found["reason"], found["first"]) == ("rejected", "replayed-token", "d1")


async def test_a_delivery_of_several_items(store: Store) -> None:
    items = tuple(AdmitItem((f"id:{n}",), 60, None, (QueueEntry(LANE, event(n), "d1"),)) for n in (1, 2, 1))
    answer = await store.admit(Admit(S, "d1", items, record("d1"), NOW))
    assert [item.status for item in answer.items] == ["queued", "queued", "duplicate"]
    assert await drain(store) == [event(1), event(2)]
    again = await store.admit(Admit(S, "d2", (*items, AdmitItem(("id:9",), 60, None, ())), record("d2"), NOW))
    assert [item.status for item in again.items] == ["duplicate", "duplicate", "duplicate", "queued"]
    assert (await store.admit(Admit(S, "d3", (), record("d3"), NOW))).items == ()


async def test_a_delivery_of_more_items_than_a_command_takes(store: Store) -> None:
    items = tuple(
        AdmitItem((f"id:{n}", f"body:{n}"), 3600, None, (QueueEntry(LANE, event(n), "d1"),)) for n in range(1300)
    )
    for delivery, expected in (("d1", "queued"), ("d2", "duplicate")):
        results = (await store.admit(Admit(S, delivery, items, record(delivery), NOW))).items
        assert [result.status for result in results] == [expected] * 1300
    assert await drain(store) == [event(n) for n in range(1300)]


async def test_what_cannot_be_queued_consumes_no_id(server: PrivateValkey, store: Store) -> None:
    with server.client() as client:
        client.set(f"gw:{{{S}}}:lane:{LANE}", "an edited store")
        with pytest.raises(Unavailable):
            await store.admit(admit("d1", "id:1"))
        client.delete(f"gw:{{{S}}}:lane:{LANE}")
    assert await status(store, admit("d2", "id:1")) == ("queued", None)


async def test_concurrent_admissions_share_round_trips(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("warm"))
    with server.client() as client:
        before = int(client.info("commandstats")["cmdstat_evalsha"]["calls"])
        admits = [admit(f"d{n}", f"id:{n % 500}", events=(event(n % 500),)) for n in range(1000)]
        answers = await asyncio.gather(*map(store.admit, admits))
        calls = int(client.info("commandstats")["cmdstat_evalsha"]["calls"]) - before
    statuses = [answer.items[0].status for answer in answers]
    assert statuses.count("queued") == 500
    assert statuses.count("duplicate") == 500
    assert calls <= 8
    assert len(await drain(store)) == 501


async def test_one_that_cannot_be_encoded_fails_alone(store: Store) -> None:
    good, bad = await asyncio.gather(
        store.admit(admit("d1")), store.admit(admit("d2", "id:\ud800")), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert isinstance(bad, TypeError)


async def test_a_cancelled_caller_harms_nobody(store: Store) -> None:
    await store.know(S)
    tasks = [asyncio.create_task(store.admit(admit(f"d{n}"))) for n in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, BaseException) for one in done) == 1


async def test_scripts_survive_flush_and_restart(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    with server.client() as client:
        client.script_flush()
    assert await status(store, admit("d2")) == ("queued", None)
    server.restart()
    assert await status(store, admit("d3")) == ("queued", None)
    assert await drain(store) == [event("d1"), event("d2"), event("d3")]


async def test_kill_loses_nothing_acknowledged(server: PrivateValkey, store: Store) -> None:
    acknowledged: list[str] = []

    async def sender(name: int) -> None:
        for n in range(10_000):
            delivery = f"{name}-{n}"
            try:
                await store.admit(admit(delivery))
            except Unavailable:
                return
            acknowledged.append(event(delivery))

    tasks = [asyncio.create_task(sender(n)) for n in range(16)]
    await asyncio.sleep(0.5)
    server.kill()
    await asyncio.gather(*tasks)
    server.start()
    queued = await drain(store)
    assert len(acknowledged) > 100
    assert set(acknowledged) <= set(queued)
    assert len(queued) == len(set(queued))


async def test_away_is_unavailable_soon_and_passes(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    server.kill()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await store.admit(admit("d2"))
    with pytest.raises(Unavailable):
        await store.ping()
    assert time.monotonic() - started < 15
    server.start()
    await store.ping()
    assert await status(store, admit("d2")) == ("queued", None)


async def test_stopped_server_is_unavailable_and_the_repeat_is_success(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    server.pause()
    started = time.monotonic()
    answers = await asyncio.gather(*(store.admit(admit(f"p{n}")) for n in range(20)), return_exceptions=True)
    elapsed = time.monotonic() - started
    server.resume()
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert 1.5 < elapsed < 15  # the server answers nobody: without a deadline it would be for ever
    for n in range(20):
        assert await status(store, admit(f"p{n}")) == ("queued", None)
    events = await drain(store)
    assert sorted(events) == sorted([event("d1"), *(event(f"p{n}") for n in range(20))])


async def test_refusing_server_consumes_nothing(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    with server.full(), pytest.raises(Unavailable, match="store-oom"):
        await store.admit(admit("d2"))
    with server.client() as client:
        assert client.exists(f"gw:{{{S}}}:seen:id:d2") == 0
    assert await status(store, admit("d3", "id:d2")) == ("queued", None)


async def test_a_full_server_refuses_admissions_and_is_sent_empty(server: PrivateValkey, store: Store) -> None:
    """At `maxmemory` nothing more comes in, and all that is queued goes out: else it would stay full for ever."""
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
    try:
        accepted = []
        for n in range(100_000):
            try:
                await store.admit(admit(f"d{n}", lane=f"{DIGEST}:t{n % 3}"))
            except Unavailable:
                break
            accepted.append(event(f"d{n}"))
        assert 100 < len(accepted) < 100_000
        with pytest.raises(Unavailable, match="store-oom"):
            await store.admit(admit("one-more"))
        sent: list[str] = []
        while batches := await store.seal(S, NOW, 30, 2):
            for number, batch in enumerate(batches):
                assert await store.started(batch, NOW)
                assert await store.admit_run(batch.dispatch, DIGEST, "1", f"j{batch.dispatch}", NOW, 60) == "admitted"
                sent.extend(batch.events)
                settle = store.done(batch, NOW) if number else store.dead(batch, "not-found", NOW)
                assert await settle
        assert sorted(sent) == sorted(accepted)
        await store.park(7, NOW + 60, "rate-limited", NOW)
    finally:
        with server.client() as client:
            client.config_set("maxmemory", 0)
    assert await status(store, admit("later")) == ("queued", None)


async def test_too_few_replicas_is_unavailable_but_applied(server: PrivateValkey) -> None:
    store = await Store.open(server.url, wait_replicas=1, require=True)
    with pytest.raises(Unavailable, match="store-replicas"):
        await store.admit(admit("d1"))
    await store.close()
    store = await Store.open(server.url, require=True)
    assert await status(store, admit("d2", "id:d1")) == ("duplicate", "d1")
    await store.close()


async def test_enough_replicas(server: PrivateValkey) -> None:
    with PrivateValkey() as replica, server.client() as first, replica.client() as second:
        port = str(free_port())
        first.config_set("port", port)
        second.replicaof("127.0.0.1", port)
        for _ in range(500):
            if second.info("replication")["master_link_status"] == "up":
                break
            await asyncio.sleep(0.02)
        store = await Store.open(server.url, wait_replicas=1, require=True)
        assert await status(store, admit("d1")) == ("queued", None)
        assert second.exists(f"gw:{{{S}}}:seen:id:d1") == 1
        await store.close()
        first.config_set("port", "0")


async def test_a_repeated_call_is_not_answered_before_the_replicas_have_the_first_ones_write(
    server: PrivateValkey,
) -> None:
    """WAIT counts what its own connection wrote: a repeat writes nothing, so it has to wait for what came before it."""
    with PrivateValkey() as replica, server.client() as first, replica.client() as second:
        first.flushall()
        port = str(free_port())
        first.config_set("port", port)
        second.replicaof("127.0.0.1", port)
        for _ in range(500):
            if second.info("replication")["master_link_status"] == "up":
                break
            await asyncio.sleep(0.02)
        store = await Store.open(server.url, wait_replicas=1, require=True)
        await store.admit(admit("d0"))
        batch = await one_batch(store)
        assert await store.started(batch, NOW)
        replica.pause()  # connected, and behind
        for _ in range(4):
            other = await Store.open(server.url, wait_replicas=1)
            with pytest.raises(Unavailable, match="store-replicas"):
                await other.admit_run(batch.dispatch, DIGEST, "1", "j", NOW, 60)
            with pytest.raises(Unavailable, match="store-replicas"):
                await other.admit(admit("d1"))
            await other.close()
        replica.resume()
        assert await store.admit_run(batch.dispatch, DIGEST, "1", "j", NOW, 60) == "admitted"
        assert (await status(store, admit("d1")))[0] == "queued"
        second.replicaof("NO", "ONE")
        await store.close()
        promoted = await Store.open(replica.url, require=True)
        assert await promoted.admit_run(batch.dispatch, DIGEST, "2", "k", NOW, 60) == "taken"
        await promoted.close()
        first.config_set("port", "0")


async def test_a_cluster() -> None:
    port, bus = free_port(), free_port()
    extra = (f"port {port}", "bind 127.0.0.1", "cluster-enabled yes", f"cluster-port {bus}")
    with PrivateValkey(extra=extra) as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            for _ in range(200):
                if client.execute_command("CLUSTER INFO")["cluster_state"] == "ok":
                    break
                await asyncio.sleep(0.05)
        store = await Store.open(f"redis+cluster://127.0.0.1:{port}", require=True)
        sources = ("a", "b", "c")
        await asyncio.gather(*(store.admit(admit(one, source=one)) for one in sources))
        for one in sources:
            batch = await one_batch(store, source=one)
            assert await store.started(batch, NOW)
            assert await store.admit_run(batch.dispatch, DIGEST, "1", f"j{one}", NOW, 60) == "admitted"
            assert await store.done(batch, NOW, "sent")
        assert len((await store.deliveries()).rows) == 3
        await store.close()


# -- queue


async def test_order_batches_and_merging(store: Store) -> None:
    for n in range(30):
        await store.admit(admit(f"d{n:02}", events=(event(n // 2 if n < 10 else n),)))
    first = await one_batch(store)
    assert first.events == tuple(event(n) for n in [*range(5), *range(10, 25)])
    assert first.deliveries == tuple(f"d{n:02}" for n in range(25))
    assert (first.digest, first.trigger, first.attempts, first.first_attempt) == (DIGEST, "issue-created", 0, None)
    assert await store.seal(S, NOW + 5, 30, 10) == []
    await store.done(first, NOW, "sent")
    second = await one_batch(store)
    assert second.events == tuple(event(n) for n in range(25, 30))
    assert second.dispatch != first.dispatch


async def test_a_sealed_batch_never_changes(store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store)
    assert await store.started(batch, NOW, "sha256:e")
    await store.admit(admit("d2"))
    assert await store.retry(batch, NOW + 60, "http-502", NOW)
    assert await store.seal(S, NOW + 59, 30, 10) == []
    again = await one_batch(store, NOW + 60)
    assert (again.dispatch, again.events, again.attempts) == (batch.dispatch, batch.events, 1)
    assert (again.first_attempt, again.reason) == (NOW, "http-502")
    await store.done(again, NOW + 61, "sent")
    assert (await one_batch(store, NOW + 61)).events == (event("d2"),)


async def test_bytes_bound_a_batch(store: Store) -> None:
    big = [json.dumps({"id": str(n), "pad": "x" * 15_000}) for n in range(5)]
    await store.admit(admit("d1", events=tuple(big)))
    sizes = []
    while batches := await store.seal(S, NOW, 30, 1):
        sizes.append(len(batches[0].events))
        assert sum(map(len, batches[0].events)) < 59_000
        await store.done(batches[0], NOW, "sent")
    assert sizes == [3, 2]
    await store.admit(admit("d2", events=(json.dumps("y" * 70_000),)))
    assert len((await one_batch(store)).events) == 1


async def test_fair_by_due_time(store: Store) -> None:
    lanes = [f"{DIGEST}:t{n}" for n in range(3)]
    for n in range(60):
        await store.admit(admit(f"a{n}", lane=lanes[0], now=NOW))
    await store.admit(admit("b", lane=lanes[1], now=NOW + 1))
    await store.admit(admit("c", lane=lanes[2], now=NOW + 2))
    seen: list[str] = []
    while batches := await store.seal(S, NOW + 10 + len(seen), 30, 1):
        seen.append(batches[0].lane)
        await store.done(batches[0], NOW + 10 + len(seen), "sent")
    assert seen == [lanes[0], lanes[1], lanes[2], lanes[0], lanes[0]]


async def test_two_dispatchers_never_hold_one_lane(server: PrivateValkey, store: Store) -> None:
    other = await Store.open(server.url, require=True)
    for n in range(40):
        await store.admit(admit(f"d{n}", lane=f"{DIGEST}:t{n}"))
    taken = await asyncio.gather(*(one.seal(S, NOW, 30, 10) for one in (store, other) for _ in range(4)))
    lanes = [batch.lane for batches in taken for batch in batches]
    assert sorted(lanes) == sorted({f"{DIGEST}:t{n}" for n in range(40)})
    await other.close()


async def test_a_lease_ends_and_the_batch_comes_again(store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store, lease_s=0.2)
    assert await store.seal(S, NOW + 1000, 30, 10) == []  # a fast clock takes nothing over
    await asyncio.sleep(0.25)
    again = await one_batch(store, NOW + 1000)
    assert (again.dispatch, again.events) == (batch.dispatch, batch.events)
    assert again.lease != batch.lease
    assert not await store.started(batch, NOW)
    assert not await store.renew(batch, NOW, 30)
    assert not await store.retry(batch, NOW, "x", NOW)
    assert not await store.release(batch)
    assert not await store.dead(batch, "x", NOW)
    assert await store.started(again, NOW, lease_s=30)
    await store.admit(admit("d2"))
    assert await store.done(batch, NOW, "sent")  # its 204 came late, but came
    assert await store.seal(S, NOW + 10, 30, 10) == []  # the other still holds the lane
    assert not await store.done(again, NOW, "sent")
    assert (await one_batch(store, NOW + 2000)).events == (event("d2"),)


async def test_renew_keeps_the_lease(store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store, lease_s=0.2)
    assert await store.renew(batch, NOW, 30)
    await asyncio.sleep(0.25)
    assert await store.seal(S, NOW + 10, 30, 10) == []
    assert await store.release(batch)
    assert len(await store.seal(S, time.time() + 1, 30, 10)) == 1


async def test_held_work_does_not_age(store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store)
    await store.started(batch, NOW)
    assert await store.release(batch, NOW + 100, held_s=40, status="asked", reason="suspended")
    again = await one_batch(store, NOW + 100)
    assert (again.first_attempt, again.attempts, again.reason) == (NOW + 40, 1, "suspended")
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "j", NOW, 60) == "unknown"


async def test_dead_letters(store: Store) -> None:
    for n in range(3):
        await store.admit(admit(f"d{n}", events=(event(n),)))
        batch = await one_batch(store, NOW + n)
        await store.started(batch, NOW + n)
        assert await store.dead(batch, "http-404", NOW + n)
    await store.admit(admit("later"))
    dead = await store.dead_letters(S)
    assert [one.events for one in dead] == [(event(2),), (event(1),), (event(0),)]
    assert {(one.status, one.reason, one.attempts) for one in dead} == {("dead", "http-404", 1)}
    assert (await store.depth(S)).dead == 3
    ids = [one.id for one in dead]
    assert await store.discard_dead(S, [ids[0], "nothing"]) == [ids[0]]
    assert await store.replay_dead(S, [ids[2], ids[0], ids[1]], NOW + 10) == [ids[2], ids[1]]
    assert await store.replay_dead(S, ids, NOW + 10) == []
    assert await drain(store, now=NOW + 20) == [event(0), event(1), event("later")]
    found = await store.dispatch(ids[2])
    assert found
    assert (found.status, found.events, found.attempts, found.reason) == ("sent", (), 0, None)
    gone = await store.dispatch(ids[0])
    assert gone
    assert gone.status == "discarded"


async def test_dead_letters_are_capped_and_age_out(server: PrivateValkey) -> None:
    store = await Store.open(server.url, limits=Limits(dead=2), require=True)
    for n in range(4):
        await store.admit(admit(f"d{n}"))
        await store.dead(await one_batch(store, NOW + n), "x", NOW + n)
    assert [one.events for one in await store.dead_letters(S)] == [(event("d3"),), (event("d2"),)]
    await store.admit(admit("d9"))
    late = NOW + 31 * 86_400
    await store.dead(await one_batch(store, late), "x", late)
    assert len(await store.dead_letters(S)) == 1
    await store.close()


async def test_depth(store: Store) -> None:
    assert await store.depth(S) == await store.depth("other")
    for n in range(25):
        await store.admit(admit(f"d{n}", now=NOW + n))
    found = await store.depth(S)
    assert (found.lanes, found.waiting, found.sealed, found.dead, found.oldest) == (1, 25, 0, 0, NOW)
    await one_batch(store, NOW + 30)
    found = await store.depth(S)
    assert (found.waiting, found.sealed, found.oldest) == (5, 1, NOW)


async def test_lost_batch_does_not_hold_its_lane(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store)
    await store.release(batch, NOW)
    await store.admit(admit("d2"))
    with server.client() as client:
        client.delete(f"gw:{{{S}}}:dispatch:{batch.dispatch}")
    assert (await one_batch(store)).events == (event("d2"),)


# -- the run


async def sent_batch(store: Store, delivery: str = "d1", lane: str = LANE) -> Batch:
    await store.admit(admit(delivery, lane=lane))
    batch = await one_batch(store)
    assert await store.started(batch, NOW, "sha256:e")
    return batch


async def test_one_run_is_admitted(store: Store) -> None:
    batch = await sent_batch(store)

    async def ask(run: str, jti: str, digest: str = DIGEST, now: float = NOW) -> str:
        return await store.admit_run(batch.dispatch, digest, run, jti, now, 100)

    assert await ask("1", "a", digest="sha256:" + "b" * 64) == "unknown"
    assert await store.admit_run(uuid7(), DIGEST, "1", "a", NOW, 100) == "unknown"
    assert await ask("1", "a") == "admitted"  # before it is settled
    await store.done(batch, NOW, "sent")
    assert await ask("1", "a") == "admitted"
    assert await ask("1", "b") == "admitted"
    assert await ask("2", "c") == "taken"
    assert await ask("1", "a", now=NOW + 101) == "expired"
    found = await store.dispatch(batch.dispatch)
    assert found
    assert (found.run, found.admitted_at, found.envelope_digest, found.first_sent) == ("1", NOW, "sha256:e", NOW)
    second = await sent_batch(store, "d2")
    assert await store.admit_run(second.dispatch, DIGEST, "1", "a", NOW, 100) == "jti-used"
    assert await store.admit_run(second.dispatch, DIGEST, "2", "c", NOW, 100) == "admitted"


async def test_a_race_of_runs_has_one_winner(store: Store) -> None:
    batch = await sent_batch(store)
    asks = [store.admit_run(batch.dispatch, DIGEST, str(n), f"j{n}", NOW, 100) for n in range(50)]
    answers = await asyncio.gather(*asks)
    assert answers.count("admitted") == 1
    assert set(answers) == {"admitted", "taken"}


async def test_unsent_and_denied_are_unknown(store: Store) -> None:
    await store.admit(admit("d1"))
    batch = await one_batch(store)
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "a", NOW, 100) == "unknown"
    await store.started(batch, NOW)
    await store.dead(batch, "denied", NOW)
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "a", NOW, 100) == "unknown"


@pytest.mark.parametrize("reason", ["denied", "ask-expired"])
async def test_what_was_denied_keeps_its_runs_out_until_it_is_sent_anew(store: Store, reason: str) -> None:
    """Replayed, it may be asked about anew: the run of an earlier send must not come before the answer."""
    batch = await sent_batch(store)
    await store.dead(batch, reason, NOW)
    assert await store.replay_dead(S, [batch.dispatch], NOW) == [batch.dispatch]
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "a", NOW, 100) == "unknown"
    await store.started(await one_batch(store), NOW)
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "a", NOW, 100) == "admitted"


async def test_no_run_is_admitted_to_what_was_carried_over_and_nothing_is_that_has_a_run(store: Store) -> None:
    first, second = await sent_batch(store), await sent_batch(store, "d2", LANE + "x")

    async def carry(batch: Batch) -> list[str]:
        entry = QueueEntry(LANE + "new", batch.events[0], batch.dispatch)
        item = AdmitItem((f"rollover:{batch.dispatch}",), 60, None, (entry,))
        done = await store.admit(Admit(S, batch.dispatch, (item,), record(batch.dispatch), NOW, batch.dispatch))
        return [item.status for item in done.items]

    assert [await carry(first), await carry(first)] == [["queued"], ["queued"]]
    assert await store.admit_run(first.dispatch, DIGEST, "1", "a", NOW, 100) == "unknown"
    assert await store.admit_run(second.dispatch, DIGEST, "2", "b", NOW, 100) == "admitted"
    assert await carry(second) == ["taken"]
    assert (await store.depth(S)).waiting == 1
    assert await store.admit_run(second.dispatch, DIGEST, "2", "b", NOW, 100) == "admitted"


async def test_a_dead_letter_of_unknown_outcome_admits_its_run(store: Store) -> None:
    batch = await sent_batch(store)
    await store.dead(batch, "timeout", NOW)
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "a", NOW, 100) == "admitted"
    await store.replay_dead(S, [batch.dispatch], NOW)
    again = await one_batch(store)
    await store.started(again, NOW + 50)
    assert await store.admit_run(batch.dispatch, DIGEST, "2", "b", NOW + 120, 100) == "taken"
    assert await store.admit_run(batch.dispatch, DIGEST, "1", "c", NOW + 120, 100) == "admitted"


# -- records


async def test_records_carry_outcome_and_dispatches(store: Store) -> None:
    await store.admit(admit("d1", "id:1", now=NOW))
    await store.admit(admit("d2", "id:1", now=NOW + 1))
    batch = await one_batch(store)
    page = await store.deliveries(S)
    assert [(row["id"], row["outcome"], row["dispatch_ids"]) for row in page.rows] == [
        ("d2", "duplicate", []),
        ("d1", "forwarded", [batch.dispatch]),
    ]
    assert page.rows[0]["first"] == "d1"
    assert await store.delivery("nothing") is None
    (entry,) = await store.projected(S, "d1")
    assert (entry.lane, entry.event) == (LANE, event("d1"))
    assert await store.projected(S, "d2") == ()


async def test_refusals_are_buffered_capped_and_paged(server: PrivateValkey) -> None:
    store = await Store.open(server.url, limits=Limits(records=50), require=True)
    await store.admit(admit("kept", now=NOW))
    for n in range(120):
        await store.record(S, record(f"r{n:03}", NOW + n // 7, "rejected"))
    await store.record("other", record("i1", NOW + 5, "ignored", "other"))
    await store.flush()
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.deliveries(limit=7, before=cursor)
        seen.extend(row["id"] for row in page.rows)
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 52
    assert set(seen) >= {"kept", "i1", "r119", "r070"}
    assert [row["id"] for row in (await store.deliveries(outcome="forwarded")).rows] == ["kept"]
    assert [row["id"] for row in (await store.deliveries(outcome="ignored")).rows] == ["i1"]
    with pytest.raises(ValueError, match="cursor"):
        await store.deliveries(before="junk")
    await store.close()


async def test_records_are_written_within_a_second_or_dropped(server: PrivateValkey) -> None:
    store = await Store.open(server.url, require=True)
    await store.record(S, record("r1", NOW, "rejected"))
    await asyncio.sleep(0.1)
    assert await store.delivery("r1")
    await store.record(S, record("r2", NOW, "rejected"))
    await asyncio.sleep(0.1)
    assert await store.delivery("r2") is None
    await asyncio.sleep(1.0)
    assert await store.delivery("r2")
    for n in range(2_010):
        await store.record(S, record(f"x{n}", NOW, "rejected"))
    assert store.dropped == 10
    server.kill()
    await store.flush()
    assert store.dropped == 2_010
    server.start()
    await store.close()


async def test_old_records_go(store: Store) -> None:
    await store.admit(admit("d1"))
    await store.admit(admit("d2", now=NOW + 15 * 86_400))
    assert await store.delivery("d1") is None
    assert await store.projected(S, "d1") == ()


async def test_ignored_items_beside_a_replayed_token(store: Store) -> None:
    await store.admit(admit("d1", jti=("t", NOW + 60)))
    item = AdmitItem(("id:2",), 60, ("t", NOW + 60), ())
    await store.admit(Admit(S, "d2", (item,), record("d2", outcome="ignored"), NOW))
    found = await store.delivery("d2")
    assert found
    assert found["outcome"] == "ignored"


# -- shared state, opening, bounds


async def test_park(store: Store) -> None:
    await store.park(1, NOW + 60, "rate-limited", NOW)
    await store.park(1, NOW + 30, "rate-limited", NOW)
    await store.park(2, NOW + 10, "retry-after", NOW)
    assert await store.parked(NOW) == {1: NOW + 60, 2: NOW + 10}
    assert await store.parked(NOW + 20) == {1: NOW + 60}
    await store.park(3, NOW + 50, "x", NOW + 20)
    assert await store.parked(NOW) == {1: NOW + 60, 3: NOW + 50}


async def test_suspensions_and_facts(store: Store) -> None:
    await store.suspend(DIGEST, "hash-changed")
    assert await store.suspended() == {DIGEST: "hash-changed"}
    assert await store.resume(DIGEST)
    assert not await store.resume(DIGEST)
    await store.remember("sender", "7", 60)
    assert not await store.remember_first("sender", "8", 60)
    assert await store.recall("sender") == "7"
    await store.forget("sender")
    assert await store.recall("sender") is None
    assert await store.remember_first("sender", "8", 60)


TTL = {"seen", "jti", "lease", "rec", "dead", "used", "notices"}
WORK = {"lane", "sealed", "ready", "asks"}
GLOBAL_TTL = {"gw:dispatch", "gw:run-jti", "gw:park", "gw:sources", "gw:fact"}
GLOBAL = {"gw:schema", "gw:suspended", "gw:audit", "gw:modes"}


async def test_every_key_is_bounded(server: PrivateValkey, store: Store) -> None:
    for n in range(6):
        await store.admit(admit(f"d{n}", f"id:{n}", f"body:{n}", lane=f"{DIGEST}:t{n}", jti=(f"j{n}", NOW + 9)))
    batches = {batch.lane[-2:]: batch for batch in await store.seal(S, NOW, 30, 10)}
    await store.admit(admit("waiting", lane=f"{DIGEST}:t0"))
    for batch in batches.values():
        await store.started(batch, NOW)
    await store.admit_run(batches["t1"].dispatch, DIGEST, "1", "j", NOW, 60)
    await store.done(batches["t1"], NOW, "sent")
    await store.dead(batches["t2"], "x", NOW)
    await store.dead(batches["t3"], "x", NOW)
    await store.discard_dead(S, [batches["t3"].dispatch])
    await store.record(S, record("r", NOW, "rejected"))
    await store.record(S, record("i", NOW, "ignored"))
    await store.flush()
    await store.park(1, NOW + 60, "x", NOW)
    await store.suspend(DIGEST, "x")
    await store.remember("a", "b", 60)
    await store.write_audit({"action": "revoke"})
    await store.set_modes({DIGEST: "ask"})
    await store.ask(S, batches["t4"].dispatch, NOW, 60)
    await store.secret_used(S, {"env:A": NOW})
    await store.keep_notice(S, "missed", "x", NOW)
    undelivered = {batches[name].dispatch for name in ("t0", "t4", "t5")}
    kinds = set()
    with server.client() as client:
        for key in client.scan_iter():
            ttl = client.ttl(key)
            if key.startswith(f"gw:{{{S}}}:"):
                kind, _, rest = key.removeprefix(f"gw:{{{S}}}:").partition(":")
                bounded = kind in TTL or (kind == "dispatch" and rest not in undelivered)
                assert bounded or kind in WORK or kind == "dispatch", key
            else:
                kind = ":".join(key.split(":")[:2])
                bounded = kind in GLOBAL_TTL
                assert bounded or kind in GLOBAL, key
            assert (ttl > 0) == bounded, key
            kinds.add(kind)
    assert kinds >= TTL | WORK | GLOBAL_TTL | GLOBAL
    await store.done(batches["t0"], NOW, "sent")
    for name in ("t4", "t5"):
        await store.done(batches[name], NOW, "sent")
    await drain(store)
    with server.client() as client:
        for key in client.scan_iter(match=f"gw:{{{S}}}:*"):
            assert client.ttl(key) > 0, key


async def test_no_key_outside_the_prefix_of_its_source(server: PrivateValkey, store: Store) -> None:
    await store.admit(admit("d1"))
    await sent_batch(store, "d2")
    with server.client() as client:
        assert all(str(key).startswith("gw:") for key in client.scan_iter())


async def test_another_schema_is_refused(server: PrivateValkey) -> None:
    with server.client() as client:
        client.set("gw:schema", "99")
    with pytest.raises(ConfigError, match="schema version 99"):
        await Store.open(server.url)


async def test_opens_while_the_server_is_away_and_is_checked_later(server: PrivateValkey) -> None:
    with server.client() as client:
        client.set("gw:schema", "99")
    server.kill()
    with pytest.raises(Unavailable):
        await Store.open(server.url, require=True)
    store = await Store.open(server.url)
    server.start()
    with pytest.raises(Unavailable, match="store-unfit"):
        await store.ping()
    with server.client() as client:
        client.set("gw:schema", SCHEMA)
    await store.ping()
    await store.close()


async def test_another_server_under_the_same_address_is_looked_at(
    server: PrivateValkey, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await store.admit(admit("d1"))
    with server.client() as client:
        client.set("gw:schema", "99")
    await store.ping()  # looked at a moment ago
    server.restart()
    with contextlib.suppress(Unavailable):  # the call that finds its connection broken may go through to the new one
        await store.ping()
    with pytest.raises(Unavailable, match="store-unfit"):
        await store.ping()
    with server.client() as client:
        client.set("gw:schema", SCHEMA)
    await store.ping()
    with server.client() as client:
        client.flushall()
    monkeypatch.setattr(store_client, "FIT_S", 0.0)
    said: list[str] = []
    for _ in range(10):  # a look that finds a connection of before the restart says nothing; the next one does
        store.client._fit_until = 0.0
        await store.ping()
        said = [record.message for record in caplog.records if record.message == "store-emptied"]
        if said:
            break
    assert said == ["store-emptied"]
    with server.client() as client:
        assert client.get("gw:schema") == SCHEMA


async def test_the_clock_is_the_stores_and_does_not_step(
    store: Store, server: PrivateValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        seconds, micros = client.time()
    monkeypatch.setattr("time.time", lambda: 0.0)  # this machine's is wrong
    assert abs(store.clock() - (seconds + micros / 1_000_000)) < 1.0
    unopened = store_client.Client(None, file="", relaxed=True, wait_replicas=0)
    assert unopened.clock() == 0.0


async def test_a_look_that_gets_no_answer_stops_no_call_that_would(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster one node may be away, which says nothing of the others."""

    async def away() -> list[Any]:
        raise RedisConnectionError("away")

    monkeypatch.setattr(store.client, "_problems", away)
    store.client._fit_until = 0.0
    assert await status(store, admit("d1")) == ("queued", None)


async def test_a_source_with_work_stays_known(
    server: PrivateValkey, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only for thirty days after the process began: by this set commands and dispatchers find what is left."""
    await store.admit(admit("d1"))
    with server.client() as client:
        client.delete("gw:sources")  # its time is over, or the store was emptied
        await store.admit(admit("d2"))
        assert not client.exists("gw:sources")  # not written at every admission
        monkeypatch.setattr(store_records, "KNOWN_S", 0.0)
        store._known.clear()
        await store.admit(admit("d3"))
        client.delete("gw:sources")
        await store.admit(admit("d4"))
        assert client.smembers("gw:sources") == {S}


async def test_durability(server: PrivateValkey) -> None:
    with server.client() as client:
        redis = Redis(unix_socket_path=str(server.socket))
        assert await check_durability(redis) == []
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert len(await check_durability(redis)) == 2
        with pytest.raises(ConfigError, match="append-only"):
            await Store.open(server.url)
        await (await Store.open(server.url, relaxed=True)).close()
        client.config_set("appendonly", "yes")
        client.config_set("maxmemory-policy", "noeviction")
        await redis.aclose()


async def test_an_old_server_is_refused() -> None:
    class Old:
        async def info(self) -> dict[str, Any]:
            return {"redis_version": "6.0.16", "aof_enabled": 1}

    (problem,) = await check_durability(Old())
    assert "6.0.16" in problem.problem


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pw@127.0.0.1:6379/0",
        "rediss://127.0.0.1/0?ssl_ca_certs=/x.pem",
        "unix:///tmp/s?db=1",
        "redis+sentinel://a:1,b:2/main/0",
        "redis+sentinel://u:p@a/main",
        "redis+cluster://a:1,[::1]:2",
    ],
)
async def test_addresses(url: str) -> None:
    await build(url).aclose()


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "redis+sentinel://a:1",
        "redis+cluster://a/3",
        "redis+cluster://:secret@",
        "redis+cluster://a?x=1",
        "",
    ],
)
async def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client_for(url, "gateway.toml")
    assert "secret" not in str(caught.value)


def test_slugs_and_cursors() -> None:
    assert _slug(ResponseError("OOM command not allowed")) == "store-oom"
    assert _slug(ResponseError("what is this")) == "store-error"
    assert _slug(RedisConnectionError("x")) == "store-away"
    assert str(_Place.parse("12-a-b")) == "12-a-b"


def test_ids_are_ordered_uuid7() -> None:
    first, second = uuid7(1.0), uuid7(1.001)
    assert first < second
    assert first[14] == "7"
    assert first[19] in "89ab"


@pytest.mark.parametrize("how", ["retry", "release"])
async def test_giving_back_what_another_settled_changes_nothing(store: Store, server: PrivateValkey, how: str) -> None:
    await store.admit(admit("d1"))
    first = await one_batch(store)
    assert await store.started(first, NOW)
    with server.client() as client:
        client.delete(f"gw:{{{S}}}:lease:{LANE}")
    second = await one_batch(store, NOW + 60)
    assert second.dispatch == first.dispatch
    assert await store.done(first, NOW)
    if how == "retry":
        assert not await store.retry(second, NOW + 100, "server-error", NOW + 61)
    else:
        assert not await store.release(second, NOW + 100)
    found = await store.dispatch(first.dispatch)
    assert found is not None
    assert (found.status, found.events) == ("sent", ())
    assert await store.seal(S, NOW + 1000, 30, 10) == []
    await store.admit(admit("d2"))
    assert (await one_batch(store, NOW + 1000)).events == (event("d2"),)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_is_cancelled_though_the_client_library_loses_it(fails: bool) -> None:
    """A server that is told to end while it talks to the store would otherwise wait for its own tasks for ever."""
    begun = asyncio.Event()

    async def loses_it() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if fails:
                raise RedisConnectionError from None
        return "answer"

    async def call() -> str:
        return await bounded(loses_it)

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def answers() -> str:
        return "answer"

    async def cleans_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await bounded(answers)  # a task that is being cancelled may still settle
        return ""

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "answer"


async def test_a_cluster_that_is_away_is_unavailable() -> None:
    """The client library's error of a cluster is none of its own kind of errors."""
    store = await Store.open(f"redis+cluster://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match="store-away"):
        await store.ping()
    await store.close()


def test_an_unknown_parameter_of_the_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="unknown parameter") as caught:
        client_for("redis://u:planted-secret@127.0.0.1/0?foo=1", "g.toml")
    assert "planted" not in str(caught.value)
