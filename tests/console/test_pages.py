"""The pages without a browser: what they say in each state, and that nothing of a delivery is in them."""

import dataclasses
import json
import re
import time
from pathlib import Path

import pytest

from gateway import console, words
from gateway.console.picture import COLUMNS, draw
from gateway.health import Row
from gateway.reconcile import CHANGED, MISSING, OPT_IN
from gateway.samples import load_samples
from gateway.store import BUCKETS, REVOKED, Flow, records, uuid7
from gateway.structs import replace
from gateway.suspension import PENDING, SUPERSEDED
from tests.console.client import Client
from tests.console.reasons import rejections
from tests.console.test_api import make_dead
from tests.valkey import PrivateValkey


async def test_an_empty_first_start(client: Client) -> None:
    await client.log_in()
    text = (await client.get("/")).text
    assert "Nothing has arrived yet." in text
    assert "Nothing in the last 24 hours." in text
    assert "never" in text
    assert "No delivery yet." in (await client.get("/deliveries")).text
    assert "None." in (await client.get("/dead")).text
    assert "Nobody waits" in (await client.get("/asks")).text


async def test_a_test_event_and_its_explanation(client: Client) -> None:
    csrf = await client.log_in()
    answered = await client.form("/sources/linear-acme/test", {"csrf": csrf})
    assert answered.status == 303
    text = (await client.get(answered.headers["location"])).text
    assert "forwarded" in text
    assert "acme/app" in text
    text = (await client.get("/")).text
    assert f"Events flow; {len(client.gateway.configuration.sources) - 1} without a delivery yet." in text
    assert 'class="bar-forwarded"' in text
    assert (await client.form("/sources/confluence-acme/test", {"csrf": csrf})).status == 404
    assert "only the provider has the key" in (await client.get("/sources/confluence-acme")).text


async def test_no_value_of_a_body_is_on_any_page(client: Client) -> None:
    """Every text of the samples' bodies that the configuration does not hold too."""
    csrf = await client.log_in()
    pages = ["/", "/deliveries", "/subscriptions", "/dead", "/asks"]
    for source in client.gateway.configuration.sources:
        answered = await client.form(f"/sources/{source}/test", {"csrf": csrf})
        pages += [f"/sources/{source}", answered.headers.get("location", "/")]
    await make_dead(client)
    bare = Client(client.gateway, cookies=client.cookies)
    told = " ".join([(await bare.get(page)).text for page in pages])
    planted = {text for sample in load_samples() for text in texts(sample["body"]) if len(text) > 5}
    own = Path(console.__file__).parent.rglob("*.html")
    ours = "".join(path.read_text() for path in own)
    ours += client.gateway.configuration.file.read_text() + "".join(
        repr(one.subscription.document) for one in client.gateway.configuration.enrolled
    )
    found = {text for text in planted if text in told and text not in ours and not text.startswith("$")}
    assert found == set()
    assert "secret.example" not in told


def texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


async def test_a_refusal_is_explained(client: Client) -> None:
    await client.log_in()
    for _ in range(3):
        answered = await client.call("POST", "/hooks/linear-acme", b"{}", {"linear-signature": "00" * 32}, public=True)
        assert answered.status == 401
    await client.gateway.store.flush()
    await client.gateway.watch.flush(client.gateway.store)
    await client.lookout.look(fresh=True)
    text = (await client.get(f"/deliveries/{answered.headers['gateway-delivery']}")).text
    assert "Compare the secret with the provider" in text
    assert re.search(r'class="stopped"><b>proven</b>', text)
    assert re.search(r'class="rest"><b>matched</b> not reached', text)
    assert "Needs a look: 1 failing." in (await client.get("/")).text
    assert "3 refused in the last hour" in (await client.get("/sources/linear-acme")).text
    filtered = (await client.get("/deliveries?outcome=rejected&source=linear-acme")).text
    assert filtered.count('href="/deliveries/0') == 3


async def test_the_refused_items_of_a_batch_are_named(client: Client) -> None:
    csrf = await client.log_in()
    answered = await client.form("/sources/teams-acme/test", {"csrf": csrf})
    ident = answered.headers["location"].rpartition("/")[2]
    record = {"id": uuid7(), "source": "teams-acme", "received_at": time.time(), "outcome": "rejected"}
    record |= {"reason": "client-state", "subscriptions": [], "items": [{"index": 3, "reason": "client-state"}]}
    await client.gateway.store.record("teams-acme", json.dumps(record))
    await client.gateway.store.flush()
    text = (await client.get(f"/deliveries/{record['id']}")).text
    assert "Item 3:" in text
    assert "is not one of the source" in text
    assert "Refused items" not in (await client.get(f"/deliveries/{ident}")).text


async def test_what_waits_is_named(client: Client) -> None:
    await client.log_in()
    await make_dead(client, status="asked")
    await client.gateway.store.park(7, time.time() + 300, "rate-limited")
    digest = client.gateway.configuration.enrolled[0].subscription.digest
    await client.gateway.store.suspend(digest, "workflow-hash")
    await client.lookout.look(fresh=True)
    text = (await client.get("/")).text
    assert "An operator is asked first." in text
    assert "Installation 7: for 4 min more" in text
    assert "The default branch has another workflow file" in text
    assert "suspended" in (await client.get("/subscriptions")).text


async def test_asks_are_answered_once(client: Client) -> None:
    csrf = await client.log_in()
    (ident,) = await make_dead(client, status="asked")
    text = (await client.get("/asks")).text
    assert f"Yes, dispatch {ident}" in text
    assert "secret.example" not in text
    assert (await client.form("/asks", {"csrf": csrf, "id": ident, "answer": "maybe"})).status == 400
    assert (await client.form("/asks", {"id": ident, "answer": "yes"})).status == 403
    assert (await client.form("/asks", {"csrf": csrf, "id": "nothing", "answer": "yes"})).status == 404
    assert (await client.form("/asks", {"csrf": csrf, "id": ident, "answer": "no"})).status == 303
    assert (await client.form("/asks", {"csrf": csrf, "id": ident, "answer": "yes"})).status == 409
    assert "Nobody waits" in (await client.get("/asks")).text


async def test_dead_letters_are_replayed_and_discarded(client: Client) -> None:
    csrf = await client.log_in()
    ids = await make_dead(client, 3)
    text = (await client.get("/dead")).text
    assert "GitHub knows no such repository" in text
    for fields, status in (({"act": "shred", "id": "x"}, 400), ({"act": "replay"}, 400)):
        assert (await client.form("/dead", {"csrf": csrf, **fields})).status == status
    assert (await client.form("/dead", {"csrf": csrf, "act": "replay", "source": "nobody"})).status == 404
    assert (await client.form("/dead", {"csrf": csrf, "act": "discard", "id": ids[:1]})).status == 303
    assert ids[0] not in (await client.get("/dead")).text
    await client.form("/dead", {"csrf": csrf, "act": "replay", "source": "linear-acme"})
    assert "None." in (await client.get("/dead")).text


async def test_what_a_removed_source_left_is_seen_and_can_be_settled(client: Client) -> None:
    csrf = await client.log_in()
    made = await make_dead(client, 2)
    without = replace(client.gateway.configuration, sources={}, enrolled=())
    here = Client(dataclasses.replace(client.gateway, configuration=without), cookies=dict(client.cookies))
    assert "1 removed, 2 dead letters" in (await here.get("/")).text
    assert made[0] in (await here.get("/dead")).text
    [row] = (await here.get("/api/v1/sources")).json()["sources"]
    assert (row["name"], row["health"], row["dead"]) == ("linear-acme", "removed", 2)
    assert 'gateway_source_health{source="linear-acme",state="removed"} 1.0' in (await here.get("/metrics")).text
    await here.form("/dead", {"source": "linear-acme", "act": "discard", "csrf": csrf})
    await here.lookout.look(fresh=True)
    assert (await here.get("/api/v1/sources")).json()["sources"] == []
    assert "No source is configured." in (await here.get("/")).text


async def test_a_rare_outcome_among_many_is_searched_further_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SCAN", 2)
    csrf = await client.log_in()
    for _ in range(3):
        await client.form("/sources/linear-acme/test", {"csrf": csrf})
    text = (await client.get("/deliveries?outcome=ignored")).text
    further = text.partition('href="/deliveries?')[2].partition('"')[0].replace("&amp;", "&")
    assert "Look further back" in text
    assert "No delivery fits." in (await client.get(f"/deliveries?{further}")).text


async def test_the_headline_names_all_that_needs_somebody(client: Client) -> None:
    await client.log_in()
    store, (one, *_) = client.gateway.store, client.gateway.configuration.enrolled
    await store.suspend(one.subscription.digest, "workflow-hash")
    await store.park(7, time.time() + 60, "rate-limited")
    await make_dead(client, 1)
    text = (await client.get("/")).text
    assert "Needs a look: 1 dead letter, 1 subscription not active, 1 installation parked." in text


async def test_pages_that_are_not_there(client: Client) -> None:
    await client.log_in()
    for path in (
        "/nowhere",
        "/deliveries/01a22b75-da79-7c15-aae9-7840ae8ac0e6",
        "/deliveries/x",
        "/sources/nobody",
        "/deliveries?id=x",
    ):
        answered = await client.get(path)
        assert (answered.status, "Not found" in answered.text) == (404, True), path
    assert (await client.get("/deliveries?outcome=lost")).status == 400
    assert (await client.get("/deliveries?next=x")).status == 400
    found = await client.get("/deliveries?id=01a22b75-da79-7c15-aae9-7840ae8ac0e6")
    assert found.headers["location"] == "/deliveries/01a22b75-da79-7c15-aae9-7840ae8ac0e6"
    shown = await client.get("/deliveries?source=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in shown.text


async def test_a_store_that_is_away_is_said(client: Client, console_valkey: PrivateValkey) -> None:
    await client.log_in()
    await client.lookout.look(fresh=True)
    console_valkey.kill()
    try:
        await client.lookout.look(fresh=True)
        assert "The store does not answer" in (await client.get("/")).text
        for path in ("/deliveries", "/subscriptions", "/dead", "/asks", "/sources/linear-acme"):
            assert (await client.get(path)).status == 503, path
    finally:
        console_valkey.start()


def test_the_picture() -> None:
    assert draw([]).empty
    flow = Flow({"forwarded": (0,) * (BUCKETS - 1) + (999,), "rejected": (1,) + (0,) * (BUCKETS - 2) + (1,)}, {})
    picture = draw([flow, flow])
    assert len(picture.columns) == COLUMNS
    assert picture.top == 2000
    assert (picture.columns[0].total, picture.columns[-1].total) == (2, 2000)
    heights = [bar.height for column in picture.columns for bar in column.bars]
    assert min(heights) >= 1.5
    for column in picture.columns:
        assert sum(bar.height for bar in column.bars) <= picture.height


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "never"), (0, "0 s"), (-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (3600, "1 h"), (172_800, "2 d")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert words.age(seconds) == text


def test_every_reason_of_the_code_has_words() -> None:
    assert rejections() - words.REASONS.keys() == set()


def test_every_suspension_has_a_way_on() -> None:
    reasons = {CHANGED, MISSING, OPT_IN, PENDING, SUPERSEDED, REVOKED}
    reasons |= {"repository-moved", "repository-gone", "repository-replaced"}
    assert reasons == words.RESUME.keys()
    assert reasons - words.SETTLED.keys() == set()


async def test_subscriptions_that_are_not_active_come_first_and_a_reload_hides_none(client: Client) -> None:
    await client.log_in()
    enrolled = client.gateway.configuration.enrolled
    await client.gateway.store.suspend(enrolled[-1].subscription.digest, "workflow-hash")
    await client.lookout.look(fresh=True)
    text = (await client.get("/subscriptions")).text
    assert text.index(enrolled[-1].subscription.digest) < text.index(enrolled[0].subscription.digest)
    assert words.RESUME["workflow-hash"] in text
    for query in ("?state=suspended", f"?q={enrolled[-1].subscription.digest[7:19]}", f"?source={enrolled[-1].source}"):
        found = (await client.get(f"/subscriptions{query}")).text
        assert enrolled[-1].subscription.digest in found
        assert enrolled[0].subscription.digest not in found
    for start in ("x", "-1", "%C2%B2", "9" * 30, "9999999"):
        assert (await client.get(f"/subscriptions?from={start}")).status == 200
    # enrolled since the last look: it has no row yet
    seen = client.lookout._last
    assert seen is not None
    client.lookout._last = replace(seen, subscriptions=seen.subscriptions[1:], at=time.time())
    assert (await client.get("/subscriptions")).status == 200


async def test_the_overview_stays_short_however_many_are_suspended(client: Client) -> None:
    await client.log_in()
    one = client.gateway.configuration.enrolled[0]
    row = Row(one.subscription.digest, one.source, one.subscription.repository, "suspended", "repository-gone")
    seen = await client.lookout.look(fresh=True)
    client.lookout._last = replace(seen, subscriptions=(row,) * 1_000, at=time.time())
    text = (await client.get("/")).text
    assert "All 1000 that are not active" in text
    assert text.count("repository-gone") == 20
