"""Reloading: the folder is watched, unchanged documents are not compiled again, a bad set changes nothing."""

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import configuration as configuration_module
from gateway import reload as reload_module
from gateway.configuration import Configuration, folder_stamp, load_configuration
from gateway.environment import data_folder
from gateway.keys import Keys
from gateway.reload import EDITED_S, RACY_S, Look, Reloader, look

EXAMPLES = data_folder("subscriptions") / "examples"
LINEAR, GITHUB = EXAMPLES / "linear-issue-created.json", EXAMPLES / "github-issue-opened.json"


def no_session() -> Any:
    raise AssertionError("a reload fetches nothing")


class Gateway:
    """What a reload needs of one."""

    store = None

    def __init__(self, configuration: Configuration) -> None:
        self.configuration, self.keys = configuration, Keys(configuration.settings, no_session)

    def prepare(self, configuration: Configuration) -> Configuration:
        return configuration

    def digests(self) -> set[str]:
        return {one.subscription.digest for one in self.configuration.enrolled}


def enroll(folder: Path, document: Path, source: str) -> str:
    digest = str(json.loads(document.read_bytes())["digest"])
    shutil.copy(document, folder)
    entry = f'[[enrollments]]\nsubscription = "{digest}"\nsource = "{source}"\ninstallation = 1\n'
    (folder / document.name).with_suffix(".toml").write_text(entry)
    return digest


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_SECRET", "planted-secret-value")
    (tmp_path / "enrolled").mkdir()
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[store]\nembedded = "store"\n[github]\napp_id = 1\nprivate_key = "env:TEST_SECRET"\n'
        '[subscriptions]\npath = "enrolled"\n'
        '[sources.github-acme]\nprofile = "github"\nsecrets = ["env:TEST_SECRET"]\n'
        '[sources.linear-acme]\nprofile = "linear"\nsecrets = ["env:TEST_SECRET"]\n'
        'identity = { organization = ["11111111-1111-4111-8111-111111111111"] }\n'
    )
    return path


def rename(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


@pytest.fixture(autouse=True)
def _no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_left(*_arguments: Any, behind: bool) -> bool:
        """The trail has its own tests; these gateways have no store."""
        return not behind

    monkeypatch.setattr("gateway.reload.audit.catch_up", nothing_left)


async def until(condition: Any, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (what is waited for is another task's work)
            await asyncio.sleep(0.02)


async def test_the_folder_is_watched(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")
    folder = config.parent / "enrolled"
    gateway: Any = Gateway(load_configuration(config))
    gateway.store = None
    task = asyncio.create_task(Reloader(gateway, poll_s=0.05).run())
    try:
        first = enroll(folder, LINEAR, "linear-acme")
        await until(lambda: gateway.digests() == {first})
        kept = gateway.configuration.enrolled[0].subscription
        second = enroll(folder, GITHUB, "github-acme")
        await until(lambda: gateway.digests() == {first, second})
        assert any(one.subscription is kept for one in gateway.configuration.enrolled)  # not compiled again
        before = gateway.configuration
        rename(folder / LINEAR.name, "33333333", "44444444")
        await until(lambda: any(record.message == "reload-refused" for record in caplog.records))
        refused = len([record for record in caplog.records if record.message == "reload-refused"])
        await asyncio.sleep(0.3)  # said once, not at every look
        assert len([record for record in caplog.records if record.message == "reload-refused"]) == refused
        assert gateway.configuration is before
        (folder / LINEAR.name).unlink()
        (folder / LINEAR.name).with_suffix(".toml").unlink()
        await until(lambda: gateway.digests() == {second})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("put", ["nothing", "file", "loop"])
async def test_a_folder_that_is_gone_revokes_nothing(config: Path, caplog: pytest.LogCaptureFixture, put: str) -> None:
    """A mount that is away for a moment must not make dead letters of what is enrolled."""
    caplog.set_level(logging.INFO, "gateway")
    folder, aside = config.parent / "enrolled", config.parent / "aside"
    first = enroll(folder, LINEAR, "linear-acme")
    gateway: Any = Gateway(load_configuration(config))
    gateway.store = None
    task = asyncio.create_task(Reloader(gateway, poll_s=0.05).run())
    try:
        folder.rename(aside)
        if put == "file":
            folder.write_text("")
        elif put == "loop":
            folder.symlink_to(folder)
        await until(lambda: any(record.message == "reload-refused" for record in caplog.records))
        await asyncio.sleep(0.3)
        assert not task.done()
        assert gateway.digests() == {first}
        folder.unlink(missing_ok=True)
        aside.rename(folder)
        second = enroll(folder, GITHUB, "github-acme")
        await until(lambda: gateway.digests() == {first, second})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_asking_reloads_what_the_folder_does_not_show(config: Path) -> None:
    gateway: Any = Gateway(load_configuration(config))
    gateway.store = None
    reloader = Reloader(gateway, poll_s=60)
    task = asyncio.create_task(reloader.run())
    try:
        rename(config, "[sources.github-acme]", "[sources.github-other]")
        reloader.ask()
        await until(lambda: "github-other" in gateway.configuration.sources)
        ring = await gateway.keys.ring(gateway.configuration.sources["github-other"])
        assert len(ring.secrets) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
async def test_a_folder_that_cannot_be_looked_at_ends_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No descriptor or thread is free, say: the process serves on, and what was asked for is done when it can be."""
    gateway: Any = Gateway(load_configuration(config))
    gateway.store = None
    reloader = Reloader(gateway, poll_s=0.02)
    looks: list[Path] = []

    def blind(folder: Path) -> Any:
        looks.append(folder)
        if len(looks) < 4:
            raise error
        return folder_stamp(folder)

    monkeypatch.setattr(reload_module, "folder_stamp", blind)
    task = asyncio.create_task(reloader.run())
    try:
        rename(config, "[sources.github-acme]", "[sources.github-other]")
        reloader.ask()
        await until(lambda: "github-other" in gateway.configuration.sources)
        assert len(looks) >= 4
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_file_is_looked_at_where_that_can_tell_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls a second from a thread take a sixth of a busy receiver: one tells that no file came or went."""
    for name in ("one.json", "two.toml"):
        (tmp_path / name).write_text("{}")
    looks: list[Path] = []

    def counted(folder: Path) -> Any:
        looks.append(folder)
        return folder_stamp(folder)

    monkeypatch.setattr(reload_module, "folder_stamp", counted)
    first = look(tmp_path, None)
    assert [name for name, *_ in first.stamp] == ["one.json", "two.toml"]
    # a folder that has just changed may change again in the same tick of its clock
    assert look(tmp_path, first) is not first

    monkeypatch.setattr(reload_module, "RACY_S", 0)
    quiet = look(tmp_path, look(tmp_path, None))
    looks.clear()
    for _ in range(5):
        assert look(tmp_path, quiet) is quiet
    assert looks == []

    (tmp_path / "one.json").write_text("{ }")  # in place: its folder does not tell
    assert look(tmp_path, quiet) is quiet
    later = Look(quiet.at - EDITED_S - 1, quiet.since - EDITED_S - 1, quiet.folder, quiet.stamp)
    assert look(tmp_path, later).stamp != quiet.stamp

    was = tmp_path.stat().st_mtime_ns
    (tmp_path / "three.json").write_text("{}")
    os.utime(tmp_path, ns=(was, was))  # as rsync and tar do when they are done
    assert len(look(tmp_path, quiet).stamp) == 3


def test_ten_thousand_files_are_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "RACY_S", -1)
    mark, then = look(tmp_path, None).folder, time.monotonic() - EDITED_S - 1
    many = Look(then, then, mark, (("a.json", 1, 1, 1, 1),) * 10_000)
    assert look(tmp_path, many) is many
    assert look(tmp_path, Look(then - 90, then - 90, mark, many.stamp)) is not many


@pytest.mark.parametrize("off_s", [-3600, 0, 3600])
def test_no_clock_is_compared_with_that_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    """A mount's may be an hour off, and this machine's may be set: neither may hide a change, nor cost a look a second."""
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + off_s)
    (tmp_path / "one.json").write_text("{}")
    first = look(tmp_path, None)
    again = look(tmp_path, first)
    assert again is not first  # it has just changed, whatever the clocks say
    quiet = Look(first.at + RACY_S + 1, first.at, first.folder, first.stamp)
    assert look(tmp_path, quiet) is quiet


async def test_what_only_a_restart_takes_is_named_until_it_is_taken_back(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    gateway: Any = Gateway(load_configuration(config))
    gateway.store = None
    before = await asyncio.to_thread(config.read_text)
    (config.parent / "told").write_text("whsec_" + "A" * 43 + "=")
    reloader = Reloader(gateway, poll_s=60)
    task = asyncio.create_task(reloader.run())

    async def keys_after(change: str) -> list[list[str]]:
        caplog.clear()
        await asyncio.to_thread(config.write_text, change)
        reloader.ask()
        await until(lambda: any(record.message == "reloaded" for record in caplog.records))
        await asyncio.sleep(0.05)
        return [record.fields["keys"] for record in caplog.records if record.message == "reload-needs-restart"]  # type: ignore[attr-defined]

    try:
        told = f'[notifications]\nurl = "http://127.0.0.1:1/"\nsecret = "file:{config.parent}/told"\n'
        limits = '[server]\nbind = "127.0.0.1:9999"\nbody_limit_bytes = 2048\n[limits]\nqueue = 5\n'
        assert await keys_after(before + told + limits) == [["server.bind", "limits", "notifications"]]
        assert await keys_after(before + told) == [
            ["notifications"]
        ]  # compared with the start, not with the last reload
        assert await keys_after(before.replace("[sources.linear-acme]", "[sources.linear-acme]\nmode = 'ask'")) == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def watched(config: Path) -> AsyncIterator[tuple[Any, Reloader]]:
    gateway: Any = Gateway(load_configuration(config))
    reloader = Reloader(gateway, poll_s=0.05)
    task = asyncio.create_task(reloader.run())
    try:
        yield gateway, reloader
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_secret_written_over_is_seen_without_a_delivery(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else its file's end would leave the old one in force in each process that was sent nothing meanwhile."""
    caplog.set_level(logging.INFO, "gateway")
    secret = config.parent / "secret"
    secret.write_text("the-leaked-secret-of-before")
    rename(config, '"github"\nsecrets = ["env:TEST_SECRET"]', f'"github"\nsecrets = ["file:{secret}"]')
    async with watched(config) as (gateway, _):
        secret.write_text("the-new-secret-of-now")
        await until(lambda: told(caplog, "secret-reloaded"))
        secret.unlink()
        await until(lambda: told(caplog, "secret-unreadable"))
        ring = await gateway.keys.ring(gateway.configuration.sources["github-acme"])
        assert [one.value for one in ring.secrets] == [b"the-new-secret-of-now"]


def told(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(record.message == event for record in caplog.records)


@pytest.mark.parametrize("lacking", ["secret", "link", "configuration"])
async def test_a_set_that_was_refused_for_what_lies_elsewhere_is_taken_when_that_is_mended(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """Nothing in the folder changes then; without another try the enrollment would wait for the next one."""
    monkeypatch.setattr(reload_module, "EDITED_S", 0.3)
    secret, folder = config.parent / "secret", config.parent / "enrolled"
    secret.write_text("planted-secret-value")
    rename(
        config, 'profile = "github"\nsecrets = ["env:TEST_SECRET"]', f'profile = "github"\nsecrets = ["file:{secret}"]'
    )
    async with watched(config) as (gateway, reloader):
        if lacking == "secret":
            secret.rename(config.parent / "aside")
        elif lacking == "link":  # an editor's lock
            (folder / ".#triage.toml").symlink_to("kim@example.1")
        else:
            rename(config, "[store]", "[[[store]")
        digest = enroll(folder, LINEAR, "linear-acme")
        await until(lambda: told(caplog, "reload-refused") == 1)
        await asyncio.sleep(1)  # it is tried again in silence
        assert told(caplog, "reload-refused") == 1
        assert gateway.digests() == set()
        at = reloader.read_at
        await asyncio.sleep(0.5)
        assert reloader.read_at == at  # what the folder holds is not what we run on
        if lacking == "secret":
            (config.parent / "aside").rename(secret)
        elif lacking == "link":
            (folder / ".#triage.toml").unlink()
        else:
            rename(config, "[[[store]", "[store]")
        await until(lambda: gateway.digests() == {digest})
        await until(lambda: reloader.read_at > at)


def test_a_change_of_permissions_or_with_the_old_time_set_back_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text("a = 1\n")
    before, was = folder_stamp(tmp_path), file.stat().st_mtime_ns
    time.sleep(0.02)
    file.chmod(0o600)
    permitted = folder_stamp(tmp_path)
    assert permitted != before
    time.sleep(0.02)
    file.write_text("a = 2\n")
    os.utime(file, ns=(was, was))  # cp -p, tar, rsync --inplace
    assert folder_stamp(tmp_path) != permitted


async def test_a_signal_takes_no_half_written_folder(config: Path) -> None:
    """Somebody reloads while another one writes: what runs goes on until the folder is still."""
    folder = config.parent / "enrolled"
    digest = enroll(folder, LINEAR, "linear-acme")
    entry = (folder / LINEAR.name).with_suffix(".toml")
    text = entry.read_text()
    seen: set[frozenset[str]] = set()
    async with watched(config) as (gateway, reloader):
        await asyncio.sleep(0.2)
        for number in range(20):
            entry.write_text(f"# {number}\n")  # the rest of it is yet to come
            reloader.ask()
            await asyncio.sleep(0.03)
            seen.add(frozenset(gateway.digests()))
        assert seen == {frozenset({digest})}
        entry.write_text(text)
        second = enroll(folder, GITHUB, "github-acme")
        await until(lambda: gateway.digests() == {digest, second})  # it was not asked in vain


async def test_what_is_enrolled_one_after_the_other_is_taken_meanwhile_and_nothing_ends_by_that(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of `gateway enroll` over a hundred documents gives no look the same folder twice."""
    monkeypatch.setattr(reload_module, "MORE_S", 0.2)
    folder = config.parent / "enrolled"
    first = enroll(folder, LINEAR, "linear-acme")
    entry = (folder / LINEAR.name).with_suffix(".toml")
    text = entry.read_text()
    async with watched(config) as (gateway, _):

        async def move(condition: Any) -> None:
            for number in range(200):
                (folder / "other.toml").write_text(f"# {number}\n")
                await asyncio.sleep(0.02)
                if condition():
                    return
            raise AssertionError

        moved = asyncio.get_running_loop().time() + 1.0
        entry.write_text("# the rest of it is yet to come\n")
        second = enroll(folder, GITHUB, "github-acme")
        await move(lambda: asyncio.get_running_loop().time() > moved)
        assert gateway.digests() == {first}
        entry.write_text(text)
        await move(lambda: gateway.digests() == {first, second})


async def test_a_folder_that_is_never_still_is_told(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload_module, "MOVING_S", 0.3)
    folder = config.parent / "enrolled"
    async with watched(config) as (gateway, _):
        digest = enroll(folder, LINEAR, "linear-acme")
        for number in range(50):
            (folder / "other.json.toml").write_text(f"# {number}\n")
            await asyncio.sleep(0.02)
        assert told(caplog, "reload-waits") == 1
        await until(lambda: gateway.digests() == {digest})


def test_a_folder_that_is_written_while_it_is_read_is_read_again(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command wrote an entry after its document was looked for: there is no such folder, and nothing to refuse."""
    folder, listed = config.parent / "enrolled", configuration_module.folder_files
    digests: list[str] = []

    def meanwhile(where: Path, suffix: str) -> list[Path]:
        if suffix == ".toml" and not digests:
            digests.append(enroll(folder, LINEAR, "linear-acme"))
        return listed(where, suffix)

    monkeypatch.setattr(configuration_module, "folder_files", meanwhile)
    loaded = load_configuration(config)
    assert [one.subscription.digest for one in loaded.enrolled] == digests
    assert loaded.stamp == folder_stamp(folder)
