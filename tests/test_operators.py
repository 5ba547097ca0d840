"""Operators' commands on a real store: dead letters, replays, questions and the trail of all of it."""

import asyncio
import contextlib
import json
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import answers, app, asks, audit, dispatcher, letters, reload, settling
from gateway.configuration import load_configuration
from gateway.environment import data_folder
from gateway.keys import Keys
from gateway.store import Store, uuid7
from gateway.subscriptions import seal
from tests.operating import APP_ID, LINEAR, admit, gateway, stored, write
from tests.valkey import PrivateValkey


@pytest.fixture
def config(server: PrivateValkey, tmp_path: Path) -> Path:
    with server.client() as client:
        client.flushall()
    return write(tmp_path, server.url)


def dead_letter(server: PrivateValkey, config: Path, number: int = 1) -> str:
    async def work(store: Store) -> str:
        await admit(store, load_configuration(config), number)
        (batch,) = await store.seal("linear-acme", time.time(), 60, 1)
        await store.dead(batch, "not-found", time.time())
        return batch.dispatch

    return stored(server, work)


@contextmanager
def losing_one_answer(server: PrivateValkey, marked: bytes) -> Iterator[tuple[str, threading.Event]]:
    """A store address whose connection breaks once: when the server has answered a call that holds `marked`."""
    lost = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(str(server.socket))
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(1_000_000)
                    if not data:
                        return
                    if ready is far and marks and not lost.is_set():
                        lost.set()
                        return
                    if ready is near and marked in data.replace(b"\\", b""):
                        marks.append(data)
                    (far if ready is near else near).sendall(data)

    marks: list[bytes] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0", lost
    finally:
        listener.close()


def actions(config: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gateway(config, "audit", "--json").stdout)["actions"]
    return found


def test_dead_letters_are_listed_shown_and_replayed_under_their_own_id(server: PrivateValkey, config: Path) -> None:
    ident = dead_letter(server, config)
    (row,) = json.loads(gateway(config, "dead", "list", "--json").stdout)["dead"]
    assert (row["id"], row["reason"], row["source"], row["events"]) == (ident, "not-found", "linear-acme", 1)
    shown = json.loads(gateway(config, "dead", "show", ident, "--json").stdout)["dead"][0]
    assert shown["urls"] == ["https://linear.app/acme/issue/A-1"]
    assert ident in gateway(config, "dead", "list").stdout
    assert "urls" in gateway(config, "dead", "show", ident).stdout
    again = gateway(config, "dead", "replay", ident, "--json", environment={"GATEWAY_OPERATOR": "kim"})
    assert (again.exit_code, json.loads(again.stdout)) == (0, {"dead": [ident], "missing": [], "kept": []})
    (batch,) = stored(server, lambda store: store.seal("linear-acme", time.time() + 1, 60, 1))
    assert batch.dispatch == ident
    (action,) = actions(config)
    assert action["who"].startswith("kim@")
    assert (action["action"], action["dispatches"]) == ("dead-replay", [ident])
    assert gateway(config, "dead", "replay", ident).exit_code == 1
    assert gateway(config, "dead", "discard", ident).exit_code == 1
    assert gateway(config, "dead", "show", ident).exit_code == 1
    assert actions(config) == [action]  # what did nothing is not told as done


def test_a_letter_of_no_enrolled_subscription_stays(server: PrivateValkey, config: Path) -> None:
    ident = dead_letter(server, config)
    config.write_text(config.read_text().partition("[[enrollments]]")[0])
    for which in ((ident,), ("--all",)):
        done = gateway(config, "dead", "replay", *which, "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (1, {"dead": [], "missing": [], "kept": [ident]})
    assert "enroll them first" in gateway(config, "dead", "replay", ident).stderr
    assert stored(server, lambda store: store.depth("linear-acme")).dead == 1


def test_dead_letters_of_a_source_are_discarded_at_once(server: PrivateValkey, config: Path) -> None:
    idents = {dead_letter(server, config, number) for number in range(3)}
    assert gateway(config, "dead", "discard").exit_code == 2
    done = gateway(config, "dead", "discard", "--source", "linear-acme", "--json")
    assert set(json.loads(done.stdout)["dead"]) == idents
    assert json.loads(gateway(config, "dead", "list", "--json").stdout) == {"dead": []}
    assert gateway(config, "dead", "replay", "--all").output.startswith("0 queued again")


def test_dead_letters_are_chosen_by_reason_subscription_and_time(server: PrivateValkey, config: Path) -> None:
    configuration, now = load_configuration(config), time.time()
    ages = {"forbidden": 3 * 86_400, "revoked": 3_600, "http-451": 60}

    async def work(store: Store) -> dict[str, str]:
        found = {}
        for number, (reason, age) in enumerate(ages.items()):
            await admit(store, configuration, number)
            (batch,) = await store.seal("linear-acme", time.time(), 60, 1)
            assert await store.started(batch, now - age - 5)
            await store.dead(batch, reason, now - age)
            found[reason] = batch.dispatch
        return found

    idents = stored(server, work)
    reasons = {ident: reason for reason, ident in idents.items()}

    def listed(*options: str) -> set[str]:
        rows = json.loads(gateway(config, "dead", "list", "--json", *options).stdout)["dead"]
        return {reasons[row["id"]] for row in rows}

    assert listed() == {"forbidden", "revoked", "http-451"}
    assert listed("--reason", "revoked") == {"revoked"}
    assert listed("--since", "1d") == {"revoked", "http-451"}
    assert listed("--since", "1d", "--until", "30m") == {"revoked"}
    assert listed("--until", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 86_400))) == {"forbidden"}
    assert listed("--subscription", LINEAR["digest"][:19]) == {"forbidden", "revoked", "http-451"}
    assert listed("--subscription", "sha256:0000") == set()
    assert listed("--source", "other") == set()
    (revoked,) = json.loads(gateway(config, "dead", "show", idents["revoked"], "--json").stdout)["dead"]
    (fault,) = json.loads(gateway(config, "dead", "show", idents["forbidden"], "--json").stdout)["dead"]
    assert (revoked["cause"], fault["cause"]) == ("operator", "destination")
    assert "enroll it again" in revoked["fix"]
    assert "contents: write" in fault["fix"]
    assert fault["first_attempt_at"] == fault["last_attempt_at"] < fault["settled_at"]
    assert fault["attempts"] == 1
    wrong = gateway(config, "dead", "list", "--since", "yesterday")
    assert (wrong.exit_code, "90m" in wrong.stderr) == (2, True)
    both = gateway(config, "dead", "replay", "--all", "--reason", "revoked")
    assert both.exit_code == 2
    done = gateway(config, "dead", "replay", "--reason", "http-451", "--since", "1h", "--json")
    assert json.loads(done.stdout)["dead"] == [idents["http-451"]]
    done = gateway(config, "dead", "discard", "--until", "2d", "--json")
    assert json.loads(done.stdout)["dead"] == [idents["forbidden"]]
    assert listed() == {"revoked"}


def test_many_letters_are_replayed_once_by_two_commands_at_once(server: PrivateValkey, config: Path) -> None:
    """More than one page and chunk, while a dispatcher sends them and some of them die again."""
    one = stored(server, lambda store: admit(store, load_configuration(config)))
    first = stored(server, lambda store: store.seal("linear-acme", time.time(), 60, 1))[0]
    stored(server, lambda store: store.dead(first, "forbidden", time.time()))
    idents = {first.dispatch}
    with server.client() as client:  # 250 more of the same, each under an id and in a lane of its own
        start, pipe = "gw:{linear-acme}:", client.pipeline(transaction=False)
        row, digest = client.hgetall(f"{start}dispatch:{first.dispatch}"), one.lane.partition(":issue")[0]
        for number in range(250):
            ident = f"0000{number:04d}-0000-7000-8000-000000000000"
            idents.add(ident)
            pipe.hset(f"{start}dispatch:{ident}", mapping={**row, "lane": f"{digest}:t{number}"})
            pipe.zadd(f"{start}dead", {ident: time.time() * 1000})
            pipe.set(f"gw:dispatch:{ident}", "linear-acme")
        pipe.execute()
    command = [sys.executable, "-m", "gateway", "dead", "replay", "--reason", "forbidden", "--config", str(config)]
    both = [subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) for _ in range(2)]

    async def send(store: Store) -> list[str]:
        sent = []
        while not all(one.poll() is not None for one in both) or (await store.depth("linear-acme")).sealed:
            for batch in await store.seal("linear-acme", time.time() + 1, 60, 16):
                assert await store.done(batch, time.time())
                sent.append(batch.dispatch)
        return sent

    sent = stored(server, send)
    replayed = [json.loads(one.communicate()[0])["dead"] for one in both]
    assert sorted(replayed[0] + replayed[1]) == sorted(idents)
    assert sorted(sent) == sorted(idents)
    told = actions(config)
    void = [ident for one in told if "void" in one for ident in one["dispatches"]]
    assert sorted([i for one in told if "void" not in one for i in one["dispatches"]]) == sorted([*idents, *void])


@pytest.mark.parametrize("first", [letters.REPLAY, letters.DISCARD])
@pytest.mark.parametrize("second", [letters.REPLAY, letters.DISCARD])
def test_an_operator_who_was_overtaken_is_not_told_as_the_one_who_did_it(
    server: PrivateValkey, config: Path, first: letters.Action, second: letters.Action
) -> None:
    """Both saw two letters; one of them goes to the first."""
    both = [dead_letter(server, config, number) for number in range(2)]

    async def race(store: Store) -> tuple[list[str], list[str]]:
        one = await letters.settle(store, first, "kim", "linear-acme", both[:1])
        return one, await letters.settle(store, second, "lee", "linear-acme", both)

    assert stored(server, race) == (both[:1], both[1:])
    told = [(one["who"], one["dispatches"], one.get("void")) for one in actions(config)]
    assert told == [("lee", both[:1], "no-dead-letter"), ("lee", both, None), ("kim", both[:1], None)]


def test_every_reason_of_a_dead_letter_says_what_to_do() -> None:
    source = Path(dispatcher.__file__).read_text() + Path(settling.__file__).read_text()
    reasons = {*re.findall(r'\.dead\(turn, "([a-z-]+)"', source), *answers.DEAD.values()}
    assert len(reasons) > 6
    assert reasons <= letters.ABOUT.keys()
    assert letters.about("http-418").cause == "github"


def test_a_replay_is_a_new_dispatch_of_the_projected_event(server: PrivateValkey, config: Path) -> None:
    queued = stored(server, lambda store: admit(store, load_configuration(config)))
    first = stored(server, lambda store: store.seal("linear-acme", time.time(), 60, 1))[0]
    stored(server, lambda store: store.done(first, time.time()))
    done = gateway(config, "replay", queued.delivery, "--json")
    assert done.exit_code == 0, done.output
    new = json.loads(done.stdout)["deliveries"][0]
    second = stored(server, lambda store: store.seal("linear-acme", time.time() + 1, 60, 1))[0]
    assert second.dispatch != first.dispatch
    assert (second.events, second.deliveries) == (first.events, (new["id"],))
    record = stored(server, lambda store: store.delivery(new["id"]))
    assert record is not None
    assert (record["outcome"], record["reason"], record["first"]) == ("forwarded", "replay", queued.delivery)
    assert actions(config)[0]["replayed_as"] == new["id"]


def test_a_replay_whose_answer_is_lost_is_queued_once(server: PrivateValkey, config: Path) -> None:
    """The connection breaks after the server has queued it; the call is repeated."""
    queued = stored(server, lambda store: admit(store, load_configuration(config)))
    first = stored(server, lambda store: store.seal("linear-acme", time.time(), 60, 1))[0]
    stored(server, lambda store: store.done(first, time.time()))
    with losing_one_answer(server, b'"reason":"replay"') as (url, lost):
        config.write_text(config.read_text().replace(server.url, url))
        done = gateway(config, "replay", queued.delivery, "--json")
    assert done.exit_code == 0, done.output
    assert lost.is_set()
    depth = stored(server, lambda store: store.depth("linear-acme"))
    assert (depth.waiting, depth.sealed) == (1, 0)


def test_what_cannot_be_replayed_says_why(server: PrivateValkey, config: Path) -> None:
    unknown = gateway(config, "replay", "nothing")
    assert (unknown.exit_code, "unknown" in unknown.stderr) == (1, True)
    queued = stored(server, lambda store: admit(store, load_configuration(config)))
    config.write_text(config.read_text().partition("[[enrollments]]")[0])
    revoked = gateway(config, "replay", queued.delivery)
    assert (revoked.exit_code, "no longer enrolled" in revoked.stderr) == (1, True)


def test_a_replay_goes_where_its_subscription_stands_now(server: PrivateValkey, config: Path) -> None:
    old, folder = LINEAR["digest"], config.parent / "enrolled"
    folder.mkdir()
    newer = {name: value for name, value in LINEAR.items() if name != "digest"} | {
        "workflow_hash": "sha256:" + "1" * 64
    }
    for number, document in enumerate(
        (LINEAR, new := seal(newer), seal({**newer, "grants": {**LINEAR["grants"], "teams": ["x"]}}))
    ):
        (folder / f"{number}.json").write_text(json.dumps(document))
    text = re.sub(r'path = ".*"', f'path = "{folder}"', config.read_text())
    entry = text[text.index("[[enrollments]]") :]
    queued = stored(server, lambda store: admit(store, load_configuration(config)))
    (batch,) = stored(server, lambda store: store.seal("linear-acme", time.time(), 60, 1))
    stored(server, lambda store: store.done(batch, time.time()))
    config.write_text(text)
    stored(server, lambda store: store.suspend(old, "workflow-hash"))
    waits = gateway(config, "replay", queued.delivery)
    assert (waits.exit_code, "suspended (workflow-hash)" in waits.stderr) == (1, True)
    stored(server, lambda store: store.suspend(old, "workflow-superseded"))
    narrower = json.loads((folder / "2.json").read_bytes())["digest"]
    config.write_text(text + entry.replace(old, narrower))
    refused = gateway(config, "replay", queued.delivery)
    assert (refused.exit_code, "does not grant it" in refused.stderr) == (1, True)
    config.write_text(text + entry.replace(old, new["digest"]))
    done = gateway(config, "replay", queued.delivery)
    assert done.exit_code == 0, done.output
    (batch,) = stored(server, lambda store: store.seal("linear-acme", time.time() + 1, 60, 1))
    assert batch.digest == new["digest"]


def test_asks_are_listed_and_answered_once(server: PrivateValkey, config: Path) -> None:
    async def ask(store: Store) -> str:
        await admit(store, load_configuration(config))
        (batch,) = await store.seal("linear-acme", time.time(), 60, 1)
        await store.ask("linear-acme", batch.dispatch, time.time(), 60)
        await store.release(batch, time.time() + 60, status="asked", reason="asked")
        return batch.dispatch

    ident = stored(server, ask)
    (row,) = json.loads(gateway(config, "asks", "--json").stdout)["asks"]
    assert (row["id"], row["repository"], row["subscription"]) == (ident, LINEAR["repository"], LINEAR["digest"])
    assert row["urls"] == ["https://linear.app/acme/issue/A-1"]
    assert "https://linear.app/acme/issue/A-1" in gateway(config, "asks").stdout
    assert gateway(config, "answer", ident, "sure").exit_code == 2
    assert gateway(config, "answer", ident, "yes", "--as", "kim").exit_code == 0
    again = gateway(config, "answer", ident, "no")
    assert (again.exit_code, "first answer stands" in again.stderr) == (1, True)
    assert json.loads(gateway(config, "asks", "--json").stdout) == {"asks": []}
    (batch,) = stored(server, lambda store: store.seal("linear-acme", time.time() + 1, 60, 1))
    assert batch.dispatch == ident  # due at once, not when it would have been looked at again
    assert [(entry["who"], entry["answer"]) for entry in actions(config)] == [("kim", "yes")]
    assert gateway(config, "answer", "nothing", "yes").exit_code == 1


def test_of_many_operators_who_answer_at_once_one_decides(server: PrivateValkey, config: Path) -> None:
    async def race(store: Store) -> tuple[str, list[str]]:
        await admit(store, load_configuration(config))
        (batch,) = await store.seal("linear-acme", time.time(), 60, 1)
        await store.ask("linear-acme", batch.dispatch, time.time(), 60)
        given = ["yes" if number % 2 else "no" for number in range(20)]
        answers = (
            asks.answer(store, f"op-{number}", batch.dispatch, one, time.time()) for number, one in enumerate(given)
        )
        return batch.dispatch, list(await asyncio.gather(*answers))

    ident, statuses = stored(server, race)
    assert sorted(set(statuses)) == ["already", "answered"]
    assert statuses.count("answered") == 1
    standing = stored(server, lambda store: store.ask_of("linear-acme", ident))
    assert standing is not None
    assert standing.by == f"op-{statuses.index('answered')}"
    void = {entry["who"] for entry in actions(config) if "void" in entry}
    assert {entry["who"] for entry in actions(config)} - void == {standing.by}
    assert gateway(config, "answer", ident, "yes").exit_code == 1


def test_an_answer_after_the_end_is_none_whatever_the_clock_did(server: PrivateValkey, config: Path) -> None:
    async def late(store: Store) -> list[str]:
        await admit(store, load_configuration(config))
        (batch,) = await store.seal("linear-acme", time.time(), 60, 1)
        ask = await store.ask("linear-acme", batch.dispatch, time.time(), 60)
        found = [await asks.answer(store, "kim", batch.dispatch, "yes", ask.expires + step) for step in (0, 1, 86_400)]
        held = asks.verdict((await store.ask_of("linear-acme", batch.dispatch)) or ask, ask.expires - 3600)
        assert held is not None  # a clock that was set back asks on: only a yes lets it go
        ended = asks.verdict((await store.ask_of("linear-acme", batch.dispatch)) or ask, ask.expires)
        assert (ended and ended.reason) == "ask-expired"
        return found

    assert stored(server, late) == ["expired"] * 3
    assert actions(config) == []


def test_the_trail_pages_and_refuses_what_is_no_action(server: PrivateValkey, config: Path) -> None:
    async def three(store: Store) -> None:
        for number in range(3):
            await audit.record(store, "revoke", f"op-{number}", subscription="sha256:x")

    stored(server, three)
    newest = json.loads(gateway(config, "audit", "--limit", "1", "--json").stdout)["actions"][0]
    assert newest["who"] == "op-2"
    older = json.loads(gateway(config, "audit", "--before", newest["id"], "--json").stdout)["actions"]
    assert [entry["who"] for entry in older] == ["op-1", "op-0"]
    assert "op-0" in gateway(config, "audit").stdout
    assert gateway(config, "audit", "--before", "x").exit_code == 2
    with pytest.raises(ValueError, match="no action"):
        stored(server, lambda store: audit.record(store, "whatever"))


def test_what_is_done_while_the_store_is_away_is_in_the_trail_later(server: PrivateValkey, tmp_path: Path) -> None:
    with server.client() as client:
        client.flushall()
    config = write(tmp_path, "redis://127.0.0.1:1/0")
    text = config.read_text().partition("[[enrollments]]")[0]
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', text))
    document = data_folder("subscriptions") / "examples" / "linear-issue-created.json"
    arguments = ("--source", "linear-acme", "--installation", "11", "--attested")
    done = gateway(config, "enroll", str(document), *arguments, environment={"GATEWAY_OPERATOR": "kim"})
    assert done.exit_code == 0, done.output
    assert (tmp_path / "enrolled" / audit.KEPT).exists()
    config.write_text(config.read_text().replace("redis://127.0.0.1:1/0", server.url))
    assert gateway(config, "revoke", LINEAR["digest"], environment={"GATEWAY_OPERATOR": "kim"}).exit_code == 0
    newest, oldest = actions(config)  # kept ones are taken in when somebody looks
    assert {(entry["action"], entry["subscription"]) for entry in (newest, oldest)} == {
        ("enroll", LINEAR["digest"]),
        ("revoke", LINEAR["digest"]),
    }
    assert all(entry["who"].startswith("kim@") for entry in (newest, oldest))
    assert list((tmp_path / "enrolled").glob(audit.KEPT + "*")) == []
    assert len(actions(config)) == 2


@pytest.mark.parametrize("line", ["", "{", '{"action":"enroll"', "[]", '{"action":"enroll"}', "\x00", "[" * 5000])
def test_a_kept_line_that_cannot_be_read_is_set_aside_and_stops_nothing(
    server: PrivateValkey, config: Path, line: str
) -> None:
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', config.read_text().partition("[[enrollments]]")[0]))
    folder = config.parent / "enrolled"
    folder.mkdir()
    good = json.dumps({"at": 1.0, "who": "kim", "action": "revoke"})
    (folder / audit.KEPT).write_text(f"{line}\n{good}\n")
    (entry,) = actions(config)
    assert (entry["who"], entry["action"]) == ("kim", "revoke")
    assert (folder / audit.UNREADABLE).read_text() == f"{line}\n"
    assert list(folder.glob(audit.KEPT + "*")) == []


def test_no_kept_line_is_lost_between_its_writer_and_its_reader(server: PrivateValkey, config: Path) -> None:
    """Commands write while servers claim the file under them: what each wrote is in the trail."""
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', config.read_text().partition("[[enrollments]]")[0]))
    folder = config.parent / "enrolled"
    folder.mkdir()
    configuration = load_configuration(config)
    count, done = 200, threading.Event()

    def keep() -> None:
        for number in range(count):
            line = json.dumps({"at": 1.0, "who": f"op-{number}", "action": "enroll"})
            while not audit._keep(folder / audit.KEPT, f"{line}\n".encode()):
                pass
        done.set()

    writer = threading.Thread(target=keep)
    writer.start()

    async def claim(store: Store) -> None:
        while not done.is_set():
            await audit.take_kept(store, configuration)
            await asyncio.sleep(0)
        await audit.take_kept(store, configuration)

    stored(server, claim)
    writer.join()
    found = json.loads(gateway(config, "audit", "--limit", "1000", "--json").stdout)["actions"]
    assert sorted(entry["who"] for entry in found) == sorted(f"op-{number}" for number in range(count))


def test_what_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    """The store is away and the disk is full: nothing is enrolled, and what stands is not revoked."""
    config = write(tmp_path, "redis://127.0.0.1:1/0")
    text = config.read_text().partition("[[enrollments]]")[0]
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', text))
    (tmp_path / "enrolled").mkdir()
    kept = tmp_path / "enrolled" / audit.KEPT
    document = data_folder("subscriptions") / "examples" / "linear-issue-created.json"
    enroll = ("enroll", str(document), "--source", "linear-acme", "--installation", "11", "--attested")
    kept.symlink_to("/dev/full")
    full = gateway(config, *enroll)
    assert (full.exit_code, full.stderr.splitlines()[-1]) == (3, "failed: No space left on device")
    assert [file.name for file in (tmp_path / "enrolled").iterdir()] == [audit.KEPT]
    kept.unlink()
    assert gateway(config, *enroll).exit_code == 0
    kept.unlink()
    kept.symlink_to("/dev/full")
    before = {file.name for file in (tmp_path / "enrolled").iterdir()}
    assert gateway(config, "revoke", LINEAR["digest"]).exit_code == 3
    assert {file.name for file in (tmp_path / "enrolled").iterdir()} == before


def test_a_claim_whose_owner_died_is_taken_again_and_a_living_one_is_not(
    server: PrivateValkey, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', config.read_text().partition("[[enrollments]]")[0]))
    (config.parent / "enrolled").mkdir()
    configuration = load_configuration(config)
    (config.parent / "enrolled" / f"{audit.KEPT}.claimed").write_text('{"at":1,"who":"kim","action":"revoke"}\n')
    assert stored(server, lambda store: audit.take_kept(store, configuration)) == 0
    monkeypatch.setattr(audit, "CLAIM_S", -1.0)
    assert stored(server, lambda store: audit.take_kept(store, configuration)) == 1


def emptied(config: Path) -> Path:
    """Give the configuration a folder for enrollments, with none in it; return the folder."""
    config.write_text(re.sub(r'path = ".*"', 'path = "enrolled"', config.read_text().partition("[[enrollments]]")[0]))
    folder = config.parent / "enrolled"
    folder.mkdir()
    return folder


async def test_what_was_enrolled_while_the_store_was_away_is_taken_in_when_it_is_back(
    server: PrivateValkey, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the mark of its revocation would keep it suspended, and nobody reloads again."""
    monkeypatch.setattr(reload, "BEHIND_S", 0.2)
    folder = emptied(config)
    digest, now = LINEAR["digest"], time.time()
    store = await Store.open(server.url)
    try:
        await store.revoke(digest, now - 60)
        server.stop()
        (folder / audit.KEPT).write_text(
            json.dumps({"at": now, "who": "kim", "action": "enroll", "subscription": digest}) + "\n"
        )
        configuration = load_configuration(config)
        running = app.Gateway(configuration, Keys(configuration.settings, lambda: None), store)  # type: ignore[arg-type,return-value]
        task = asyncio.create_task(reload.Reloader(running, 0.1).run())
        await asyncio.sleep(0.5)
        assert list(folder.glob(audit.KEPT + "*"))
        server.restart()
        async with asyncio.timeout(10):
            while list(folder.glob(audit.KEPT + "*")):  # noqa: ASYNC110 (another task's work)
                await asyncio.sleep(0.05)
        assert await store.suspended() == {}
        task.cancel()
    finally:
        await store.close()


def test_a_changed_mode_is_in_the_trail_once_whoever_changed_it(server: PrivateValkey, config: Path) -> None:
    def look(mode: str) -> None:
        config.write_text(re.sub(r'\nmode = "\w+"', f'\nmode = "{mode}"', config.read_text()))
        stored(server, lambda store: audit.catch_up(store, load_configuration(config)))

    for mode in ("auto", "ask", "ask", "deny"):
        look(mode)
    changes = [(e["before"], e["after"]) for e in actions(config)]
    assert changes == [("ask", "deny"), ("auto", "ask")]


def test_a_store_that_is_away_is_exit_3(tmp_path: Path) -> None:
    config = write(tmp_path, "redis://127.0.0.1:1/0")
    for command in (["asks"], ["dead", "list"], ["audit"], ["replay", "x"], ["answer", "x", "yes"]):
        assert gateway(config, *command).exit_code == 3, command


def test_an_explanation_says_what_became_of_it_and_what_to_do(server: PrivateValkey, config: Path) -> None:
    letter = dead_letter(server, config)
    (row,) = json.loads(gateway(config, "deliveries", "--json").stdout)["deliveries"]
    text = gateway(config, "explain", row["id"]).stdout
    assert f"dispatch {letter}  dead (not-found)" in text
    assert "    GitHub knows no such repository for this App" in text
    assert f"next: gateway dead show {letter}; gateway dead replay {letter}" in text
    refused = {"id": uuid7(), "source": "linear-acme", "received_at": time.time(), "outcome": "rejected"}
    refused |= {"reason": "signature", "subscriptions": []}

    async def record(store: Store) -> None:
        await store.record("linear-acme", json.dumps(refused))
        await store.flush()

    stored(server, record)
    text = gateway(config, "explain", str(refused["id"])).stdout
    assert "Compare the secret with the provider's" in text


def served(config: Path, *more: str) -> tuple[int | None, list[dict[str, Any]]]:
    """Serve until it is up or has ended; return the exit code, None where it had to be ended, and its log."""
    command = [sys.executable, "-m", "gateway", "serve", *more, "--admin-bind", "127.0.0.1:0", "--config", str(config)]
    told: list[dict[str, Any]] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told.append(json.loads(line) if line.startswith("{") else {"text": line})
            if told[-1].get("event") == "serving":
                process.terminate()
        code = process.wait(60)
    return (None if any(one.get("event") == "serving" for one in told) else code), told


@pytest.mark.parametrize("role", ["all", "receive", "dispatch"])
def test_a_lost_subscriptions_folder_does_not_end_what_waits(server: PrivateValkey, config: Path, role: str) -> None:
    queued = stored(server, lambda store: admit(store, load_configuration(config)))
    enrolled = config.parent / "enrolled"
    whole = config.read_text()
    head = whole.partition("[[enrollments]]")[0].replace(str(data_folder("subscriptions") / "examples"), str(enrolled))
    head = head.replace(f"app_id = {APP_ID}", f'app_id = {APP_ID}\nsender_id = 7\napi_url = "http://127.0.0.1:1"')
    config.write_text('[server]\nbind = "127.0.0.1:0"\n' + head)
    code, told = served(config, "--role", role)
    refused = next(one for one in told if one.get("event") == "start-refused")
    assert code == 3
    assert (refused["reason"], refused["folder"], refused["waiting"]) == ("subscriptions-missing", str(enrolled), 1)
    assert "mount or restore" in refused["fix"]
    depth = stored(server, lambda store: store.depth("linear-acme"))
    assert (depth.waiting, depth.dead) == (1, 0), queued
    with server.client() as client:
        client.flushall()
    assert served(config, "--role", role)[0] is None  # a first start needs no folder


def test_an_empty_subscriptions_folder_is_a_revocation(server: PrivateValkey, config: Path) -> None:
    stored(server, lambda store: admit(store, load_configuration(config)))
    (config.parent / "enrolled").mkdir()
    text = config.read_text().partition("[[enrollments]]")[0]
    config.write_text(text.replace(str(data_folder("subscriptions") / "examples"), "enrolled"))
    assert served(config, "--role", "dispatch")[0] is None
