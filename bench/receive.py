"""Measure the receive path against the same server reading the body, interleaved on one machine; print ratios.

Needs `wrk` (https://github.com/wg/wrk). Absolute figures say nothing on a shared machine; ratios inside one run do.
Example: python bench/receive.py --pairs 5 --seconds 5 --size 8
"""

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.embedded import launch, server_binary, write_config  # noqa: E402
from gateway.subscriptions import seal  # noqa: E402

SECRET = b"bench-secret-of-no-value-at-all-0000"
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sample_body(size_bytes: int) -> bytes:
    """A GitHub `issues` body of about this size, with `@NONCE@` where each request differs."""
    example = json.loads((ROOT / "subscriptions" / "samples" / "github.json").read_text())["body"]
    example["issue"]["body"] = "@NONCE@"
    example["issue"]["created_at"] = "2026-01-01T00:00:00Z"
    user = {"login": "octo-user", "id": 583231, "type": "User", "site_admin": False}
    user |= {
        f"{name}_url": f"https://api.github.com/users/octo-user/{name}"
        for name in [
            "avatar",
            "html",
            "followers",
            "following",
            "gists",
            "starred",
            "subscriptions",
            "organizations",
            "repos",
            "events",
        ]
    }
    example["issue"]["assignees"] = []
    while len(json.dumps(example, separators=(",", ":"))) < size_bytes:
        example["issue"]["assignees"].append(user)
    return json.dumps(example, separators=(",", ":"), ensure_ascii=False).encode()


def prepare(folder: Path, size_bytes: int, count: int, *, forged: bool = False) -> Path:
    body = sample_body(size_bytes)
    name = folder / f"requests-{size_bytes}{'-forged' if forged else ''}"
    name.with_name(name.name + ".body").write_bytes(body)
    with name.open("w") as out:
        for number in range(count):
            nonce = f"{os.getpid()}-{time.monotonic_ns()}-{number:08d}"
            signed = hmac.digest(SECRET, body.replace(b"@NONCE@", nonce.encode()), hashlib.sha256).hex()
            out.write(f"{uuid.uuid4()} {'0' * 64 if forged else signed} {nonce}\n")
    return name


def tree(pid: int) -> list[int]:
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(path.read_text().rpartition(") ")[2].split()[1]) == pid:
                found += tree(int(path.parent.name))
    return found


def cpu_s(pid: int) -> float:
    total = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def rss_mb(pid: int) -> float:
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total / 1e6


@dataclass
class Server:
    name: str
    port: int
    pid: int
    path: str = "/hooks/github-acme"


@contextlib.contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(command, cwd=ROOT, **options)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


@contextlib.contextmanager
def store(folder: Path, fsync: str) -> Iterator[tuple[str, int]]:
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "s"
    server = launch(server_binary(), write_config(folder, address, fsync))
    for _ in range(200):
        if address.exists():
            break
        time.sleep(0.05)
    try:
        yield f"unix://{address}", server.pid
    finally:
        server.terminate()
        server.wait(20)


def enrolled(folder: Path, count: int) -> str:
    """`count` subscriptions, of which one wants what is sent."""
    folder.mkdir()
    base = json.loads((ROOT / "subscriptions" / "examples" / "github-issue-opened.json").read_text())
    entries = []
    for number in range(count):
        document = {k: v for k, v in base.items() if k != "digest"}
        if number:
            document["grants"] = {"repositories": [f"acme/other-{number}"], "organizations": ["acme"]}
        sealed = seal(document)
        (folder / f"{number}.json").write_text(json.dumps(sealed))
        entries.append(
            f'[[enrollments]]\nsubscription = "{sealed["digest"]}"\nsource = "github-acme"\ninstallation = 1\n'
        )
    (folder / "all.toml").write_text("\n".join(entries))
    return folder.name


@contextlib.contextmanager
def gateway(
    folder: Path, url: str, *, subscriptions: int = 1000, workers: int = 1, engine: str = "hypercorn"
) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_bytes(SECRET)
    key = folder / "key.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    port, admin = free_port(), free_port()
    name = enrolled(folder / f"subscriptions-{subscriptions}", subscriptions)
    lines = [
        "[server]",
        f'bind = "127.0.0.1:{port}"',
        f'admin_bind = "127.0.0.1:{admin}"',
        *([f"workers = {workers}"] if workers > 1 else []),
        *([f'engine = "{engine}"'] if engine != "hypercorn" else []),
        f'[store]\nurl = "{url}"',
        f'[github]\napp_id = 1\napi_url = "http://127.0.0.1:9"\nsender_id = 2\nprivate_key = "file:{key}"',
        f'[subscriptions]\npath = "{name}"',
        f'[sources.github-acme]\nprofile = "github"\nsecrets = ["file:{folder}/secret"]',
    ]
    (folder / "gateway.toml").write_text("\n".join(lines) + "\n")
    log = (folder / "gateway.log").open("ab")
    command = [sys.executable, "-m", "gateway", "serve", "--role", "receive", "--config", str(folder / "gateway.toml")]
    with process(command, stderr=log, stdout=log) as started:
        wait_for(port)
        yield Server(f"gateway {subscriptions}", port, started.pid)


@contextlib.contextmanager
def ceiling(engine: str = "hypercorn") -> Iterator[Server]:
    port = free_port()
    with process([sys.executable, "bench/peers/ceiling.py", str(port), engine]) as started:
        wait_for(port)
        yield Server(f"{engine} reading the body", port, started.pid)


def measure(
    server: Server, requests: Path, *, connections: int, seconds: int, store_pid: int | None = None
) -> dict[str, float]:
    before, store_before = cpu_s(server.pid), cpu_s(store_pid) if store_pid else 0.0
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", "bench/requests.lua"]
    command += [f"http://127.0.0.1:{server.port}", "--", server.path, str(requests), "1"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    result = json.loads(next(line for line in out.splitlines() if line.startswith("JSON "))[5:])
    sent = result["requests"]
    return {
        "rps": sent / (result["duration_us"] / 1e6),
        "cpu": (cpu_s(server.pid) - before) / sent * 1000,
        "store_cpu": (cpu_s(store_pid) - store_before) / sent * 1000 if store_pid else 0.0,
        "p50_ms": result["p50"] / 1000,
        "p99_ms": result["p99"] / 1000,
        "p999_ms": result["p999"] / 1000,
        "rss_mb": rss_mb(server.pid),
        "bad": result["non2xx"] + result["socket"],
    }


def ratio_line(name: str, ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    parts = []
    for key in ("rps", "cpu", "p99_ms"):
        ratios = sorted(a[key] / b[key] for a, b in zip(ours, theirs, strict=True))
        parts.append(f"{key} {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    return f"{name:48} " + "  ".join(parts)


def show(name: str, rows: list[dict[str, float]]) -> None:
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(
        f"{name:40} {middle['rps']:8.0f} rps  cpu/1k {middle['cpu']:.3f}+{middle['store_cpu']:.3f} s  "
        f"p50/99/99.9 {middle['p50_ms']:.1f}/{middle['p99_ms']:.1f}/{middle['p999_ms']:.1f} ms  "
        f"rss {middle['rss_mb']:.0f} MB  bad {sum(row['bad'] for row in rows):.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--size", type=int, nargs="*", default=[2, 8, 25], help="body sizes in KB")
    parser.add_argument("--connections", type=int, nargs="*", default=[32])
    parser.add_argument("--fsync", nargs="*", default=["everysec"], choices=["everysec", "always"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gwb-") as name:
        folder = Path(name)
        for fsync in options.fsync:
            with (
                store(folder / f"store-{fsync}", fsync) as (url, store_pid),
                gateway(folder / f"gateway-{fsync}", url) as ours,
                ceiling() as top,
            ):
                for size in options.size:
                    for connections in options.connections:
                        taken: dict[str, list[dict[str, float]]] = {"ours": [], "top": []}
                        for _ in range(options.pairs):
                            requests = prepare(folder, size * 1000, 9000 * options.seconds)
                            taken["ours"].append(
                                measure(
                                    ours,
                                    requests,
                                    connections=connections,
                                    seconds=options.seconds,
                                    store_pid=store_pid,
                                )
                            )
                            taken["top"].append(
                                measure(top, requests, connections=connections, seconds=options.seconds)
                            )
                        print(f"-- {size} KB, {connections} connections, appendfsync {fsync}")
                        show("gateway, 1,000 enrolled", taken["ours"])
                        show("ceiling: Hypercorn + Starlette, body read", taken["top"])
                        print(ratio_line("gateway : ceiling", taken["ours"], taken["top"]), flush=True)


if __name__ == "__main__":
    main()
