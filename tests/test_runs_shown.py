"""What commands, API and console say about the run of a dispatch, on a store that a real dispatcher and admissions wrote."""

import asyncio
import html
import inspect
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import admission, oidc
from gateway.app import Gateway
from gateway.configuration import Configuration
from gateway.errors import Rejection, Unavailable
from gateway.keys import Keys
from gateway.store import uuid7
from gateway.subscriptions import Enrolled, load_subscription
from gateway.words import RESUME, about_run
from tests.console.client import Client, write_configuration
from tests.destination_house import EXAMPLES, INSTALLATION, House, enrolled_with, house, receiving
from tests.operating import gateway, write
from tests.valkey import PrivateValkey

OLD, NEW = "on: repository_dispatch\n", "on: repository_dispatch # new\n"


@dataclass
class Stage:
    """A house, and the three places that show what happened in it."""

    home: House
    config: Path
    client: Client

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it wrote."""
        done = await asyncio.to_thread(gateway, self.config, *arguments)
        assert done.exit_code == code, done.output
        return done.output

    async def explained(self, ident: str) -> dict[str, Any]:
        """Return the record as the API gives it, which the command's JSON agrees with."""
        row: dict[str, Any] = (await self.client.get(f"/api/v1/deliveries/{ident}")).json()
        told = json.loads(await self.command("explain", ident, "--json"))
        assert told["dispatches"] == row["dispatches"]
        return row

    async def page(self, ident: str) -> str:
        """Return the console's page of a delivery, its white space as a browser shows it."""
        answered = await self.client.get(f"/deliveries/{ident}")
        assert answered.status == 200
        return " ".join(answered.text.split())

    async def newest(self) -> str:
        """Return the id of the newest record."""
        return str((await self.home.store.deliveries(limit=1)).rows[0]["id"])


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    return write_configuration(tmp_path_factory.mktemp("console"))


def _no_session() -> aiohttp.ClientSession:  # nobody here asks a provider for its keys
    raise AssertionError


@pytest.fixture
async def stage(server: PrivateValkey, configuration: Configuration, tmp_path: Path) -> AsyncIterator[Stage]:
    async with house(server, OLD) as home:
        shown = Gateway(configuration, Keys(configuration.settings, _no_session), home.store)
        made = Stage(home, write(tmp_path, server.url), Client(shown))
        await made.client.log_in()
        yield made


async def test_an_admitted_run_is_named_wherever_its_dispatch_is(stage: Stage) -> None:
    dispatch = await stage.home.dispatch()
    delivery = await stage.newest()
    assert f"> {dispatch} sent\n" in await stage.command("deliveries")
    await stage.home.admit(stage.home.token(run_id="9000000064"), dispatch)
    assert f"> {dispatch} sent, admitted (run 9000000064)\n" in await stage.command("deliveries")
    listed = {"id": dispatch, "status": "sent", "admitted": True, "run": "9000000064"}
    assert json.loads(await stage.command("deliveries", "--json"))["deliveries"][0]["dispatches"] == [listed]
    assert json.loads(await stage.command("deliveries", "--export"))["dispatches"] == [listed]
    (shown,) = (await stage.explained(delivery))["dispatches"]
    assert shown["run"] == "9000000064"
    assert "run 9000000064 admitted 20" in await stage.command("explain", delivery)
    assert '<span class="id">9000000064</span>' in await stage.page(delivery)


async def refused(home: House, dispatch: str, **claims: Any) -> str:
    with pytest.raises((Rejection, Unavailable)) as caught:
        await home.admit(home.token(**claims), dispatch)
    assert isinstance(caught.value, Rejection | Unavailable)
    return caught.value.reason


async def test_the_last_refused_run_is_shown_with_what_to_do_until_one_is_admitted(stage: Stage) -> None:
    home, dispatch = stage.home, await stage.home.dispatch()
    delivery = await stage.newest()
    assert f"dispatch {dispatch}  sent, 1 attempt, no run admitted\n" in await stage.command("explain", delivery)
    assert await refused(home, dispatch, actor_id="7", run_id="9000000064") == "sender"
    home.file("on: push\n", "c" * 40)
    bad = {"workflow_sha": "c" * 40, "job_workflow_sha": None}
    assert await refused(home, dispatch, **bad, run_id="9000000065") == "workflow-hash"
    (shown,) = (await stage.explained(delivery))["dispatches"]
    assert (shown["refused"]["reason"], shown["refused"]["run"]) == ("workflow-hash", "9000000065")
    assert abs(shown["refused"]["at"] - time.time()) < 60
    text = await stage.command("explain", delivery)
    assert "no run admitted; last refused: workflow-hash, run 9000000065, 0 s ago\n" in text.replace("1 s", "0 s")
    assert "    workflow-hash: The run's workflow file is not the enrolled one. Compile and enroll" in text
    page = await stage.page(delivery)
    assert 'last refused: <code>workflow-hash</code>, run <span class="id">9000000065</span>' in page
    assert "Compile and enroll the merged workflow again," in page
    assert "<b>admitted</b> refused" in page
    home.github.double.script(home.one.subscription.repository, {"status": 403}, on="contents")
    assert await refused(home, dispatch, workflow_sha="d" * 40, job_workflow_sha=None) == "contents-unreadable"
    assert "Grant contents: read, or gateway enroll --attested" in await stage.command("explain", delivery)
    await home.admit(home.token(run_id="9000000066"), dispatch)
    assert await refused(home, dispatch, run_id="9000000067") == "taken"
    assert await refused(home, dispatch, run_id="9000000067", ref="refs/heads/x") == "ref"
    (shown,) = (await stage.explained(delivery))["dispatches"]
    assert (shown["run"], shown["refused"]["reason"]) == ("9000000066", "contents-unreadable")
    assert "last refused" not in await stage.command("explain", delivery) + await stage.page(delivery)


def ago(home: House, dispatch: str, seconds: float) -> None:
    """Let GitHub have taken a dispatch so long ago."""
    with home.valkey.client() as client:
        key = f"gw:{{linear-acme}}:dispatch:{dispatch}"
        at = client.hget(key, "settled")
        assert at is not None
        client.hset(key, "settled", str(int(at) - int(seconds * 1000)))


async def test_a_dispatch_that_no_run_asked_for_says_where_to_look_and_why(stage: Stage) -> None:
    home = stage.home
    shipped = load_subscription(
        (EXAMPLES / "linear-issue-created.json").read_bytes(), "test"
    )  # which the two have enrolled
    home.enrolled[shipped.digest] = Enrolled(shipped, "linear-acme", INSTALLATION)
    known, unknown = await home.queue(one=home.enrolled[shipped.digest]), await home.queue()
    await dispatched(home, 2)

    async def shown(delivery: str) -> list[str]:
        page = html.unescape(await stage.page(delivery))
        return [await stage.command("explain", delivery), page]

    async def dispatch_of(delivery: str) -> dict[str, Any]:
        (row,) = (await stage.explained(delivery))["dispatches"]
        return dict(row)

    ago(home, (await dispatch_of(known))["id"], 55)
    assert "No run has asked" not in "".join(await shown(known))  # it may still come
    ago(home, (await dispatch_of(known))["id"], 10)
    for text in await shown(known):
        assert f"No run has asked to be admitted. Look at {shipped.repository}'s Actions page." in text
        assert f"most often on.repository_dispatch.types of the workflow lacks {shipped.event_type}, or" in text
        assert "sender-id is not the bot's user id" in text
    dispatch = await dispatch_of(unknown)
    assert dispatch["subscription"] == home.digest
    ago(home, dispatch["id"], 61)
    for text in await shown(unknown):  # as after a revoke
        assert "Look at the repository's Actions page." in text
        assert "lacks the document's event_type, or" in text
    assert await refused(home, dispatch["id"], actor_id="7") == "sender"
    assert "No run has asked" not in "".join(await shown(unknown))
    await home.admit(home.token(run_id="9000000064"), dispatch["id"])
    assert "No run has asked" not in "".join(await shown(unknown))


async def test_neither_strangers_nor_other_subscriptions_leave_a_refusal(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    home, dispatch = stage.home, await stage.home.dispatch()
    other = enrolled_with(OLD, {"connector": "linear-other"})
    home.enrolled[other.subscription.digest] = other
    assert await refused(home, dispatch, repository_id="5") == "repository"
    assert await refused(home, dispatch, repository_id=None) == "repository"
    with pytest.raises(Rejection, match="unknown-dispatch"):
        await home.admit(home.token(), dispatch, other.subscription.digest)
    with pytest.raises(Rejection, match="unknown-dispatch"):
        await home.admit(home.token(), dispatch.upper())
    await home.store.suspend(home.digest, "workflow-superseded")
    assert await refused(home, "\ud800", aud="x") == "audience"  # no id at all, and nothing to look for
    assert "follow-up" not in caplog.text
    await home.store.resume(home.digest)
    calls = script_calls(home)
    forged = home.token(actor_id="7").rpartition(".")[0] + "." + "A" * 342
    with pytest.raises(Rejection, match="token"):
        await home.admit(forged, dispatch)
    assert script_calls(home) == calls
    known = await home.store.dispatch(dispatch)
    assert known is not None
    assert known.refused is None


def script_calls(home: House) -> int:
    """Count the reads and scripts that the server was sent."""
    with home.valkey.client() as client:
        stats = client.info("commandstats")
        return sum(
            stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "hgetall", "evalsha", "eval")
        )


async def test_a_refusal_that_cannot_be_kept_changes_no_answer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    home, dispatch = stage.home, await stage.home.dispatch()
    home.valkey.kill()
    try:
        assert await refused(home, dispatch, actor_id="7") == "sender"
    finally:
        home.valkey.start()
    assert "follow-up-failed" in caplog.text


async def test_a_refusal_is_one_line_of_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    home, dispatch = stage.home, await stage.home.dispatch()
    body = json.dumps({"dispatch": dispatch, "subscription": home.digest}).encode()
    caplog.clear()
    async with receiving(home) as address, aiohttp.ClientSession() as session:
        for token in (home.token(actor_id="7", run_id="9000000065"), "no-token"):
            async with session.post(
                f"{address}/admission", data=body, headers={"authorization": f"Bearer {token}"}
            ) as got:
                assert got.status in {401, 403}
        await home.admission.settle()
    lines = [getattr(one, "fields", {}) for one in caplog.records if "refused" in one.message]
    known = {"dispatch": dispatch, "subscription": home.digest, "run": "9000000065"}
    assert lines == [{"status": 403, "reason": "sender", **known}, {"status": 401, "reason": "token"}]


def test_every_refusal_of_a_proven_run_has_words() -> None:
    judging = inspect.getsource(oidc.check_run) + inspect.getsource(oidc.check_workflow)
    judging += inspect.getsource(admission.Admission).partition("async def _judge")[2]
    found = set(re.findall(r'(?:Rejection|Unavailable)\("([a-z-]+)"', judging))
    found |= {one.reason for one in admission.REFUSALS.values()}
    assert {"audience", "github-timeout", "expired"} <= found
    found -= {"taken", "repository-id-unknown"}  # never kept
    assert {reason for reason in found if not about_run(reason)} == set()


async def dispatched(home: House, number: int) -> list[str]:
    """Run a dispatcher until GitHub took so many dispatches in all; return their ids."""
    end = time.monotonic() + 10
    async with home.dispatching():
        while len(home.github.double.dispatches) < number:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
    return [one["body"]["client_payload"]["gateway"]["dispatch"] for one in home.github.double.dispatches]


async def test_a_dispatchs_id_leads_to_its_deliveries(stage: Stage) -> None:
    home = stage.home
    ids = [await home.queue(f"https://linear.app/acme/issue/ENG-{number}") for number in range(23)]
    first, second = await dispatched(home, 2)
    text = await stage.command("explain", first)
    assert text.startswith(
        f"dispatch {first} is of deliveries {', '.join(ids[:20])}; this is {ids[0]}\nlinear-acme forwarded\n"
    )
    assert f"dispatch {first}  sent, 1 attempt" in text
    told = json.loads(await stage.command("explain", second, "--json"))
    assert (told["id"], told["dispatch"]) == (ids[20], {"id": second, "deliveries": ids[20:]})
    row = await stage.explained(second)
    assert (row["id"], row["dispatch"]) == (told["id"], told["dispatch"])
    assert "dispatch" not in await stage.explained(ids[0])
    page = await stage.page(second)
    assert f'is of 3 deliveries; this is one of them: <a class="id" href="/deliveries/{ids[20]}">' in page
    assert (await stage.client.get(f"/deliveries?id={second}")).headers["location"] == f"/deliveries/{second}"
    assert f"is a dispatch: replay one of its deliveries, deliveries {ids[20]}, " in await stage.command(
        "replay", second, code=1
    )
    with home.valkey.client() as client:  # trimmed: a busy source's records are gone before a dispatch is
        client.hdel("gw:{linear-acme}:rec:admitted", ids[20], *ids[:20])
    assert (await stage.explained(second))["id"] == ids[21]
    gone = await stage.command("explain", first, code=1)
    assert f"dispatch {first} is sent; no record is left of deliveries {ids[0]}, " in gone
    assert (await stage.client.get(f"/deliveries/{first}")).status == 404
    assert (await stage.client.get(f"/api/v1/deliveries/{first}")).status == 404
    assert "no record has the id" in await stage.command("explain", uuid7(), code=1)


@pytest.mark.parametrize("sent", [False, True], ids=["queued before the switch", "sent to a run of the new workflow"])
async def test_a_rollover_leads_from_the_old_dispatch_to_the_new_one_and_back(stage: Stage, *, sent: bool) -> None:
    home, new = stage.home, enrolled_with(NEW)
    dispatch = await home.dispatch() if sent else ""
    delivery = await stage.newest() if sent else await home.queue()
    home.enrolled[new.subscription.digest] = new
    await home.reconciler.run([new.subscription.digest], enrolling=True)
    home.file(NEW)
    run = {"aud": f"gh-aw-gateway:{new.subscription.workflow_hash}"}
    if sent:
        assert await refused(home, dispatch, **run) == "audience"
        told = await stage.command("explain", delivery)
        assert f"carried over, not sealed yet; see: gateway explain {dispatch}\n" in told
    else:
        await home.reconciler.run()
    after = (await dispatched(home, 2 if sent else 1))[-1]
    old = await stage.explained(delivery)
    (shown,) = old["dispatches"]
    assert shown["carried"] == [after]
    assert dispatch in {"", shown["id"]}
    told = await stage.command("explain", delivery)
    assert f"    carried over as {after}; see: gateway explain {shown['id']}\n" in told
    page = await stage.page(delivery)
    assert f'carried over as <a class="id" href="/deliveries/{shown["id"]}">{after}</a>' in page
    assert "<b>admitted</b> carried over" in page
    assert "Compile and enroll" not in told + page  # it was done
    row = await stage.explained(shown["id"])
    assert row["carried_from"] == {"subscription": home.digest, "deliveries": [delivery]}
    assert [one["id"] for one in row["dispatches"]] == [after]
    told = await stage.command("explain", shown["id"])
    assert f"from dispatch {shown['id']} of delivery {delivery}\n" in told
    assert "forwarded: rollover\n    Carried over from a dispatch" in told
    page = await stage.page(shown["id"])
    assert f'<dt>From</dt><dd>dispatch <span class="id">{shown["id"]}</span>' in page
    assert f'<a class="id" href="/deliveries/{delivery}">' in page
    assert (await stage.explained(after))["id"] == shown["id"]


async def test_an_ignored_delivery_names_the_suspension_and_that_only_the_provider_sends_it_again(stage: Stage) -> None:
    store, digest = stage.home.store, stage.home.digest
    await store.suspend(digest, "opt-in-revoked")
    considered = {"digest": digest, "trigger": "issue-created", "matched": False, "test": "suspended", "pointer": None}
    other = {**considered, "digest": "sha256:" + "0" * 64, "test": "grant", "pointer": "/a"}
    row = {"id": uuid7(), "source": "linear-acme", "received_at": time.time(), "outcome": "ignored"}
    await store.record("linear-acme", json.dumps(row | {"reason": "suspended", "subscriptions": [considered, other]}))
    await store.flush()
    for reason, word in (
        (
            "opt-in-revoked",
            f"still suspended: opt-in-revoked. The repository took its consent back. {RESUME['opt-in-revoked']}",
        ),
        (None, "it is active again"),
    ):
        text = await stage.command("explain", str(row["id"]))
        assert f"not true: suspended (the subscription was suspended); {word}\n" in text
        assert "it cannot be replayed from here: have the provider send it again.\n" in text
        page = await stage.page(str(row["id"]))
        assert f"the subscription was suspended; {word}</span>" in page
        assert "it cannot be replayed from here: have the provider send it again." in page
        told = await stage.explained(str(row["id"]))
        assert told["subscriptions"] == [considered | {"suspended": reason}, other]
        assert (
            json.loads(await stage.command("explain", str(row["id"]), "--json"))["explanations"]
            == told["subscriptions"]
        )
        await store.resume(digest)
    delivery = await stage.home.queue()
    assert "have the provider" not in await stage.command("explain", delivery) + await stage.page(delivery)


async def test_what_a_suspension_holds_or_keeps_a_run_out_of_names_it(stage: Stage) -> None:
    home, dispatch = stage.home, await stage.home.dispatch()
    sent = await stage.newest()
    await home.store.suspend(home.digest, "opt-in-revoked")
    assert await refused(home, dispatch) == "suspended"
    held = await home.queue()
    (batch,) = await home.store.seal("linear-acme", time.time() + 1, 30, 1)
    await home.store.release(batch, time.time() + 60, held_s=60, reason="suspended")
    for reason, told in (("opt-in-revoked", "still suspended: opt-in-revoked. The repo"), (None, "it is active again")):
        for delivery in (sent, held):
            (shown,) = (await stage.explained(delivery))["dispatches"]
            assert shown["suspended"] == reason
            assert f"    {told}" in await stage.command("explain", delivery)
            assert told in await stage.page(delivery)
        await home.store.resume(home.digest)
    await home.admit(home.token(), dispatch)
    assert "suspended" not in (await stage.explained(sent))["dispatches"][0]
