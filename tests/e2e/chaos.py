"""The stage of the chaos suite: receiver, dispatcher, store and GitHub's double as processes, load with known ids, faults.

`python -m tests.e2e.chaos --rounds N` runs every fault N times and prints a table; `make chaos` does that, on one engine. A round posts
numbered events from six signers, injects one fault, waits until the queue is empty, and has the auditor compare. The longest
recovery is the longest time from an event's first post to its dispatch, the fault itself included.
"""

import argparse
import asyncio
import contextlib
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from redis.exceptions import RedisError

from gateway.demo import Stage
from gateway.signing import prepare, sign
from tests import snapshots
from tests.auditor import Dispatched, Finding, History, Posted, Snapshot, audit, structure
from tests.topology import Node, Watched, port_of_ours, wait, watched

SOURCES = ("github-acme", "linear-acme", "gitlab-acme")
SIGNERS = 2  # of each source
DRAIN_S = 100.0
NUMBER = re.compile(r"(?:issues/|ENG-|merge_requests/)(\d+)$")
CLOCK = Path(__file__).parent / "clock"


class Proxy:
    """A TCP proxy that delays, drops or truncates what passes through it."""

    def __init__(self) -> None:
        self.port = port_of_ours()
        self.target = 0
        self.delay_s = 0.0
        self.drop = False
        self.truncate = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, outer}
        self._writers |= pair
        await asyncio.gather(self._copy(reader, outer, pair), self._copy(inner, writer, pair))
        self._writers -= pair

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: set[asyncio.StreamWriter]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(random.uniform(0, self.delay_s))
                if self.drop:
                    continue
                if self.truncate and random.random() < 0.2:
                    writer.write(data[: len(data) // 2])
                    break
                writer.write(data)
                await writer.drain()
        for one in pair:
            one.transport.abort()


@dataclass
class Account:
    """What the outside world knows: posts and their answers."""

    posted: dict[str, Posted] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def accepted(self) -> int:
        return sum(one.answered is not None for one in self.posted.values())


@dataclass
class Row:
    """One line of the table."""

    fault: str
    runs: int = 0
    accepted: int = 0
    dispatched: int = 0
    twice: int = 0
    lost: int = 0
    other: int = 0
    recovery_s: float = 0.0


class Chaos(Stage):
    """Receiver and dispatcher in processes of their own, on a store behind a proxy (or under Sentinel)."""

    def __init__(self, servers: Watched | None = None, engine: str = "hypercorn") -> None:
        super().__init__(engine)
        self.samples = [sample for sample in self.samples if sample["source"] in SOURCES]
        self.public, self.admin = (f"http://127.0.0.1:{port_of_ours()}" for _ in range(2))
        self.node = Node()
        self.proxy = Proxy()
        self.servers = servers
        self.parts: dict[str, asyncio.subprocess.Process] = {}
        self.binds = {"receive": self.admin.removeprefix("http://"), "dispatch": f"127.0.0.1:{port_of_ours()}"}
        self.clock = Path(tempfile.mkdtemp(prefix="gateway-clock-")) / "offset"
        self.clock.write_bytes(struct.pack("d", 0.0))
        self.account = Account()
        self.taken_at: dict[str, float] = {}
        self.numbers = iter(range(1, 10_000_000))

    async def __aenter__(self) -> Self:
        if self.servers is None:
            self.node.start()
            self.proxy.target = self.node.port
            await self.proxy.start()
        try:
            return await super().__aenter__()
        except BaseException:
            await self._close_store()
            raise

    async def __aexit__(self, *raised: object) -> None:
        for part in self.parts.values():
            if part.returncode is None:
                part.send_signal(signal.SIGCONT)
        await super().__aexit__(*raised)
        await self._close_store()

    async def _close_store(self) -> None:
        await self.proxy.stop()
        self.node.close()
        shutil.rmtree(self.clock.parent, ignore_errors=True)

    def _configure(self) -> None:
        super()._configure()
        config = self.folder / "gateway.toml"
        url = self.servers.url if self.servers else f"redis://127.0.0.1:{self.proxy.port}/0"
        store = f'url = "{url}"' + ("\nwait_replicas = 1" if self.servers else "")
        config.write_text(config.read_text().replace('embedded = "store"', store))

    async def start_receiver(self) -> None:
        for role in self.binds:
            await self.start_part(role)

    async def start_part(self, role: str) -> None:
        """Start one process and wait until it is up."""
        before = dict(os.environ)
        os.environ.update({"PYTHONPATH": f"{CLOCK}{os.pathsep}{Path.cwd()}", "CHAOS_CLOCK": str(self.clock)})
        try:
            with (self.folder / f"{role}.log").open("ab") as log:
                config = str(self.folder / "gateway.toml")
                arguments = ("serve", "--config", config, "--role", role, "--admin-bind", self.binds[role])
                self.parts[role] = await self.spawn("-m", "gateway", *arguments, stderr=log)
        finally:
            os.environ.clear()
            os.environ.update(before)
        if role == "receive":
            self.receiver = self.parts[role]
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError):
                async with self.session.get(f"http://{self.binds[role]}/healthz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)
        raise RuntimeError((self.folder / f"{role}.log").read_text()[-4000:])

    async def kill_part(self, role: str) -> None:
        self.parts[role].kill()
        await self.parts[role].wait()

    def step_clock(self, seconds: float) -> None:
        with self.clock.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def store_node(self) -> Node:
        return self.servers.primary() if self.servers else self.node

    # -- load

    def _numbered(self, source: str, number: int) -> dict[str, Any]:
        sample = copy.deepcopy(next(s for s in self.samples if s["source"] == source))
        ident = str(uuid.uuid4())
        sample["headers"] = {k: ident if v == "$uuid" else v for k, v in sample["headers"].items()}
        body = sample["body"]
        if source == "github-acme":
            body["issue"] |= {"number": number, "html_url": f"https://github.com/acme/app/issues/{number}"}
            body["issue"]["created_at"] = "2026-01-01T00:00:00Z"
        elif source == "linear-acme":
            body["data"] |= {"number": number, "identifier": f"ENG-{number}"}
            body["url"] = f"https://linear.app/acme/issue/ENG-{number}"
        else:
            body["object_attributes"]["iid"] = number
            body["object_attributes"]["url"] = f"https://gitlab.com/acme/tools/widgets/-/merge_requests/{number}"
        return sample

    async def _post(self, source: str, sample: Mapping[str, Any]) -> tuple[int | None, str]:
        profile, secret = self.profiles[sample["profile"]], self.secrets[source]
        headers, body = prepare(profile, sample, secret, time.time())
        headers = sign(profile, headers, body, secret)
        try:
            async with self.session.post(
                f"{self.public}/hooks/{source}", data=body, headers=headers, timeout=aiohttp.ClientTimeout(total=6)
            ) as response:
                self.account.statuses[str(response.status)] += 1
                return response.status, response.headers.get("gateway-delivery", "")
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.account.statuses["none"] += 1
            return None, ""

    async def sign_and_send(self, source: str, stop: asyncio.Event) -> None:
        """One signer: numbered events, each sent until it is answered 2xx, some of them twice."""
        account = self.account
        while not stop.is_set():
            number = next(self.numbers)
            event, sample = f"{source}:{number}", self._numbered(source, number)
            posted = time.monotonic()
            account.posted[event] = Posted(event, source, posted, None)
            while not stop.is_set():
                status, delivery = await self._post(source, sample)
                if status is not None and 200 <= status < 300:
                    if account.posted[event].answered is None:
                        account.posted[event] = Posted(event, source, posted, time.monotonic())
                    account.answers.setdefault(event, []).append(delivery)
                    if len(account.answers[event]) > 1 or random.random() > 0.1:
                        break
                else:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(random.uniform(0.005, 0.02))

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        signers = [asyncio.create_task(self.sign_and_send(s, stop)) for s in SOURCES for _ in range(SIGNERS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*signers)

    # -- what became of it

    async def taken(self) -> list[Dispatched]:
        async with self.session.get(f"{self.github}/_double/dispatches") as response:
            entries = (await response.json())["dispatches"]
        apart = time.time() - time.monotonic()
        found = []
        for entry in entries:
            body = entry["body"]["client_payload"]["gateway"]
            found.append(Dispatched(body["dispatch"], tuple(self._event(e) for e in body["events"])))
            for event in found[-1].events:
                self.taken_at.setdefault(event, entry["received_at"] - apart)
        return found

    def longest(self, events: set[str]) -> float:
        """The longest time from the first post of one of these events to its dispatch."""
        posted = self.account.posted
        return max((self.taken_at[e] - posted[e].posted for e in events if e in self.taken_at), default=0.0)

    def _event(self, event: Mapping[str, Any]) -> str:
        url = str(event["url"])
        source = "github-acme" if "github" in url else "linear-acme" if "linear" in url else "gitlab-acme"
        found = NUMBER.search(url)
        assert found is not None, url
        return f"{source}:{found[1]}"

    def snapshot(self) -> list[Snapshot]:
        with self.store_node().client() as client:
            return [snapshots.take(client, source) for source in SOURCES]

    def _named(self, batches: list[Dispatched]) -> list[Dispatched]:
        return [Dispatched(b.dispatch, tuple(self._event(json.loads(e)) for e in b.events)) for b in batches]

    async def history(self) -> tuple[History, list[Snapshot]]:
        found = await asyncio.to_thread(self.snapshot)
        queued = [batch for one in found for batch in snapshots.batches(one, "queued", "sending", "asked")]
        dead = [batch for one in found for batch in snapshots.batches(one, "dead")]
        history = History(
            posted=list(self.account.posted.values()),
            answers=self.account.answers,
            taken=await self.taken(),
            dead=self._named(dead),
            sealed=self._named(queued),
            waiting=[self._event(json.loads(event)) for one in found for event in snapshots.waiting(one)],
        )
        return history, found

    async def drain(self) -> float:
        """Wait until nothing is queued; return how long it took."""
        began = time.monotonic()
        while time.monotonic() - began < DRAIN_S:
            with contextlib.suppress(RedisError, OSError):
                if not await asyncio.to_thread(self._queued):
                    return time.monotonic() - began
            await asyncio.sleep(0.2)
        raise TimeoutError(f"still queued after {DRAIN_S} s: {self.parts}")

    def _queued(self) -> bool:
        with self.store_node().client() as client:
            return any(client.exists(f"gw:{{{source}}}:ready") for source in SOURCES)

    async def count(self) -> int:
        async with self.session.get(f"{self.github}/_double/state") as response:
            return int((await response.json())["dispatches"])

    async def recovered(self) -> float:
        """Return how long it takes until another delivery is accepted and another dispatch taken."""
        began, accepted, taken = time.monotonic(), self.account.accepted, await self.count()
        while time.monotonic() - began < DRAIN_S:
            if self.account.accepted > accepted and await self.count() > taken:
                return time.monotonic() - began
            await asyncio.sleep(0.05)
        raise TimeoutError("nothing goes through")

    async def audited(self) -> tuple[History, list[Finding]]:
        history, found = await self.history()
        return history, [*audit(history), *(finding for one in found for finding in structure(one))]

    async def script(self, *answers: Mapping[str, Any]) -> None:
        for repo in {self._subscription(sample)["repository"] for sample in self.samples}:
            script = {"repo": repo, "answers": list(answers)}
            async with self.session.post(f"{self.github}/_double/script", json=script) as response:
                response.raise_for_status()


# -- faults: each injects, holds, and heals

Fault = Callable[[Chaos], Awaitable[None]]


async def receiver_killed(stage: Chaos) -> None:
    await stage.kill_part("receive")
    await stage.start_part("receive")


async def dispatcher_killed(stage: Chaos) -> None:
    await stage.kill_part("dispatch")
    await stage.start_part("dispatch")


async def store_killed(stage: Chaos) -> None:
    stage.node.kill()
    await asyncio.sleep(0.3)
    await asyncio.to_thread(stage.node.start)


@contextmanager
def stopped(send: Callable[[int], None]) -> Iterator[None]:
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


async def receiver_stopped(stage: Chaos) -> None:
    with stopped(stage.parts["receive"].send_signal):
        await asyncio.sleep(2)


async def dispatcher_stopped(stage: Chaos) -> None:
    with stopped(stage.parts["dispatch"].send_signal):
        await asyncio.sleep(2)


async def dispatcher_stopped_past_its_leases(stage: Chaos) -> None:
    with stopped(stage.parts["dispatch"].send_signal):
        await asyncio.sleep(33)


async def store_stopped(stage: Chaos) -> None:
    with stopped(stage.node.signal):
        await asyncio.sleep(3)


async def github_cuts_after_accepting(stage: Chaos) -> None:
    await stage.script(*[{"taken": True, "cut": True}] * 3)
    await asyncio.sleep(1)


async def github_fails(stage: Chaos) -> None:
    await stage.script(
        {"status": 401},
        {"status": 401},
        {"status": 500},
        {"status": 403, "headers": {"retry-after": "1"}},
        {"status": 429, "headers": {"retry-after": "1"}},
        {"status": 422},
        {"cut": True},
        {"status": 502},
    )
    await asyncio.sleep(3)


async def network_delays(stage: Chaos) -> None:
    stage.proxy.delay_s = 1.5
    await asyncio.sleep(3)
    stage.proxy.delay_s = 0.0


async def network_drops(stage: Chaos) -> None:
    stage.proxy.drop = True
    await asyncio.sleep(3)
    stage.proxy.drop = False
    stage.proxy.cut()


async def network_truncates(stage: Chaos) -> None:
    stage.proxy.truncate = True
    await asyncio.sleep(3)
    stage.proxy.truncate = False


async def clock_steps(stage: Chaos) -> None:
    for seconds in (40.0, -40.0, 0.0):
        stage.step_clock(seconds)
        await asyncio.sleep(1)


async def disk_full(stage: Chaos) -> None:
    """The append-only file cannot grow: its server ends in the middle of a write, as on a full disk."""
    process = stage.node.process
    assert process is not None
    size = max(file.stat().st_size for file in stage.node.folder.rglob("*.aof"))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 4_000, resource.RLIM_INFINITY))
    for _ in range(100):
        if process.poll() is not None:
            break
        await asyncio.sleep(0.05)
    stage.node.kill()
    await asyncio.to_thread(stage.node.start)


async def failover(stage: Chaos) -> None:
    """The primary is killed; a replica takes over; the old one comes back as a replica."""
    assert stage.servers is not None
    old = stage.servers.primary()
    old.kill()
    await asyncio.to_thread(
        wait, lambda: stage.servers is not None and stage.servers.primary() is not old, "failover", 40
    )
    await asyncio.to_thread(old.start)
    await asyncio.to_thread(wait, lambda: stage.servers is not None and stage.servers.settled(2), "replicas", 40)


FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", " "): fault
    for fault in (
        receiver_killed,
        store_killed,
        receiver_stopped,
        dispatcher_stopped,
        store_stopped,
        github_cuts_after_accepting,
        github_fails,
        network_delays,
        network_drops,
        network_truncates,
        clock_steps,
        disk_full,
        dispatcher_killed,
    )
}
LONG_FAULTS = {**FAULTS, "dispatcher stopped past its leases": dispatcher_stopped_past_its_leases}


async def strike(stage: Chaos, fault: Fault) -> None:
    """Inject one fault under load, and go on until something goes through again."""
    await asyncio.sleep(0.7)
    await fault(stage)
    await stage.recovered()


async def run(stage: Chaos, row: Row, fault: Fault) -> list[Finding]:
    """One round: load, fault, drain, audit."""
    before, known = stage.account.accepted, set(stage.account.posted)
    events = len({e for b in await stage.taken() for e in b.events})
    async with stage.load():
        await strike(stage, fault)
    await stage.drain()
    history, found = await stage.audited()
    row.recovery_s = max(row.recovery_s, stage.longest(stage.account.posted.keys() - known))
    row.runs += 1
    row.accepted += stage.account.accepted - before
    row.dispatched += len({e for b in history.taken for e in b.events}) - events
    kinds = Counter(finding.kind for finding in found)
    row.twice, row.lost = row.twice + kinds["twice"], row.lost + kinds["lost"]
    row.other += kinds.total() - kinds["twice"] - kinds["lost"]
    return found


def table(rows: list[Row]) -> str:
    """The rows for eyes."""
    lines = [
        "| fault | runs | accepted | dispatched | duplicate dispatch ids | lost | other findings | longest recovery |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {r.fault} | {r.runs} | {r.accepted} | {r.dispatched} | {r.twice} | {r.lost} | {r.other} | {r.recovery_s:.1f} s |"
        for r in rows
    ]
    return "\n".join(lines)


async def main(rounds: int, only: str, engine: str) -> int:
    """Run every fault `rounds` times; return 1 where a promise was broken."""
    rows, broken = [], 0
    for name, fault in [*LONG_FAULTS.items(), ("sentinel failover", failover)]:
        if only not in name:
            continue
        row = Row(name)
        rows.append(row)
        with watched() if fault is failover else contextlib.nullcontext() as servers:
            async with Chaos(servers, engine) as stage:
                for _ in range(rounds):
                    found = await run(stage, row, fault)
                    if found:
                        broken += 1
                        print(f"{name}: {found[:5]}", file=sys.stderr)
                        break  # what is broken once is counted once
        print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="a part of a fault's name")
    parser.add_argument("--engine", choices=["hypercorn", "uvicorn"], default="hypercorn")
    arguments = parser.parse_args()
    raise SystemExit(asyncio.run(main(arguments.rounds, arguments.only, arguments.engine)))
