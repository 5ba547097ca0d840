"""The bytecode and the calls of one delivery, by package: the product beside the body-reading ceiling of the same server.

    python bench/bytecode.py [--deliveries 1000] [--connections 32] [--top 20]

Counts, so a busy machine changes nothing; what C code does (JSON, digests, copies) is not among them. Server and client share
a process, since only a process can trace itself; the client's own code is left out.
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop
from peers.ceiling import APP, serve_hypercorn
from receive import sample_body
from stage import SECRET, configuration, free_port, store, subscriptions

from gateway import connections
from gateway.configuration import load_configuration
from gateway.server import listen, serve

SIDES = ("ceiling", "gateway")
Counts = tuple[Counter[CodeType], Counter[CodeType]]


def request(body: bytes, number: int) -> bytes:
    """One signed delivery with an id of its own."""
    sent = body.replace(b"@NONCE@", f"{uuid.uuid4()}-{number}".encode())
    signature = hmac.digest(SECRET, sent, hashlib.sha256).hex()
    head = (
        "POST /hooks/github-acme HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        f"User-Agent: GitHub-Hookshot/044aadd\r\nX-GitHub-Event: issues\r\nX-GitHub-Delivery: {uuid.uuid4()}\r\n"
        "X-GitHub-Hook-ID: 292430182\r\nX-GitHub-Hook-Installation-Target-ID: 79929171\r\n"
        "X-GitHub-Hook-Installation-Target-Type: repository\r\n"
        f"X-Hub-Signature-256: sha256={signature}\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


async def send(port: int, waiting: list[bytes], connections_: int) -> None:
    """Send deliveries over so many connections, each answered before its next. Raises ValueError where one is refused."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            writer.write(waiting.pop())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 2"):
                raise ValueError(answer.split(b"\r\n")[0].decode())
        writer.close()

    await asyncio.gather(*[one() for _ in range(connections_)])


@contextmanager
def counted() -> Iterator[Counts]:
    """Count opcodes and calls of each function in the context, but for those of this file."""
    opcodes: Counter[CodeType] = Counter()
    calls: Counter[CodeType] = Counter()

    def trace(frame: FrameType, _event: str, _value: Any) -> Any:
        code = frame.f_code
        if code.co_filename == __file__:
            return None
        calls[code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def each(_frame: FrameType, event: str, _value: Any) -> Any:
            if event == "opcode":
                opcodes[code] += 1
            return each

        return each

    sys.settrace(trace)
    try:
        yield opcodes, calls
    finally:
        sys.settrace(None)


async def count(side: str, deliveries: int, connections_: int) -> list[dict[str, Any]]:
    """Serve one side in this process and count; each function's file, name, opcodes and calls a delivery."""
    with tempfile.TemporaryDirectory(prefix="gwc-") as name, store(Path(name) / "store") as (url, _):
        port, folder = free_port(), Path(name)
        if side == "ceiling":
            serving = asyncio.create_task(serve_hypercorn(APP, port))
        else:
            subscriptions(folder / "enrolled", 1000)
            file = configuration(folder, url, port, enrolled="enrolled")
            connections.install()
            sockets: dict[str, socket.socket] = {"public": listen(f"127.0.0.1:{port}")}
            serving = asyncio.create_task(serve(load_configuration(file), "receive", sockets, {}))
        await asyncio.sleep(3)  # until what a start has to do is done
        body = sample_body(8_000)
        warming, waiting = ([request(body, number) for number in range(count)] for count in (200, deliveries))
        await send(port, warming, connections_)
        with counted() as (opcodes, calls):
            await send(port, waiting, connections_)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    return [
        {
            "file": code.co_filename,
            "name": code.co_qualname,
            "opcodes": number / deliveries,
            "calls": calls[code] / deliveries,
        }
        for code, number in opcodes.most_common()
    ]


def package(file: str) -> str:
    """Return the top package of a source file."""
    parts = Path(file).parts
    for above in ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        if above in parts:
            return parts[parts.index(above) + 1].removesuffix(".py")
    return "gateway" if "gateway" in parts else parts[-1].removesuffix(".py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--top", type=int, default=20, help="how many functions of the product to list")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(uvloop.run(count(options.side, options.deliveries, options.connections))))
        return
    for side in SIDES:
        again = [sys.executable, __file__, "--side", side, "--deliveries", str(options.deliveries)]
        made = subprocess.run(
            [*again, "--connections", str(options.connections)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        rows = json.loads(made.stdout.splitlines()[-1])
        packages: Counter[str] = Counter()
        for row in rows:
            packages[package(row["file"])] += row["opcodes"]
        print(
            f"-- {side}: {sum(packages.values()):,.0f} opcodes, {sum(row['calls'] for row in rows):,.0f} calls a delivery"
        )
        print("   " + ", ".join(f"{name} {number:,.0f}" for name, number in packages.most_common(8)))
    ours = [row for row in rows if package(row["file"]) == "gateway"]
    for row in ours[: options.top]:
        print(f"   {row['opcodes']:6.0f} in {row['calls']:5.2f} calls  {Path(row['file']).name} {row['name']}")


if __name__ == "__main__":
    main()
