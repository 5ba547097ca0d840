"""Revoking, with processes that have not read the folder since: what they read is the store, so that is where it ends first."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway import enrolling
from gateway.audit import KEPT
from gateway.configuration import load_base
from gateway.reconcile import Reconciler
from gateway.server import destinations
from gateway.store import Store
from gateway.subscriptions import Enrolled, load_subscription
from gateway.suspension import FRESH_S, KEPT_S
from tests.cli.desk import DIGEST, EXAMPLES, LINEAR, Desk
from tests.operating import stored
from tests.valkey import PrivateValkey

T = TypeVar("T")
AW = ".github/workflows/aw.json"
DOCUMENT = json.loads(LINEAR.read_bytes())


@pytest.fixture
def house(desk: Desk, github: str, server: PrivateValkey, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose store other processes share, and whose GitHub has the workflow."""
    monkeypatch.setenv("NOT_SET_HERE", "planted-secret-value")
    with server.client() as client:
        client.flushall()
    desk.configure(github)
    use(desk, server.url)
    tell(github, "repository", {"repo": "acme/app", "gone": True})  # the double has it in another spelling
    tell(github, "repository", {"repo": "acme/app", "id": DOCUMENT["repository_id"]})
    put(github, DOCUMENT["workflow"], (EXAMPLES / DOCUMENT["workflow"]).read_text())
    return desk


def use(desk: Desk, url: str) -> None:
    lines = desk.config.read_text().splitlines()
    lines[lines.index("[store]") + 1] = f'url = "{url}"'
    desk.config.write_text("\n".join(lines) + "\n")


def tell(github: str, what: str, change: dict[str, Any]) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{github}/_double/{what}", json.dumps(change).encode())) as got:
        assert got.status == 204


def put(github: str, path: str, text: str | None) -> None:
    tell(github, "contents", {"repo": "acme/app", "path": path, "text": text})


def suspended(server: PrivateValkey) -> dict[str, str]:
    return stored(server, lambda store: store.suspended())


@pytest.mark.parametrize("reason", [None, "opt-in-revoked", "workflow-superseded", "workflow-pending"])
def test_what_is_revoked_is_active_nowhere_whatever_it_was(
    house: Desk, server: PrivateValkey, reason: str | None
) -> None:
    assert house.enroll().exit_code == 0
    assert suspended(server) == {}
    if reason is not None:
        stored(server, lambda store: store.suspend(DIGEST, reason))
    began = time.monotonic()
    assert house.run("revoke", DIGEST).exit_code == 0
    assert suspended(server) == {DIGEST: "revoked"}
    # what a receiver read a moment before does not outlive the command
    assert reason is not None or time.monotonic() - began >= FRESH_S


def test_what_other_processes_decide_late_does_not_lift_it(house: Desk, github: str, server: PrivateValkey) -> None:
    """They have the entry in memory: one looks at the default branch, one finds what was pending merged."""
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    before = [Enrolled(load_subscription(LINEAR.read_bytes(), "x"), "linear-acme", 5001)]

    async def look(store: Store) -> None:
        async with destinations(load_base(house.config), store) as found:
            (row,) = await Reconciler(store, found, lambda: before).run()
        assert (row.state, row.reason, row.agrees) == ("suspended", "revoked", True)
        await store.resume(DIGEST)  # as who read `workflow-pending` before it was revoked
        await store.suspend(DIGEST, "repository-moved")  # as whose dispatch was under way

    stored(server, look)
    assert suspended(server) == {DIGEST: "revoked"}


def test_enrolling_at_once_again_is_new_and_active(house: Desk, server: PrivateValkey) -> None:
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    again = house.enroll()
    assert (again.exit_code, again.output.splitlines()[-1].split()[0]) == (0, "enrolled"), again.output
    assert suspended(server) == {}
    assert [row["state"] for row in house.rows()] == ["active"]


def test_what_is_revoked_and_enrolled_before_its_workflow_waits_for_it(
    house: Desk, github: str, server: PrivateValkey
) -> None:
    """It was good once; that counts no more."""
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    put(github, DOCUMENT["workflow"], "on: push\n")
    assert house.enroll().exit_code == 0
    assert suspended(server) == {DIGEST: "workflow-pending"}


@pytest.mark.parametrize("then", ["revoke", "enroll"])
def test_a_death_before_the_files_are_gone_leaves_it_suspended_until_somebody_decides(
    house: Desk, server: PrivateValkey, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    assert house.enroll().exit_code == 0

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(enrolling, "_without_entries", die)
        assert house.run("revoke", DIGEST).exit_code != 0
    assert [(row["state"], row["reason"]) for row in house.rows()] == [("suspended", "revoked")]
    stored(server, lambda store: store.forget_revoked(time.time() + 1, keep=[DIGEST]))
    assert house.run("reconcile").exit_code == 1  # a look does not resume it
    if then == "revoke":
        assert house.run("revoke", DIGEST).exit_code == 0
        assert (house.rows(), suspended(server)) == ([], {DIGEST: "revoked"})
    else:
        result = house.enroll()
        assert (result.exit_code, result.output.splitlines()[-1].split()[0]) == (0, "resumed")
        assert suspended(server) == {}


def test_a_revocation_between_an_enrollments_files_and_its_look_stands(
    house: Desk, server: PrivateValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    run = Reconciler.run

    async def late(self: Reconciler, *arguments: Any, **more: Any) -> Any:
        await self._store.revoke(DIGEST)  # another operator
        return await run(self, *arguments, **more)

    monkeypatch.setattr(Reconciler, "run", late)
    house.enroll()
    assert suspended(server) == {DIGEST: "revoked"}


def test_what_was_enrolled_while_the_store_was_away_is_not_held_by_an_earlier_revocation(
    house: Desk, server: PrivateValkey
) -> None:
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    use(house, "redis://127.0.0.1:1/0")
    assert house.enroll().exit_code == 0
    assert (house.enrolled / KEPT).exists()
    use(house, server.url)
    assert suspended(server) == {DIGEST: "revoked"}
    assert house.run("audit").exit_code == 0  # as every process at its start: what was kept is taken in
    assert suspended(server) == {}
    (house.enrolled / KEPT).write_text(
        json.dumps({"at": 1.0, "who": "kim", "action": "enroll", "subscription": DIGEST})
    )
    assert house.run("revoke", DIGEST).exit_code == 0
    assert house.run("audit").exit_code == 0
    assert suspended(server) == {DIGEST: "revoked"}  # it came after that enrollment


def test_a_store_that_is_away_is_said_to_know_nothing(house: Desk) -> None:
    assert house.enroll().exit_code == 0
    use(house, "redis://127.0.0.1:1/0")
    result = house.run("revoke", DIGEST)
    assert result.exit_code == 0
    assert "up to 5 seconds" in result.stderr
    assert house.rows() == []


def test_revocations_are_forgotten_after_a_month_and_never_while_their_entry_stands(
    house: Desk, server: PrivateValkey
) -> None:
    old, entered, young = ("sha256:" + letter * 64 for letter in "abc")

    async def mark(store: Store) -> None:
        for digest in (old, entered):
            assert await store.revoke(digest, time.time() - KEPT_S - 60)
        await store.suspend(old, "repository-moved")
        await store.revoke(young, time.time() - KEPT_S + 60)

    stored(server, mark)
    assert house.enroll().exit_code == 0
    entry = (house.enrolled / "linear-issue-created.toml").read_text()
    (house.enrolled / "by-hand.toml").write_text(entry.replace(DIGEST, entered))
    assert house.run("revoke", DIGEST).exit_code == 0
    assert suspended(server) == dict.fromkeys((entered, young, DIGEST), "revoked")


def test_a_suspended_digest_that_another_takes_the_place_of_stays_out_and_is_forgotten_in_time(
    house: Desk, server: PrivateValkey, tmp_path: Path
) -> None:
    assert house.enroll().exit_code == 0
    stored(server, lambda store: store.suspend(DIGEST, "opt-in-revoked"))
    made = house.document(grants=DOCUMENT["grants"] | {"teams": ["t2"]})
    made.rename(tmp_path / LINEAR.name)
    assert house.enroll(tmp_path / LINEAR.name).exit_code == 0
    assert suspended(server) == {DIGEST: "revoked"}
    stored(server, lambda store: store.forget_revoked(time.time() + 1))
    assert suspended(server) == {}


def test_enrolling_what_still_has_another_workflow_says_so_and_ends_with_1(house: Desk, github: str) -> None:
    assert house.enroll().exit_code == 0
    put(github, DOCUMENT["workflow"], "on: push\n")
    assert house.run("reconcile").exit_code == 1
    result = house.enroll()
    assert result.exit_code == 1
    assert "still another workflow than the one enrolled" in result.stderr
    assert result.stdout.startswith("suspended ")
    result = house.enroll(LINEAR, "linear-acme", "--json")
    (told,) = json.loads(result.stdout)["enrollments"]
    assert (result.exit_code, told["state"], told["reason"]) == (1, "suspended", "workflow-hash")
    put(github, AW, None)
    result = house.enroll()
    assert (result.exit_code, "opt-in-revoked" in result.stderr) == (1, True)


def test_enrolling_without_the_apps_key_counts_and_says_that_nothing_was_compared(
    house: Desk, server: PrivateValkey
) -> None:
    assert house.enroll().exit_code == 0
    assert house.run("revoke", DIGEST).exit_code == 0
    (house.folder / "app.pem").unlink()
    result = house.enroll()
    assert result.exit_code == 0, result.output
    assert "nothing was compared" in result.stderr
    assert suspended(server) == {}
