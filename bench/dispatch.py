"""The dispatch path against a double of GitHub that answers at once, in 200 ms, or with a limit.

    python bench/dispatch.py [--scale 10] [--only PART]

1. Dispatches a second and CPU per 1,000 for 1 and for 1,000 subscriptions.
2. One installation at its limit: what the others are slowed to.
3. 80 calls a minute, a burst of 10,000 events over 20 subscriptions: how many calls, and how long that takes. The minute is
   shortened `--scale` times, the limit of 80 stays; the calls are what counts, and the time is scaled back.
"""

import argparse
import asyncio
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stage import ROOT, configuration, cpu_s, fill, free_port, process, rss_mb, store, subscriptions, wait_for

BATCH = 20  # events of one dispatch at most


@dataclass(frozen=True)
class GitHub:
    """How the double behaves."""

    delay_s: float = 0.0
    limit: int = 0
    window_s: float = 60.0
    limited: int = 0


@dataclass
class House:
    """A store, a double and a dispatcher."""

    url: str
    api: str
    lanes: list[str]
    pid: int
    store_pid: int
    log: Path

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.api}/_bench") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def wait(self, done: int, key: str = "events", within_s: float = 900) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while time.monotonic() < end and ") Z " not in Path(f"/proc/{self.pid}/stat").read_text():
            if b'"dispatch-dead"' in self.log.read_bytes():
                break  # it will never be done
            counts = self.counts()
            if counts[key] >= done:
                return counts
            time.sleep(0.05)
        tail = self.log.read_text()[-2000:]
        raise SystemExit(
            f"the dispatcher has ended, gave something up, or was not done in time: {self.counts()}\n{tail}"
        )


@contextlib.contextmanager
def house(folder: Path, github: GitHub, count: int, installations: int, each: int, *, before: bool) -> Iterator[House]:
    """Set up; the events are queued before the dispatcher starts, or as a burst while it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subscriptions(folder / "enrolled", count, installations, all_wanted=True)
    lanes = [f"{document['digest']}:{next(iter(document['triggers']))}" for document in made]
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        url, store_pid = stack.enter_context(store(folder / "store"))
        config = configuration(folder, url, free_port(), enrolled="enrolled", api_url=api)
        public = folder / "key.pub"
        subprocess.run(
            ["openssl", "rsa", "-in", str(folder / "key.pem"), "-pubout", "-out", str(public)],
            check=True,
            capture_output=True,
        )
        shape = [github.delay_s, github.limit, github.window_s, github.limited, installations, count]
        command = [sys.executable, str(ROOT / "bench" / "peers" / "github.py"), str(port), str(public)]
        stack.enter_context(process(command + [str(one) for one in shape]))
        wait_for(port)
        if before:
            asyncio.run(fill(url, lanes, each * count))
        log = stack.enter_context((folder / "gateway.log").open("ab"))
        command = [sys.executable, "-m", "gateway", "serve", "--role", "dispatch", "--config", str(config)]
        started = stack.enter_context(process(command, stderr=log, stdout=log))
        found = House(url, api, lanes, started.pid, store_pid, folder / "gateway.log")
        if not before:
            while b'"serving"' not in (folder / "gateway.log").read_bytes():
                time.sleep(0.02)
            asyncio.run(fill(url, lanes, each * count))
        yield found


def speed(folder: Path, delay_s: float, count: int, each: int) -> None:
    began = time.time()
    with house(folder, GitHub(delay_s), count, min(50, count), each, before=True) as running:
        first = running.wait(1)
        began = time.time() - 0.05
        used = cpu_s(running.pid), cpu_s(running.store_pid)
        done = running.wait(count * each)
        took = max(done["last"] - began, 0.001)
        calls = done["calls"]["204"] - first["calls"]["204"]
        cpu, kept = cpu_s(running.pid) - used[0], cpu_s(running.store_pid) - used[1]
        print(
            f"   {delay_s * 1000:3.0f} ms, {count:5} subscriptions, {each} events each: {calls / took:6.0f} dispatches/s "
            f"({(done['events'] - first['events']) / took:.0f} events/s), CPU {cpu / calls * 1000:.2f} + store "
            f"{kept / calls * 1000:.2f} s per 1,000 dispatches, {rss_mb(running.pid):.0f} MB",
            flush=True,
        )


def others(folder: Path, limited: int) -> float:
    """Return the seconds that the installations other than 1 take for 400 dispatches, 100 ms each."""
    with house(folder, GitHub(0.1, limited=limited), 200, 5, 2, before=False) as running:
        began = time.time()
        running.wait(160 if limited else 200, "others")
        return time.time() - began


def limited(folder: Path, scale: float) -> None:
    count, each, limit = 20, 500, 80
    with house(folder, GitHub(limit=limit, window_s=60 / scale), count, 1, each, before=False) as running:
        began = time.time()
        done = running.wait(count * each)
        took = done["last"] - began
        calls, refused = done["calls"]["204"], done["calls"].get("refused", 0)
        fewest = count * (1 + math.ceil((each - 1) / BATCH))
        print(
            f"   {calls} calls took {done['events']} events (full batches: {count * each // BATCH}; one more for each subscription's first: {fewest}), {refused} calls refused; "
            f"{took:.0f} s with a window of {60 / scale:.0f} s, so about {took * scale / 60:.1f} minutes; sizes {done['sizes']}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=10)
    parser.add_argument("--only", default="", help="speed, others or limited")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gwb-") as name:
        folder = Path(name)
        if options.only in {"", "speed"}:
            print("-- dispatches a second")
            for delay_s in (0.0, 0.2):
                for count, each in ((1, 2000), (1000, 2)):
                    speed(folder / f"s{count}-{delay_s}", delay_s, count, each)
        if options.only in {"", "others"}:
            print("-- one of five installations at its limit")
            free, held = others(folder / "free", 0), others(folder / "held", 1)
            print(f"   200 lanes, all free: {free:.1f} s; 160 lanes, the other 40 refused for a minute: {held:.1f} s")
        if options.only in {"", "limited"}:
            print("-- 80 calls a minute, 10,000 events over 20 subscriptions")
            limited(folder / "limited", options.scale)


if __name__ == "__main__":
    main()
