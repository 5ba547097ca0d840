"""Real servers in the shapes that operators run: a primary with replicas under Sentinel, a Cluster, TLS in front."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis import Redis
from redis.exceptions import RedisError

from gateway.embedded import launch, server_binary


def port_of_ours() -> int:
    """A free port below the range of outgoing connections: one that is given up for a restart stays free."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Node:
    """One server process on a TCP port of loopback, with a folder of its own; `kill` and `start` as often as wanted."""

    lines: tuple[str, ...] = ()
    sentinel: bool = False
    port: int = field(default_factory=port_of_ours)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gwt-")))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        config = self.folder / "node.conf"
        if not config.exists():  # a sentinel keeps its state there
            common = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", f"logfile {self.folder}/log"]
            store = [] if self.sentinel else ["appendonly yes", "appendfsync always", 'save ""']
            config.write_text("\n".join([*common, *store, *self.lines]) + "\n")
        binary = server_binary()
        if self.sentinel:  # the server looks at the name that it was called by
            link = self.folder / "valkey-sentinel"
            if not link.exists():
                link.symlink_to(binary)
            binary = str(link)
        self.process = launch(binary, config)
        wait(self._answers, "a server")

    def _answers(self) -> bool:
        with self.client() as client:
            return bool(client.ping())

    def client(self) -> "Redis":
        return Redis(host="127.0.0.1", port=self.port, decode_responses=True, socket_timeout=2)

    def signal(self, number: int) -> None:
        if self.process and self.process.poll() is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait(10)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait(true: Callable[[], bool], what: str, within_s: float = 20) -> float:
    """Wait until `true`; return how long it took."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(RedisError, OSError):
            if true():
                return time.monotonic() - began
        time.sleep(0.02)
    raise TimeoutError(what)


@dataclass
class Watched:
    """A primary, its replicas and three sentinels."""

    nodes: list[Node]
    sentinels: list[Node]

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels) + "/main/0"

    def primary(self) -> Node:
        """The node that a majority of the sentinels names."""
        named = []
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                found: Any = client.sentinel_get_master_addr_by_name("main")
                named.append(int(found[1]))
        port = max(set(named), key=named.count)
        return next(node for node in self.nodes if node.port == port)

    def settled(self, replicas: int) -> bool:
        """Whether the primary has this many replicas that keep up."""
        with self.primary().client() as client:
            info: dict[str, Any] = client.info("replication")
        up = [row for key, row in info.items() if key.startswith("slave") and isinstance(row, dict)]
        return bool(info["role"] == "master") and sum(row["state"] == "online" for row in up) >= replicas


@contextmanager
def watched(replicas: int = 2) -> Iterator[Watched]:
    """Start a primary, replicas and three sentinels that call it dead after a second."""
    with ExitStack() as stack:
        primary = Node()
        nodes = [primary, *(Node((f"replicaof 127.0.0.1 {primary.port}",)) for _ in range(replicas))]
        lines = (
            f"sentinel monitor main 127.0.0.1 {primary.port} 2",
            "sentinel down-after-milliseconds main 1000",
            "sentinel failover-timeout main 4000",
        )
        sentinels = [Node(lines, sentinel=True) for _ in range(3)]
        for node in (*nodes, *sentinels):
            stack.callback(node.close)
            node.start()
        found = Watched(nodes, sentinels)
        wait(lambda: found.settled(replicas), "replicas")
        for sentinel in sentinels:
            client = stack.enter_context(sentinel.client())
            wait(lambda client=client: _known(client) == (2, replicas), "sentinels")  # type: ignore[misc]
        yield found


def _known(client: "Redis") -> tuple[int, int]:
    row: Any = client.sentinel_master("main")
    return int(row["num-other-sentinels"]), int(row["num-slaves"])


@contextmanager
def cluster(masters: int = 3) -> Iterator[list[Node]]:
    """Start a Cluster of masters that share the slots evenly."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(masters):
            node = Node(("cluster-enabled yes", f"cluster-port {port_of_ours()}", "cluster-node-timeout 2000"))
            stack.callback(node.close)
            node.start()
            nodes.append(node)
        clients = [stack.enter_context(node.client()) for node in nodes]
        share = 16384 // masters
        for n, client in enumerate(clients):
            last = 16383 if n == masters - 1 else (n + 1) * share - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", n * share, last)
            bus = int(clients[0].config_get("cluster-port")["cluster-port"])
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
        for client in clients:
            wait(lambda client=client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "cluster")  # type: ignore[misc]
            wait(lambda client=client: len(client.execute_command("CLUSTER SHARDS")) == masters, "shards")  # type: ignore[misc]
        yield nodes


def certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that is its own authority; return it and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / f"{name}.pem", folder / f"{name}.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return public, private


@asynccontextmanager
async def tls_before(port: int, public: Path, private: Path) -> AsyncIterator[int]:
    """Listen with TLS and pass everything to `port`; the embedded server's binary is built without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, outer), _copy(inner, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.1)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
