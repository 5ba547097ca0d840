"""`server.workers`: real processes that share the sockets; none of their deaths loses what was accepted."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.demo import Stage
from gateway.workers import BEAT_S, SILENT_S
from tests.e2e.test_end import dispatched, load, numbers_in

pytestmark = pytest.mark.e2e


class Several(Stage):
    """The demo's stage with three workers."""

    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.number = number

    def _configure(self) -> None:
        super()._configure()
        self.change("[server]", f"[server]\nworkers = {self.number}")

    def change(self, old: str, new: str) -> None:
        path = self.folder / "gateway.toml"
        path.write_text(path.read_text().replace(old, new, 1))

    async def until_logged(self, event: str, times: int) -> None:
        async with asyncio.timeout(60):
            while logged(self, event) < times:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)

    async def all_serving(self, times: int = 3) -> set[int]:
        """Wait until workers began to serve so many times; return those of now. One that serves answers for all."""
        await self.until_logged("serving", times)
        return set(workers(self.receiver.pid))


def workers(parent: int) -> list[int]:
    """The workers among the children of a process."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, children) if b"--worker=" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def first_serving(stage: Stage) -> None:
    """Wait for the first worker, which has the admin side."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with stage.session.get(f"{stage.admin}/healthz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X", "")
    except OSError:
        return False


async def gone(pids: list[int], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while any(map(alive, pids)):  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.05)


async def test_a_killed_worker_is_replaced_and_nothing_accepted_is_lost() -> None:
    async with Several() as stage:
        pids = list(await stage.all_serving())
        assert len(pids) == 3
        accepted: set[int] = set()

        async def again_and_again(first: int) -> None:
            for start in range(first, 100_000, 800):  # `load` ends with the worker that it spoke to
                if stage.receiver.returncode is not None or done.is_set():
                    return
                await load(stage, range(start, start + 800, 8), accepted)

        done = asyncio.Event()
        loaders = [asyncio.create_task(again_and_again(n)) for n in range(1, 9)]
        await asyncio.sleep(1.0)
        os.kill(pids[1], signal.SIGKILL)
        await asyncio.sleep(2.0)
        assert len(workers(stage.receiver.pid)) == 3
        assert pids[1] not in workers(stage.receiver.pid)
        async with stage.session.get(f"{stage.admin}/healthz") as response:  # the first worker has the admin side
            assert response.status == 200
        done.set()
        await asyncio.gather(*loaders)
        for _ in range(300):
            if accepted <= set(numbers_in(await dispatched(stage))):
                break
            await asyncio.sleep(0.2)
        assert len(accepted) > 20
        assert accepted - set(numbers_in(await dispatched(stage))) == set()
        last = workers(stage.receiver.pid)
        stage.receiver.terminate()
        assert await asyncio.wait_for(stage.receiver.wait(), 60) == 0
        await gone(last, 1)


async def test_workers_end_with_their_parent_however_that_ends() -> None:
    async with Several() as stage:
        pids = list(await stage.all_serving())
        stage.receiver.kill()
        await stage.receiver.wait()
        await gone(pids, 30)
        with pytest.raises(aiohttp.ClientError):
            await stage.session.get(f"{stage.public}/healthz")
        await stage.start_receiver()  # the sockets and the store are free again
        assert len(workers(stage.receiver.pid)) == 3


async def test_a_bad_configuration_keeps_every_worker_as_it_is() -> None:
    """SIGHUP to the supervisor: whatever the file has become, no worker ends and each goes on with the old set."""
    async with Several() as stage:
        pids, config = await stage.all_serving(), stage.folder / "gateway.toml"
        good = config.read_text()
        broken = ("[[[", good.replace('profile = "linear"', 'profile = "linaer"'), good + "[server.x]\n", "\x00")
        for number, text in enumerate(broken, 1):
            config.write_text(text)
            stage.receiver.send_signal(signal.SIGHUP)
            await stage.until_logged("reload-refused", number * len(pids))
        accepted: set[int] = set()
        await load(stage, range(1, 10), accepted)
        assert len(accepted) == 9
        config.write_text(good)
        stage.receiver.send_signal(signal.SIGHUP)
        await stage.until_logged("reloaded", len(pids))
        assert set(workers(stage.receiver.pid)) == pids


async def test_a_worker_that_ends_while_the_file_is_bad_leaves_the_others_serving() -> None:
    """It cannot start again before the file is mended, and then does by itself; until then the others take all."""
    async with Several() as stage:
        pids, config = await stage.all_serving(), stage.folder / "gateway.toml"
        good = config.read_text()
        config.write_text("[[[")
        ended = min(pids)
        os.kill(ended, signal.SIGKILL)
        await stage.until_logged("worker-ended", 3)  # it was refused twice
        accepted: set[int] = set()
        await load(stage, range(1, 10), accepted)
        assert len(accepted) == 9
        assert pids - {ended} <= set(workers(stage.receiver.pid))
        config.write_text(good)
        now = await stage.all_serving(4)
        assert len(now) == 3
        assert pids - {ended} <= now


@pytest.mark.parametrize("number", [3, 8])
async def test_workers_that_all_find_the_file_bad_end_as_one_process_does(number: int) -> None:
    """However many: one that is yet to find it bad does not count for one that serves."""
    async with Several(number) as stage:
        pids, config = await stage.all_serving(number), stage.folder / "gateway.toml"
        config.write_text("[[[")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert await asyncio.wait_for(stage.receiver.wait(), 60) == 2


async def test_each_of_many_workers_may_end_once() -> None:
    """What ends again and again is one worker; that each of seven was killed, for memory say, is no reason to end all."""
    async with Several(7) as stage:
        for pid in await stage.all_serving(7):
            os.kill(pid, signal.SIGKILL)
        assert len(await stage.all_serving(14)) == 7
        accepted: set[int] = set()
        await load(stage, range(1, 10), accepted)
        assert len(accepted) == 9


async def test_one_worker_that_ends_again_and_again_ends_all() -> None:
    async with Several(2) as stage:
        await stage.all_serving(2)
        for number in range(6):
            first = min(workers(stage.receiver.pid), key=number_of)
            os.kill(first, signal.SIGKILL)
            await stage.until_logged("worker-ended", number + 1)
            if number < 5:
                await stage.all_serving(3 + number)
        assert await asyncio.wait_for(stage.receiver.wait(), 60) == 3


@pytest.mark.parametrize("all_end", [False, True])
async def test_a_worker_joins_no_other_store_than_the_rest_run_on(all_end: bool) -> None:
    """A store that was changed in the file needs a restart: of two, each takes for new what the other knows."""
    async with Several() as stage:
        pids = sorted(await stage.all_serving(), key=number_of)
        stage.change('embedded = "store"', 'embedded = "other"')
        stage.receiver.send_signal(signal.SIGHUP)
        await stage.until_logged("reload-needs-restart", 3)
        for pid in pids if all_end else pids[:1]:
            os.kill(pid, signal.SIGKILL)
        if all_end:  # to be started anew, on the store that the file names by now
            assert await asyncio.wait_for(stage.receiver.wait(), 60) == 3
        else:
            await stage.until_logged("start-refused", 2)
            accepted: set[int] = set()
            await load(stage, range(1, 10), accepted)
            assert len(accepted) == 9
            stage.change('embedded = "other"', 'embedded = "store"')
            assert len(await stage.all_serving(4)) == 3
        assert not (stage.folder / "other").exists()


async def test_a_worker_that_the_system_cannot_start_is_started_when_it_can() -> None:
    """No descriptor is free for the supervisor: that ends nobody who serves, nor the store under them."""
    async with Several() as stage:
        pids, supervisor = await stage.all_serving(), stage.receiver.pid
        limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(max(pids, key=number_of), signal.SIGKILL)
        await stage.until_logged("worker-unstarted", 2)
        accepted: set[int] = set()
        await load(stage, range(1, 10), accepted)
        assert len(accepted) == 9
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        assert len(await stage.all_serving(4)) == 3


async def test_a_worker_that_hangs_is_replaced() -> None:
    """It holds its connections and says nothing; the others go on, and what it had accepted is in the store."""
    async with Several() as stage:
        pids = await stage.all_serving()
        hung = max(pids, key=number_of)
        os.kill(hung, signal.SIGSTOP)
        await stage.until_logged("worker-hung", 1)
        now = await stage.all_serving(4)
        assert len(now) == 3
        assert pids - now == {hung}


async def test_a_supervisor_that_stood_still_kills_nobody() -> None:
    async with Several() as stage:
        pids = await stage.all_serving()
        stage.receiver.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * SILENT_S + 2)
        stage.receiver.send_signal(signal.SIGCONT)
        await asyncio.sleep(2 * BEAT_S)
        assert set(workers(stage.receiver.pid)) == pids
        assert logged(stage, "worker-hung") == 0


class Bare(Several):
    """Two workers, of a start without some of the standard streams."""

    def __init__(self, closed: tuple[int, ...]) -> None:
        super().__init__(2)
        self.closed = closed

    async def spawn(self, *arguments: str, stderr: Any = None) -> asyncio.subprocess.Process:
        if "serve" not in arguments:
            return await super().spawn(*arguments, stderr=stderr)
        code = f"import os, sys; [os.close(n) for n in {self.closed}]; os.execv(sys.executable, sys.orig_argv[:1] + sys.argv[1:])"
        return await super().spawn("-c", code, *arguments, stderr=stderr)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
async def test_a_start_without_standard_streams(closed: tuple[int, ...]) -> None:
    """What is bound first must not get their numbers: each worker has other ones under these."""
    async with Bare(closed) as stage:
        await first_serving(stage)
        accepted: set[int] = set()
        await load(stage, range(1, 10), accepted)
        assert len(accepted) == 9
        assert len(workers(stage.receiver.pid)) == 2
        stage.receiver.terminate()
        assert await asyncio.wait_for(stage.receiver.wait(), 60) == 0
        assert logged(stage, "worker-ended") == 0


async def test_workers_end_at_once_while_one_of_them_waits_to_be_started_again() -> None:
    async with Several() as stage:
        pids, config = await stage.all_serving(), stage.folder / "gateway.toml"
        config.write_text("[[[")
        os.kill(min(pids), signal.SIGKILL)
        await stage.until_logged("worker-ended", 2)  # now it waits for the file to be mended
        stage.receiver.terminate()
        assert await asyncio.wait_for(stage.receiver.wait(), 20) == 0


def number_of(pid: int) -> int:
    """A worker's number, from its command line."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return int(command.partition(b"--worker=")[2].partition(b":")[0])


def logged(stage: Stage, event: str) -> int:
    return (stage.folder / "gateway.log").read_text().count(f'"event":"{event}"')


async def test_one_metrics_page_counts_for_all_workers() -> None:
    async with Several() as stage:
        await stage.all_serving()
        sample = next(s for s in stage.samples if s["source"] == "linear-acme")
        sent = 40

        async def send() -> None:
            headers, body = stage.signed(sample, time.time())
            headers["connection"] = "close"  # a new connection each time, for whichever worker takes it
            async with stage.session.post(f"{stage.public}/hooks/linear-acme", data=body, headers=headers) as response:
                assert response.status == 200

        for _ in range(sent // 8):
            await asyncio.gather(*(send() for _ in range(8)))  # one worker is still busy where another could take it
        end, counted = time.monotonic() + 10, 0.0
        while counted < sent and time.monotonic() < end:
            await asyncio.sleep(0.5)
            async with stage.session.get(f"{stage.admin}/metrics") as response:
                page = await response.text()
            lines = [line for line in page.splitlines() if line.startswith("gateway_deliveries_total{")]
            counted = sum(float(line.rpartition(" ")[2]) for line in lines)
        assert counted == sent
        assert len(lines) > 1


class Loud(Several):
    """Sends SIGHUP again and again, from the first instant at which it is held."""

    storms = 0

    async def storm(self, until: asyncio.Event) -> None:
        while not until.is_set():
            receiver = getattr(self, "receiver", None)
            if receiver is not None and held(receiver.pid):
                receiver.send_signal(signal.SIGHUP)
                self.storms += 1
            await asyncio.sleep(0.002)


def held(pid: int) -> bool:
    """Whether SIGHUP waits (SigBlk) or is taken (SigCgt): https://man7.org/linux/man-pages/man5/proc_pid_status.5.html."""
    try:
        lines = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
    except OSError:
        return False
    return bool((int(lines["SigBlk"], 16) | int(lines["SigCgt"], 16)) & 1)


@pytest.mark.parametrize("number", [1, 2])
async def test_a_storm_of_hangups_ends_no_process(number: int) -> None:
    stage, done = Loud(number), asyncio.Event()
    storm = asyncio.create_task(stage.storm(done))
    async with stage:
        accepted: set[int] = set()
        await load(stage, range(1, 60), accepted)
        done.set()
        await storm
        assert stage.storms > 20
        assert len(accepted) == 59
        log = (stage.folder / "gateway.log").read_text()
        assert '"reloaded"' in log
        assert '"worker-ended"' not in log
        stage.receiver.send_signal(signal.SIGHUP)
        stage.receiver.terminate()
        stage.receiver.send_signal(signal.SIGHUP)
        assert await asyncio.wait_for(stage.receiver.wait(), 60) == 0
