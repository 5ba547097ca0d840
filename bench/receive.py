"""The receive path against its peers, interleaved on one machine: ratios with their spread.

    python bench/receive.py [--pairs 5] [--seconds 4] [--only PART] [--check] [--json]

Each row compares two servers: runs alternate, a ratio is taken of each pair, and the median of the pairs counts. So what else
the machine does meets both. CPU is user and system seconds of the whole process tree. `--check` exits 1 where a row with a
floor is below it by more than its own spread. Needs wrk; peers that are not installed are left out, with the command that
installs them.
"""

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stage import ROOT, SECRET, cpu_s, free_port, gateway, process, rss_mb, store, wait_for

PEERS = ROOT / "bench" / "peers"
PYTHON_PEERS = PEERS / "python"
PER_S = 9_000  # requests prepared for each second: none is sent twice


class Missing(Exception):  # noqa: N818 (told to whoever runs it)
    """A tool that is not installed, with the command that installs it."""


@dataclass(frozen=True)
class Side:
    """A server and how it is loaded."""

    kind: str = "gateway"
    engine: str = "hypercorn"
    enrolled: int = 1000
    workers: int = 1
    fsync: str = "everysec"
    forged: bool = False

    def __str__(self) -> str:
        if self.kind == "ceiling":
            return f"{self.engine.capitalize()} + Starlette, body read"
        if self.kind == "least":
            return f"least work ({self.engine.capitalize()})"
        if self.kind != "gateway":
            return {"node": "Node, durable", "gidgethub": "gidgethub, durable", "webhook": "webhook (Go)"}[self.kind]
        marks = [
            *([self.engine.capitalize()] if self.engine != "hypercorn" else []),
            *([f"{self.enrolled:,} enrolled"] if self.enrolled != 1000 else []),
            *([f"{self.workers} workers"] if self.workers != 1 else []),
            *([self.fsync] if self.fsync != "everysec" else []),
            *(["forged"] if self.forged else []),
        ]
        return "gateway" + (f" ({', '.join(marks)})" if marks else "")


@dataclass(frozen=True)
class Row:
    """A comparison. `goals` and `floors`: measure to bound; CPU and p99 are wanted low, requests per second high.

    A goal is what was set out for; a floor is what this version holds, and what `--check` guards.
    """

    ours: Side
    theirs: Side
    size_kb: int = 8
    connections: int = 32
    goals: tuple[tuple[str, float], ...] = ()
    floors: tuple[tuple[str, float], ...] = ()


GATEWAY, CEILING = Side(), Side("ceiling")
FAST = Side(engine="uvicorn")
ROWS = (
    Row(GATEWAY, CEILING, 2),
    Row(
        GATEWAY,
        CEILING,
        8,
        goals=(("rps", 0.80), ("cpu", 1.30), ("p99", 2.0)),
        floors=(("rps", 0.44), ("cpu", 2.2), ("p99", 3.0)),
    ),
    Row(GATEWAY, CEILING, 25, goals=(("rps", 0.65),), floors=(("rps", 0.42),)),
    Row(GATEWAY, CEILING, 8, 128),
    Row(Side(workers=2), GATEWAY, 8, 128, goals=(("rps", 1.6),), floors=(("rps", 1.6),)),
    Row(Side(fsync="always"), GATEWAY, goals=(("rps", 0.85),), floors=(("rps", 0.85),)),
    Row(Side(enrolled=10_000), Side(enrolled=10), goals=(("cpu", 1.5),), floors=(("cpu", 1.5),)),
    Row(Side(forged=True), GATEWAY, goals=(("cpu", 0.6),), floors=(("cpu", 0.65),)),
    Row(FAST, Side("ceiling", "uvicorn")),
    Row(FAST, GATEWAY, floors=(("cpu", 0.65),)),
    Row(FAST, Side("node"), goals=(("rps", 1.0),), floors=(("rps", 0.40),)),
    Row(GATEWAY, Side("node")),
    Row(Side("least"), CEILING),
    Row(Side("least"), CEILING, 25),
    Row(Side("least", "uvicorn"), Side("node")),
    Row(GATEWAY, Side("gidgethub")),
    Row(GATEWAY, Side("webhook")),
)
LOW = ("cpu", "p99")  # measures that are better low
WORDS = {"rps": "requests/s", "cpu": "CPU", "p99": "p99"}


def sample_body(size_bytes: int) -> bytes:
    """A GitHub `issues` body of about this size, with `@NONCE@` where each request differs."""
    example = json.loads((ROOT / "subscriptions" / "samples" / "github.json").read_text())["body"]
    example["issue"]["body"] = "@NONCE@"
    example["issue"]["created_at"] = "2026-01-01T00:00:00Z"
    parts = ("avatar", "html", "followers", "following", "gists", "starred", "subscriptions", "organizations", "repos")
    user = {"login": "octo-user", "id": 583231, "type": "User", "site_admin": False}
    user |= {f"{name}_url": f"https://api.github.com/users/octo-user/{name}" for name in parts}
    example["issue"]["assignees"] = []
    while len(json.dumps(example, separators=(",", ":"))) < size_bytes:
        example["issue"]["assignees"].append(user)
    return json.dumps(example, separators=(",", ":"), ensure_ascii=False).encode()


def prepare(folder: Path, size_kb: int, count: int, *, forged: bool = False) -> Path:
    """Write what wrk sends: a body, and an id, a signature and a nonce for each request."""
    body = sample_body(size_kb * 1000)
    file = folder / f"requests-{size_kb}"
    file.with_suffix(".body").write_bytes(body)
    with file.open("w") as out:
        for number in range(count):
            nonce = f"{os.getpid()}-{time.monotonic_ns()}-{number:08d}"
            signed = hmac.digest(SECRET, body.replace(b"@NONCE@", nonce.encode()), hashlib.sha256).hex()
            out.write(f"{uuid.uuid4()} {'0' * 64 if forged else signed} {nonce}\n")
    return file


@dataclass(frozen=True)
class Running:
    """A server that listens: its process, and its store's."""

    port: int
    pid: int
    store_pid: int | None = None


@contextlib.contextmanager
def peer(command: list[str], port: int, **options: object) -> Iterator[Running]:
    with process(command, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}) as started:
        wait_for(port)
        yield Running(port, started.pid)


@contextlib.contextmanager
def running(side: Side, folder: Path) -> Iterator[Running]:
    """Start a side, with a store of its own where it has one."""
    folder.mkdir(parents=True)
    port = free_port()
    with contextlib.ExitStack() as stack:
        if side.kind == "ceiling":
            yield stack.enter_context(peer([sys.executable, str(PEERS / "ceiling.py"), str(port), side.engine], port))
            return
        if side.kind == "webhook":
            yield stack.enter_context(webhook(folder, port))
            return
        url, store_pid = stack.enter_context(store(folder / "store", side.fsync))
        if side.kind == "gateway":
            made = gateway(folder / "g", url, enrolled=side.enrolled, workers=side.workers, engine=side.engine)
            port, pid = stack.enter_context(made)
        elif side.kind == "least":
            command = [sys.executable, str(PEERS / "least.py"), str(port), url, SECRET.decode(), side.engine]
            with (folder / "least.log").open("ab") as log:
                pid = stack.enter_context(peer(command, port, stderr=log)).pid
        elif side.kind == "node":
            if shutil.which("node") is None or not (PEERS / "node_modules").exists():
                raise Missing("install Node, then: npm install --prefix bench/peers")
            command = ["node", str(PEERS / "node.js"), str(port), url.removeprefix("unix://"), SECRET.decode()]
            pid = stack.enter_context(peer(command, port)).pid
        else:
            if not PYTHON_PEERS.exists():
                raise Missing(f"pip install --target {PYTHON_PEERS} -r {PEERS / 'requirements.txt'}")
            command = [sys.executable, str(PEERS / "gidgethub_peer.py"), str(port), url, SECRET.decode()]
            paths = os.pathsep.join([str(PEERS), *filter(None, [os.environ.get("PYTHONPATH")]), str(PYTHON_PEERS)])
            pid = stack.enter_context(peer(command, port, env={**os.environ, "PYTHONPATH": paths})).pid
        yield Running(port, pid, store_pid)


@contextlib.contextmanager
def webhook(folder: Path, port: int) -> Iterator[Running]:
    """The distribution's receiver, which starts a process a delivery: /bin/true, so it keeps nothing."""
    if shutil.which("webhook") is None:
        raise Missing("apt-get install webhook")
    rule = {
        "type": "payload-hmac-sha256",
        "secret": SECRET.decode(),
        "parameter": {"source": "header", "name": "X-Hub-Signature-256"},
    }
    hook = {"id": "github-acme", "execute-command": "/bin/true", "trigger-rule": {"match": rule}}
    (folder / "hooks.json").write_text(json.dumps([hook]))
    command = ["webhook", "-hooks", str(folder / "hooks.json"), "-ip", "127.0.0.1", "-port", str(port)]
    with peer(command, port) as started:
        yield started


def measure(server: Running, requests: Path, connections: int, seconds: int) -> dict[str, float]:
    """Load a server once."""
    before = cpu_s(server.pid), cpu_s(server.store_pid) if server.store_pid else 0.0
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", "bench/requests.lua"]
    command += [f"http://127.0.0.1:{server.port}", "--", "/hooks/github-acme", str(requests), "1"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    result = json.loads(next(line for line in out.splitlines() if line.startswith("JSON "))[5:])
    sent = result["requests"]
    if not sent:
        raise SystemExit("nothing was answered: the machine is too busy for so short a run")
    time.sleep(0.3)  # what it still has to do counts
    return {
        "rps": sent / (result["duration_us"] / 1e6),
        "cpu": (cpu_s(server.pid) - before[0]) / sent * 1000,
        "store": (cpu_s(server.store_pid) - before[1]) / sent * 1000 if server.store_pid else 0.0,
        "p50": result["p50"] / 1000,
        "p99": result["p99"] / 1000,
        "p999": result["p999"] / 1000,
        "rss": rss_mb(server.pid),
        "refused": result["non2xx"],
        "failed": result["socket"],
    }


def compare(row: Row, folder: Path, pairs: int, seconds: int) -> dict[str, list[dict[str, float]]]:
    """Alternate the two sides of a row."""
    taken: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    same = row.ours == Side(**{**vars(row.theirs), "forged": row.ours.forged})
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(running(row.theirs, folder / "theirs"))
        ours = theirs if same else stack.enter_context(running(row.ours, folder / "ours"))
        for _ in range(pairs + 1):
            for name, side, server in (("ours", row.ours, ours), ("theirs", row.theirs, theirs)):
                requests = prepare(folder, row.size_kb, PER_S * seconds * side.workers, forged=side.forged)
                taken[name].append(measure(server, requests, row.connections, seconds))
                last = taken[name][-1]
                if last["failed"] or bool(last["refused"]) != side.forged:
                    raise SystemExit(f"{side}: {last['refused']:.0f} refused, {last['failed']:.0f} failed")
    return {name: runs[1:] for name, runs in taken.items()}  # the first of each warms up


def ratios(taken: dict[str, list[dict[str, float]]], key: str) -> list[float]:
    return sorted(a[key] / b[key] for a, b in zip(taken["ours"], taken["theirs"], strict=True))


def shown(name: str, runs: list[dict[str, float]]) -> str:
    mid = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return (
        f"  {name:36} {mid['rps']:7.0f}/s  CPU {mid['cpu']:.3f} + store {mid['store']:.3f} s/1,000  "
        f"p50/99/99.9 {mid['p50']:.1f}/{mid['p99']:.1f}/{mid['p999']:.1f} ms  {mid['rss']:.0f} MB"
    )


def below(taken: dict[str, list[dict[str, float]]], key: str, bound: float) -> bool:
    """Tell whether a ratio misses its bound by more than the spread of its pairs."""
    found = ratios(taken, key)
    middle, spread = statistics.median(found), found[-1] - found[0]
    return middle - spread > bound if key in LOW else middle + spread < bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", default="", help="a part of a row's name")
    parser.add_argument("--check", action="store_true", help="only rows with floors; exit 1 where one is missed")
    parser.add_argument("--json", action="store_true", help="one line a row")
    options = parser.parse_args()
    missed = []
    for row in ROWS:
        title = f"{row.ours} : {row.theirs}, {row.size_kb} KB, {row.connections} connections"
        if options.only not in title or (options.check and not row.floors):
            continue
        with tempfile.TemporaryDirectory(prefix="gwb-") as name:
            try:
                taken = compare(row, Path(name), options.pairs, options.seconds)
            except Missing as missing:
                print(f"-- {title}: left out; {missing}", flush=True)
                continue
        load = os.getloadavg()[0]
        parts, summary = [], {}
        for key in ("rps", "cpu", "p99"):
            found = ratios(taken, key)
            summary[key] = [round(statistics.median(found), 3), round(found[0], 3), round(found[-1], 3)]
            goal = dict(row.goals).get(key)
            wanted = "" if goal is None else f", goal {'at most' if key in LOW else 'at least'} {goal}"
            parts.append(f"{WORDS[key]} {summary[key][0]:.2f} ({found[0]:.2f}-{found[-1]:.2f}{wanted})")
        missed += [f"{title}: {WORDS[key]} floor {bound}" for key, bound in row.floors if below(taken, key, bound)]
        if options.json:
            print(json.dumps({"row": title, "load": load, "ratios": summary, **taken}), flush=True)
        else:
            print(f"-- {title} (load {load:.1f})\n   " + "; ".join(parts))
            print(shown(str(row.ours), taken["ours"]) + "\n" + shown(str(row.theirs), taken["theirs"]), flush=True)
    for one in missed:
        print(f"MISSED {one}", file=sys.stderr)
    raise SystemExit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
