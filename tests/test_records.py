"""Delivery records: bounded by age and number a class, refusals apart, read whole whatever happens meanwhile."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from gateway.deliveries import export
from gateway.errors import Unavailable
from gateway.store import Limits, Store
from gateway.store import records as module
from tests.valkey import PrivateValkey

NOW = 1_790_000_000.0


@pytest.fixture
async def store(server: PrivateValkey) -> AsyncIterator[Store]:
    with server.client() as client:
        client.flushall()
    opened = await Store.open(server.url, limits=Limits(records=100, records_age_s=3600), require=True)
    yield opened
    await opened.close()


async def keep(store: Store, ident: str, at: float, outcome: str = "ignored", source: str = "s") -> None:
    reason = "signature" if outcome == "rejected" else "no-match"
    row = {"id": ident, "source": source, "received_at": at, "outcome": outcome, "reason": reason, "subscriptions": []}
    await store.record(source, json.dumps(row))


async def test_old_records_go_and_their_keys_with_them(store: Store, server: PrivateValkey) -> None:
    await keep(store, "old", NOW)
    await store.flush()
    await keep(store, "new", NOW + 3601)
    await store.flush()
    assert [row["id"] for row in (await store.deliveries()).rows] == ["new"]
    with server.client() as client:
        assert client.hkeys("gw:{s}:rec:authentic") == ["new"]
        assert 0 < int(str(client.ttl("gw:{s}:rec:authentic"))) <= 3600
        assert 0 < int(str(client.ttl("gw:{s}:rec:authentic:at"))) <= 3600


async def test_a_flood_of_refusals_pushes_out_nothing_authentic(store: Store, server: PrivateValkey) -> None:
    await keep(store, "real", NOW)
    for number in range(500):
        await keep(store, f"r{number:03}", NOW + 1 + number / 1000, "rejected")
    await store.flush()
    page = await store.deliveries(limit=500)
    assert [row["id"] for row in page.rows] == [*(f"r{number:03}" for number in range(499, 399, -1)), "real"]
    with server.client() as client:
        assert client.hlen("gw:{s}:rec:refused") == 100


async def test_records_of_one_moment_are_all_read(store: Store) -> None:
    many = Store(store.client, Limits(records=5_000))
    for number in range(1_000):  # more than any chunk, all of the same microsecond
        await keep(many, f"x{number:04}", NOW)
    await keep(many, "older", NOW - 1)
    await many.flush()
    assert len({json.loads(line)["id"] async for line in export(many)}) == 1_001
    seen, cursor = list[str](), None
    while True:
        page = await many.deliveries(limit=30, before=cursor)
        seen += [row["id"] for row in page.rows]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 1_001


async def test_what_arrives_while_reading_neither_repeats_nor_hides_a_record(store: Store) -> None:
    for number in range(90):
        await keep(store, f"x{number:02}", NOW + number)
    await store.flush()
    seen = []
    async with aclosing(store.newest()) as rows:
        async for _, row in rows:
            seen.append(row["id"])
            if len(seen) == 10:
                for number in range(10):
                    await keep(store, f"y{number}", NOW + 1000 + number)
                await store.flush()
    assert seen == [f"x{number:02}" for number in range(89, -1, -1)]


async def test_a_page_looks_through_a_bounded_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN", 40)
    await keep(store, "needle", NOW, "unavailable")
    for number in range(90):
        await keep(store, f"r{number:02}", NOW + 1 + number, "rejected")
    await store.flush()
    pages, cursor = [], None
    while True:
        page = await store.deliveries(outcome="unavailable", before=cursor)
        pages.append([row["id"] for row in page.rows])
        cursor = page.next
        if cursor is None:
            break
    assert pages == [[], [], ["needle"]]


async def test_a_store_that_goes_away_while_reading_is_said(server: PrivateValkey) -> None:
    with PrivateValkey() as other:
        store = await Store.open(other.url, require=True)
        for source in ("a", "b", "c"):
            await keep(store, f"{source}1", NOW, source=source)
        await store.flush()
        other.kill()
        with pytest.raises(Unavailable):
            await store.deliveries("a")
        await store.close()


async def test_a_page_of_a_hundred_thousand_records_looks_at_a_part_of_them(
    store: Store, server: PrivateValkey
) -> None:
    """Ten sources as full as they get."""
    number = 0
    with server.client() as client:
        for source in range(10):
            key = f"gw:{{s{source}}}:rec:refused"
            pipe = client.pipeline(transaction=False)
            for _ in range(10_000):
                number += 1
                row = {
                    "id": f"{number}",
                    "source": f"s{source}",
                    "received_at": NOW,
                    "outcome": "rejected",
                    "reason": "x",
                }
                pipe.hset(key, f"{number}", "||\n" + json.dumps(row))
                pipe.zadd(f"{key}:at", {f"{number}": (NOW + number % 9_973) * 1e6})
            pipe.execute()
            client.sadd("gw:sources", f"s{source}")
    assert len((await store.deliveries()).rows) == 50
    page = await store.deliveries(outcome="unavailable")
    assert (page.rows, page.next is None) == ((), False)
    lines = 0
    async for _ in export(store):
        lines += 1
    assert lines == 100_000
