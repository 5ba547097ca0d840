"""`/api/v1/` and `/metrics`: who may, what is answered, what a change does."""

import json
import time
from typing import Any

import pytest

from gateway.deliveries import export
from gateway.store import Admit, AdmitItem, QueueEntry
from gateway.structs import replace
from gateway.subscriptions import build_index
from tests.console.client import Client
from tests.valkey import PrivateValkey

READS = ("/api/v1/deliveries", "/api/v1/subscriptions", "/api/v1/sources", "/api/v1/dead", "/api/v1/asks", "/metrics")


async def make_dead(client: Client, number: int = 1, source: str = "linear-acme", status: str = "dead") -> list[str]:
    """Queue events and let GitHub have refused them."""
    store = client.gateway.store
    digest = next(one.subscription.digest for one in client.gateway.configuration.enrolled if one.source == source)
    made = []
    for count in range(number):
        ident = f"01a22b75-da79-7c15-aae9-{time.monotonic_ns() % 10**8:08d}{count:04d}"
        text = json.dumps(
            {
                "id": ident,
                "source": source,
                "received_at": time.time(),
                "outcome": "forwarded",
                "reason": None,
                "subscriptions": [],
            }
        )
        entry = QueueEntry(f"{digest}:t{count}", '{"url":"https://secret.example/title-of-it"}', ident)
        await store.admit(Admit(source, ident, (AdmitItem((f"id:{ident}",), 60, None, (entry,)),), text, time.time()))
        for batch in await store.seal(source, time.time(), 30, 5):
            if status == "dead":
                await store.started(batch, time.time(), envelope_digest="", lease_s=30)
                await store.dead(batch, "not-found", time.time())
            else:
                await store.ask(source, batch.dispatch, time.time(), 600)
                await store.release(batch, time.time() + 60, held_s=0, status=status, reason=status)
            made.append(batch.dispatch)
    await client.lookout.look(fresh=True)
    return made


@pytest.mark.parametrize("path", READS)
async def test_reads_need_a_token_from_elsewhere(client: Client, path: str) -> None:
    assert (await client.get(path)).status == 200
    client.host = "console.example"  # a proxy on this machine asks under its public name
    assert (await client.get(path)).status == 401
    client.host = "localhost"  # one that asks under ours says whom it asks for
    assert (await client.get(path, **{"x-forwarded-for": "203.0.113.9"})).status == 401
    client.host, client.peer = "10.0.0.5:8081", "10.0.0.9"
    assert (await client.get(path)).status == 401
    client.host = "localhost"  # a foreign machine can say anything
    assert (await client.get(path)).status == 401
    assert (await client.get(path, authorization="Bearer wrong-but-long-enough")).status == 401
    assert (await client.get(path, authorization="Bearer an-operators-token-of-some-length")).status == 200


async def test_changes_need_a_bearer_even_here(client: Client) -> None:
    await client.log_in()  # a cookie is not enough: a browser would add it to another site's request
    for path in ("/api/v1/dead/replay", "/api/v1/dead/discard", "/api/v1/sources/linear-acme/test"):
        for token in (None, "wrong-but-long-enough"):
            answered = await client.change(path, {}, token)
            assert (answered.status, answered.headers["www-authenticate"]) == (401, "Bearer")


async def test_sources_and_subscriptions(client: Client) -> None:
    sources = (await client.get("/api/v1/sources")).json()["sources"]
    assert {one["health"] for one in sources} == {"new"}
    assert set(sources[0]) == {
        "name",
        "profile",
        "health",
        "last_good",
        "last_refused",
        "waiting",
        "sealed",
        "oldest",
        "dead",
    }
    rows = (await client.get("/api/v1/subscriptions")).json()["subscriptions"]
    assert set(rows[0]) == {"digest", "source", "repository", "state", "reason"}
    await client.gateway.store.suspend(rows[0]["digest"], "workflow-hash")
    await client.lookout.look(fresh=True)
    rows = (await client.get(f"/api/v1/subscriptions?source={rows[0]['source']}")).json()["subscriptions"]
    assert [(row["state"], row["reason"]) for row in rows] == [("suspended", "workflow-hash")]


async def test_a_delivery_is_found_by_its_id(client: Client) -> None:
    sent = (await client.change("/api/v1/sources/linear-acme/test", {})).json()
    assert sent["status"] == 200
    await client.gateway.store.flush()
    row = (await client.get(f"/api/v1/deliveries/{sent['delivery']}")).json()
    assert (row["id"], row["outcome"]) == (sent["delivery"], "forwarded")
    assert (await client.get("/api/v1/deliveries/none")).status == 404
    assert (await client.change("/api/v1/sources/nobody/test", {})).status == 404
    assert (await client.change("/api/v1/sources/confluence-acme/test", {})).status == 404
    assert (await client.change("/api/v1/sources/linear-acme/test", {"x": 1})).status == 400


async def test_dead_letters(client: Client) -> None:
    ids = await make_dead(client, 3)
    rows = (await client.get("/api/v1/dead")).json()["dead"]
    assert {row["id"] for row in rows} == set(ids)
    assert (rows[0]["reason"], rows[0]["events"]) == ("not-found", 1)
    assert "secret.example" not in (await client.get("/api/v1/dead")).text
    assert (await client.change("/api/v1/dead/replay", {"ids": ids[:1]})).json() == {"replayed": ids[:1]}
    assert (await client.change("/api/v1/dead/replay", {"ids": [*ids[:1], "unknown"]})).json() == {"replayed": []}
    assert (await client.change("/api/v1/dead/discard", {"source": "linear-acme"})).json()["discarded"]
    assert (await client.get("/api/v1/dead?source=linear-acme")).json() == {"dead": []}
    assert (await client.change("/api/v1/dead/replay", {"all": True})).json() == {"replayed": []}
    trail = await client.gateway.store.audit()
    assert {one["action"] for one in trail} == {"dead-replay", "dead-discard"}


async def test_a_dead_letter_of_no_enrolled_subscription_stays(client: Client) -> None:
    ids = await make_dead(client)
    whole = client.gateway.configuration
    client.gateway.configuration = replace(whole, index=build_index((), whole.sources))
    try:
        assert (await client.change("/api/v1/dead/replay", {"ids": ids})).json() == {"replayed": []}
    finally:
        client.gateway.configuration = whole
    assert (await client.change("/api/v1/dead/replay", {"ids": ids})).json() == {"replayed": ids}


async def test_dead_letters_of_several_sources_are_paged_without_a_gap(client: Client) -> None:
    made = {*await make_dead(client, 3), *await make_dead(client, 3, "github-acme")}
    seen: list[str] = []
    for offset in range(0, 8, 2):
        page = (await client.get(f"/api/v1/dead?limit=2&offset={offset}")).json()["dead"]
        seen += [row["id"] for row in page]
    assert len(seen) == 6
    assert set(seen) == made
    assert {row["source"] for row in (await client.get("/api/v1/dead?source=github-acme")).json()["dead"]} == {
        "github-acme"
    }
    assert (await client.change("/api/v1/dead/replay", {"source": "github-acne"})).status == 404


async def test_asks(client: Client) -> None:
    (ident,) = await make_dead(client, status="asked")
    (row,) = (await client.get("/api/v1/asks")).json()["asks"]
    assert (row["id"], row["source"], row["events"]) == (ident, "linear-acme", 1)
    assert 500 < row["expires_at"] - time.time() <= 600
    assert (await client.change(f"/api/v1/asks/{ident}", {"answer": "maybe"})).status == 400
    assert (await client.change("/api/v1/asks/nothing", {"answer": "yes"})).status == 404
    assert (await client.change(f"/api/v1/asks/{ident}", {"answer": "yes"})).json()["status"] == "answered"
    assert (await client.change(f"/api/v1/asks/{ident}", {"answer": "no"})).status == 409
    assert (await client.get("/api/v1/asks")).json() == {"asks": []}
    trail = await client.gateway.store.audit()
    assert [(one["action"], one["who"], one.get("answer")) for one in trail][-1] == ("answer", "operator/0", "yes")


@pytest.mark.parametrize(
    "path",
    [
        "dead?limit=0",
        "deliveries?limit=0500000",
        "deliveries?limit=0",
        "deliveries?next=x",
        "deliveries?next=1",
        "deliveries?next=%C2%B2-a",
        "deliveries?next=" + "9" * 5000 + "-a",
        "deliveries?outcome=lost",
        "dead?limit=501",
        "dead?limit=x",
        "dead?offset=-1",
        "dead?x=1",
        "sources?x=1",
        "asks?x=1",
        "subscriptions?x=1",
    ],
)
async def test_bad_parameters(client: Client, path: str) -> None:
    assert (await client.get(f"/api/v1/{path}")).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"[" * 9999,
        b'{"ids": []}',
        b'{"ids": [1]}',
        b'{"all": false}',
        b"{}",
        b'{"ids": ["a"], "all": true}',
    ],
)
async def test_bad_bodies(client: Client, body: bytes) -> None:
    headers = {"authorization": "Bearer an-operators-token-of-some-length"}
    assert (await client.call("POST", "/api/v1/dead/replay", body, headers)).status == 400
    assert (await client.call("POST", "/api/v1/dead/replay", b" " * 70_000, headers)).status == 413


async def test_a_store_that_is_away(client: Client, console_valkey: PrivateValkey) -> None:
    console_valkey.kill()
    try:
        for path in READS[:-1]:
            answered = await client.get(path)
            assert (answered.status, int(answered.headers["retry-after"]) > 0) == (503, True), path
        assert "gateway_store_up 0.0" in (await client.get("/metrics")).text
    finally:
        console_valkey.start()


async def test_the_metrics_page_shows_what_came(client: Client) -> None:
    await client.change("/api/v1/sources/github-acme/test", {})
    await client.gateway.watch.flush(client.gateway.store)
    await client.lookout.look(fresh=True)
    text = (await client.get("/metrics")).text
    assert 'gateway_deliveries_total{outcome="forwarded",source="github-acme",worker="0"} 1.0' in text
    assert 'gateway_source_health{source="github-acme",state="flowing"} 1.0' in text
    assert 'gateway_last_good_age_seconds{source="linear-acme"} +Inf' in text
    assert 'gateway_matched_total{source="github-acme",trigger="issue-opened",worker="0"} 1.0' in text


async def test_an_export_is_every_record(client: Client) -> None:
    for _ in range(3):
        await client.change("/api/v1/sources/github-acme/test", {})
    lines: list[Any] = [json.loads(line) async for line in export(client.gateway.store)]
    assert len(lines) == 3
    assert {line["outcome"] for line in lines} == {"forwarded"}
