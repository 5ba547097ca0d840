"""Memory and start.

    python bench/memory.py [--events 1000000] [--soak 500000] [--only PART]

1. `queue`: what a queued event takes in the store (queue entry and dedupe keys; records apart), and what a million of them cost
   receiver and dispatcher beside an empty queue.
2. `soak`: RSS of the receiver over many deliveries, at full speed.
3. `start`: from start to the first answered delivery, beside a bare process of the same server and libraries; and `--help`.
4. `large`: how long the loop stands still while bodies over 256 KB are decoded.
"""

import argparse
import asyncio
import contextlib
import hashlib
import hmac
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

from receive import PER_S, Running, measure, prepare
from redis import Redis
from stage import ROOT, SECRET, configuration, fill, free_port, gateway, process, rss_mb, store, subscriptions, wait_for

BARE = """
import asyncio, signal, socket, sys
import cryptography.hazmat.primitives.asymmetric.rsa, redis.asyncio, uvloop
from hypercorn.asyncio import serve
from hypercorn.config import Config
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = redis.asyncio.Redis.from_url(sys.argv[2])
    await store.ping()
    config = Config()
    config.bind = ["127.0.0.1:" + sys.argv[1]]
    config.accesslog = config.errorlog = None
    await serve(app, config, shutdown_trigger=stop.wait)
uvloop.run(main())
"""
# the bare process with what the receiver's decisions are made of (architecture: tokens, settings, values), none of its own code
LIBRARIES = (
    """
import jwt, msgspec, orjson, pydantic, starlette.applications
class Settings(pydantic.BaseModel):
    bind: str
"""
    + BARE
)


def signed(number: int, size: int = 0) -> tuple[dict[str, str], bytes]:
    """A delivery that the one subscription wants."""
    example = json.loads((ROOT / "subscriptions" / "samples" / "github.json").read_text())["body"]
    example["issue"]["number"] = number
    example["issue"]["html_url"] = f"https://github.com/acme/app/issues/{number}"
    example["issue"]["labels"] = [{"name": f"label {at}", "id": at} for at in range(size // 30)]
    body = json.dumps(example, separators=(",", ":")).encode()
    headers = {
        "content-type": "application/json",
        "x-github-event": "issues",
        "x-github-delivery": str(uuid.uuid4()),
        "x-hub-signature-256": "sha256=" + hmac.digest(SECRET, body, hashlib.sha256).hex(),
    }
    return headers, body


def post(port: int, delivery: tuple[dict[str, str], bytes]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers, body = delivery
    connection.request("POST", "/hooks/github-acme", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def used(redis: Redis) -> int:
    return int(redis.info("memory")["used_memory"])


def queue(folder: Path, count: int) -> None:
    sizes: dict[str, list[float]] = {"receive": [], "dispatch": []}
    for events in (0, count):
        place = folder / str(events)
        made = subscriptions(place / "enrolled", 1000) if not place.mkdir(parents=True) else []
        lanes = [f"{one['digest']}:{next(iter(one['triggers']))}" for one in made]
        with store(place / "store") as (url, _), Redis.from_url(url) as redis:
            empty = used(redis)
            if events:
                asyncio.run(fill(url, lanes, events))
                kept = sum(redis.memory_usage(key, samples=0) or 0 for key in redis.scan_iter(match="gw:*rec:*"))
                each = (used(redis) - empty - kept) / events
                print(
                    f"   {events:,} events: {each:.0f} bytes each in the store (goal at most 650), records apart",
                    flush=True,
                )
            for role, taken in sizes.items():
                port = free_port()
                file = configuration(place, url, port, enrolled="enrolled")
                command = [sys.executable, "-m", "gateway", "serve", "--role", role, "--config", str(file)]
                with (place / "log").open("ab") as log, process(command, stderr=log, stdout=log) as started:
                    if role == "receive":
                        wait_for(port)
                        for number in range(50):
                            post(port, signed(number))
                    time.sleep(8)
                    taken.append(rss_mb(started.pid))
    for role, (without, with_) in sizes.items():
        print(f"   {role}: {without:.0f} MB with an empty queue, {with_:.0f} MB with {count:,} events", flush=True)


def soak(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    with store(folder / "store") as (url, store_pid), gateway(folder / "g", url) as (port, pid):
        server, done, seen = Running(port, pid, store_pid), 0, []
        while done < count:
            requests = prepare(folder, 2, PER_S * 10)
            run = measure(server, requests, 32, 10)
            done += round(run["rps"] * 10)
            seen.append((done, rss_mb(pid)))
            if run["refused"] or run["failed"]:
                raise SystemExit(f"{run['refused']:.0f} refused, {run['failed']:.0f} failed")
    shown = seen[:: max(1, len(seen) // 8)] + seen[-1:]
    print("   RSS: " + ", ".join(f"{number:,}: {mb:.0f} MB" for number, mb in shown), flush=True)


def first_answer_s(command: list[str], port: int, folder: Path) -> float:
    began = time.monotonic()
    with (folder / "log").open("ab") as log, process(command, stderr=log, stdout=log):
        while time.monotonic() - began < 60:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if post(port, signed(1)) == 200:
                    return time.monotonic() - began
            time.sleep(0.005)
    raise SystemExit(f"no answer: {(folder / 'log').read_text()[-1000:]}")


def start(folder: Path, rounds: int = 5) -> None:
    folder.mkdir(parents=True)
    subscriptions(folder / "enrolled", 1)
    took: dict[str, list[float]] = {"gateway": [], "bare": [], "libraries": []}
    for at in range(rounds):
        with store(folder / f"store-{at}") as (url, _):
            port = free_port()
            file = configuration(folder, url, port, enrolled="enrolled")
            command = [sys.executable, "-m", "gateway", "serve", "--role", "receive", "--config", str(file)]
            took["gateway"].append(first_answer_s(command, port, folder))
            for name, code in (("bare", BARE), ("libraries", LIBRARIES)):
                port = free_port()
                took[name].append(first_answer_s([sys.executable, "-c", code, str(port), url], port, folder))
    middle = {name: statistics.median(one) for name, one in took.items()}
    print(f"   first delivery answered by bare Hypercorn + redis + cryptography after {middle['bare']:.2f} s")
    for name, title in (
        ("gateway", "the gateway (goal at most 1.5)"),
        ("libraries", "bare with the gateway's libraries"),
    ):
        ratios = sorted(a / b for a, b in zip(took[name], took["bare"], strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        print(f"   {title}: after {middle[name]:.2f} s, {spread}", flush=True)
    helps, clicks = [], []
    for _ in range(9):
        for command, into in ((["-m", "gateway", "--help"], helps), (["-c", "import click"], clicks)):
            began = time.monotonic()
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            into.append(time.monotonic() - began)
    ratios = sorted(a / b for a, b in zip(helps, clicks, strict=True))
    print(
        f"   --help : import click {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}, goal at most 2)"
    )


def large(folder: Path) -> None:
    folder.mkdir(parents=True)
    with store(folder / "store") as (url, _), gateway(folder / "g", url, enrolled=10) as (port, _):
        post(port, signed(0))
        for size in (200_000, 1_000_000, 4_000_000):
            stop, waits = threading.Event(), []

            def ask(stop: threading.Event = stop, waits: list[float] = waits) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                while not stop.is_set():
                    began = time.monotonic()
                    connection.request("GET", "/healthz")
                    connection.getresponse().read()
                    waits.append(time.monotonic() - began)
                    time.sleep(0.001)

            deliveries = [signed(size + number, size) for number in range(12)]
            asking = threading.Thread(target=ask)
            asking.start()
            statuses = {post(port, delivery) for delivery in deliveries}
            stop.set()
            asking.join()
            waits.sort()
            print(
                f"   12 bodies of {size / 1e6:.1f} MB ({statuses}): another request waits {waits[len(waits) // 2] * 1000:.1f} ms, "
                f"99 of 100 {waits[len(waits) * 99 // 100] * 1000:.1f} ms, at most {waits[-1] * 1000:.1f} ms",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--soak", type=int, default=500_000)
    parser.add_argument("--only", default="", help="queue, soak, start or large")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gwb-") as name:
        folder = Path(name)
        for part, run in (
            ("start", lambda: start(folder / "start")),
            ("large", lambda: large(folder / "large")),
            ("queue", lambda: queue(folder / "queue", options.events)),
            ("soak", lambda: soak(folder / "soak", options.soak)),
        ):
            if options.only in {"", part}:
                print(f"-- {part}", flush=True)
                run()


if __name__ == "__main__":
    main()
