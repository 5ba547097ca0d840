import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.admission import Run
from gateway.delivery import Outcome
from gateway.metrics import Gauges
from gateway.store import Batch, Store
from gateway.watch import Watch
from tests.valkey import PrivateValkey


@pytest.fixture
async def store(server: PrivateValkey) -> AsyncIterator[Store]:
    with server.client() as client:
        client.flushall()
    opened = await Store.open(server.url)
    yield opened
    await opened.close()


def deliver(watch: Watch, outcome: Outcome, reason: str | None = None, key: str | None = "0") -> None:
    watch.delivery(
        "s",
        "d",
        outcome,
        reason,
        key=key,
        triggers=["t"] if outcome == "forwarded" else [],
        began=time.time(),
        status=200,
    )


def batch() -> Batch:
    return Batch("s", "d:t", "d", "t", "id", ("{}",), ("d1", "d2"), 0, None, "lease")


async def test_counts_reach_the_flow(store: Store) -> None:
    watch = Watch()
    deliver(watch, Outcome.FORWARDED)
    deliver(watch, Outcome.FORWARDED, key="subscription/1")
    deliver(watch, Outcome.REJECTED, "signature", key=None)
    deliver(watch, Outcome.HANDSHAKE, "url-validation", key=None)
    deliver(watch, Outcome.HANDSHAKE, "challenge", key="a-provider's key id 99999")
    watch.settled(batch(), "done", "done", status=204, took_s=0.1)
    watch.settled(batch(), "hold", "asked", status=None, took_s=0.1)
    async with watch.running(store):
        pass
    flow = await store.flow("s", time.time())
    assert {kind: sum(row) for kind, row in flow.counts.items()} == {
        "forwarded": 2,
        "rejected": 1,
        "unproven": 1,
        "handshake": 1,
        "sent": 1,
    }
    assert abs(flow.last["forwarded"] - time.time()) < 5
    text = watch.metrics.present(Gauges(0, False)).decode()
    assert 'gateway_secret_used_total{position="1",source="s",worker="0"} 1.0' in text
    assert 'gateway_secret_used_total{position="provider",source="s",worker="0"} 1.0' in text
    assert "99999" not in text


async def test_old_stretches_are_forgotten(store: Store, server: PrivateValkey) -> None:
    now = time.time()
    await store.add_flow("s", {"forwarded": (5, now - 2 * 86_400)}, now - 2 * 86_400)
    await store.add_flow("s", {"forwarded": (2, now - 80_000)}, now - 80_000)
    await store.add_flow("s", {"forwarded": (1, now)}, now)
    await store.add_flow("s", {"forwarded": (1, now - 9)}, now)
    flow = await store.flow("s", now)
    assert sum(flow.counts["forwarded"]) == 4
    assert flow.counts["forwarded"][-1] == 2
    assert abs(flow.last["forwarded"] - now) < 0.01  # a late process does not set it back
    with server.client() as client:
        fields: Any = client.hkeys("gw:{s}:flow")
        assert len(fields) == 4  # two stretches, the last time, the sweep's mark
        assert client.ttl("gw:{s}:flow") > 0


async def test_a_store_that_is_away_gets_the_counts_later(store: Store, server: PrivateValkey) -> None:
    watch = Watch()
    deliver(watch, Outcome.FORWARDED)
    server.kill()
    try:
        await watch.flush(store)
        deliver(watch, Outcome.FORWARDED)
    finally:
        server.start()
    await watch.flush(store)
    assert (await store.flow("s", time.time())).total("forwarded") == 2


async def test_one_process_of_a_machine_shows_all(store: Store) -> None:
    first, second = (Watch(worker=name, group="host:1") for name in "01")
    stranger = Watch(worker="1", group="host:2")
    for watch in (first, second, second, stranger):
        deliver(watch, Outcome.FORWARDED)
    for watch in (first, second, stranger):
        await watch.flush(store)
    text = (await first.present(store, Gauges(0, False))).decode()
    assert 'gateway_deliveries_total{outcome="forwarded",source="s",worker="0"} 1.0' in text
    assert 'gateway_deliveries_total{outcome="forwarded",source="s",worker="1"} 2.0' in text
    assert text.count("# TYPE gateway_deliveries_total counter") == 1
    assert 'gateway_admit_seconds_count{source="s",worker="1"} 2.0' in text


async def test_admissions_are_counted() -> None:
    watch = Watch()
    watch.admission(Run("1", 1, "sha256:a", "x", None), "admitted", time.time())
    watch.admission(None, "claims", time.time())
    text = watch.metrics.present(Gauges(0, False)).decode()
    assert 'gateway_admissions_total{reason="claims",result="refused",worker="0"} 1.0' in text
