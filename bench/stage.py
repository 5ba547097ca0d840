"""What the benchmarks share: processes that are started and ended here, a store, the product, and what a process has used."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.embedded import launch, server_binary, write_config  # noqa: E402
from gateway.envelope import EnvelopeEvent  # noqa: E402
from gateway.errors import Unavailable  # noqa: E402
from gateway.store import Admit, AdmitItem, QueueEntry, Store, uuid7  # noqa: E402
from gateway.subscriptions import event_type_for, seal  # noqa: E402

SECRET = b"bench-secret-of-no-value-at-all-0000"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree(pid: int) -> list[int]:
    """The process and those below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_s(pid: int) -> float:
    """User and system seconds of a process tree; of what ended in it too (children that were waited for)."""
    total = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS
    return total


def rss_mb(pid: int) -> float:
    """Resident megabytes of a process tree."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * PAGE
    return total / 1e6


@contextlib.contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the end of the context, then end it by its id."""
    started = subprocess.Popen(command, cwd=ROOT, **options)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(port: int, within_s: float = 120) -> None:
    """Return when something accepts connections on a port."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on {port}")


@contextlib.contextmanager
def store(folder: Path, fsync: str = "everysec") -> Iterator[tuple[str, int]]:
    """A store of the shipped binary: its address and its process id."""
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "s"
    server = launch(server_binary(), write_config(folder, address, fsync))
    for _ in range(500):
        if address.exists():
            break
        time.sleep(0.02)
    try:
        yield f"unix://{address}", server.pid
    finally:
        server.terminate()
        server.wait(60)


def subscriptions(
    folder: Path, count: int, installations: int = 1, *, all_wanted: bool = False
) -> list[dict[str, Any]]:
    """Enroll `count` subscriptions. One wants what is sent, or (`all_wanted`) each the issues of a repository of its own."""
    folder.mkdir()
    base = json.loads((ROOT / "subscriptions" / "examples" / "github-issue-opened.json").read_text())
    entries, made = [], []
    for number in range(count):
        document = {key: value for key, value in base.items() if key != "digest"}
        if number or all_wanted:
            name = f"acme/other-{number}"
            document["grants"] = {"repositories": [name], "organizations": ["acme"]}
        if all_wanted:
            document["repository"] = f"acme/target-{number}"
            document.pop("repository_id", None)
            document["event_type"] = event_type_for(document["repository"], document["workflow"])
        sealed = seal(document)
        made.append(sealed)
        (folder / f"{number}.json").write_text(json.dumps(sealed))
        entries.append(
            f'[[enrollments]]\nsubscription = "{sealed["digest"]}"\nsource = "github-acme"\n'
            f"installation = {1 + number % installations}\n"
        )
    (folder / "all.toml").write_text("\n".join(entries))
    return made


async def fill(url: str, lanes: list[str], count: int) -> None:
    """Queue events, through the store's own admission, for one lane after the other."""
    opened = await Store.open(url, relaxed=True)

    async def one(number: int) -> None:
        target = f"https://github.com/acme/a-typical-repository/issues/{number}"
        filters = {"organizations": "acme", "repositories": "acme/a-typical-repository"}
        entry = QueueEntry(lanes[number % len(lanes)], EnvelopeEvent(target, "issue-opened", filters).queued(), "")
        delivery, now = uuid7(), time.time()
        digest = base64.urlsafe_b64encode(hashlib.sha256(str(number).encode()).digest()).rstrip(b"=").decode()
        dedupe = (f"id:{uuid.uuid4()}", f"body:{digest}")
        item = AdmitItem(dedupe, 259_200, None, (entry,))
        kept = json.dumps({"id": delivery, "source": "github-acme", "received_at": now, "outcome": "forwarded"})
        while True:
            with contextlib.suppress(Unavailable):  # a busy machine: asking again is right
                await opened.admit(Admit("github-acme", delivery, (item,), kept, now))
                return

    for start in range(0, count, 512):
        await asyncio.gather(*map(one, range(start, min(start + 512, count))))
    await opened.close()


def configuration(
    folder: Path,
    url: str,
    port: int,
    *,
    enrolled: str,
    workers: int = 1,
    engine: str = "hypercorn",
    api_url: str = "http://127.0.0.1:9",
) -> Path:
    """Write a configuration and what it refers to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_bytes(SECRET)
    key = folder / "key.pem"
    if not key.exists():
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    lines = [
        "[server]",
        f'bind = "127.0.0.1:{port}"',
        f'admin_bind = "127.0.0.1:{free_port()}"',
        f"workers = {workers}",
        f'engine = "{engine}"',
        f'[store]\nurl = "{url}"',
        f'[github]\napp_id = 1\napi_url = "{api_url}"\nsender_id = 2\nprivate_key = "file:{key}"',
        f'[subscriptions]\npath = "{enrolled}"',
        f'[sources.github-acme]\nprofile = "github"\nsecrets = ["file:{folder}/secret"]',
    ]
    file = folder / "gateway.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


@contextlib.contextmanager
def gateway(
    folder: Path, url: str, *, enrolled: int = 1000, workers: int = 1, engine: str = "hypercorn"
) -> Iterator[tuple[int, int]]:
    """The receiver, everything on: JSON log to a file, metrics, records. Its port and its process id."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    subscriptions(folder / "enrolled", enrolled)
    file = configuration(folder, url, port, enrolled="enrolled", workers=workers, engine=engine)
    command = [sys.executable, "-m", "gateway", "serve", "--role", "receive", "--config", str(file)]
    with (folder / "gateway.log").open("ab") as log, process(command, stderr=log, stdout=log) as started:
        wait_for(port)
        yield port, started.pid
