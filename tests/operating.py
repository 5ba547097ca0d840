"""A configuration and its store for tests of operators' commands: a private server, the GitHub double's key, one source."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.cli import main
from gateway.configuration import Configuration, load_configuration
from gateway.envelope import EnvelopeEvent
from gateway.environment import data_folder
from gateway.store import Admit, AdmitItem, QueueEntry, Store, uuid7
from tests.valkey import PrivateValkey

T = TypeVar("T")
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
APP_ID = 4711
LINEAR = json.loads((data_folder("subscriptions") / "examples" / "linear-issue-created.json").read_bytes())


def write(folder: Path, url: str, *, source: Sequence[str] = (), mode: str = "auto", more: Sequence[str] = ()) -> Path:
    """Write a configuration with one Linear source and its shipped example enrolled."""
    (folder / "app.pem").write_bytes(PEM)
    (folder / "linear").write_text("linear-secret-of-the-test")
    for name in ("app.pem", "linear"):
        (folder / name).chmod(0o600)
    lines = [
        *more,
        "[store]",
        f'url = "{url}"',
        "[subscriptions]",
        f'path = "{data_folder("subscriptions") / "examples"}"',
        "[sources.linear-acme]",
        'profile = "linear"',
        f'secrets = ["file:{folder}/linear"]',
        f"identity.organization = {json.dumps(LINEAR['grants']['organizations'])}",
        *source,
        "[[enrollments]]",
        f'subscription = "{LINEAR["digest"]}"',
        'source = "linear-acme"',
        "installation = 11",
        f'mode = "{mode}"',
    ]
    if not any(line == "[github]" for line in more):
        lines = ["[github]", f"app_id = {APP_ID}", f'private_key = "file:{folder}/app.pem"', *lines]
    path = folder / "gateway.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def gateway(config: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    """Run a command with `--config` after its name."""
    return CliRunner().invoke(main, [*arguments, "--config", str(config)], env=dict(environment or {}))


def stored(server: PrivateValkey, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something to the store between two commands."""

    async def run() -> T:
        store = await Store.open(server.url, require=True)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Queued:
    """What `admit` put into the store."""

    delivery: str
    lane: str
    url: str


async def admit(store: Store, configuration: Configuration, number: int = 1, now: float = 1_790_000_000.0) -> Queued:
    """Admit one event for the enrolled subscription, as a delivery would."""
    enrolled: Any = configuration.index.by_digest(LINEAR["digest"])
    url = f"https://linear.app/acme/issue/A-{number}"
    lane = f"{enrolled.subscription.digest}:issue-created"
    delivery = uuid7()
    entry = QueueEntry(
        lane,
        EnvelopeEvent(url, "issue-created", {name: values[0] for name, values in LINEAR["grants"].items()}).queued(),
        delivery,
    )
    record = {"id": delivery, "source": "linear-acme", "received_at": now, "outcome": "forwarded", "reason": None}
    record["subscriptions"] = []
    item = AdmitItem((f"id:{delivery}",), 3600, None, (entry,))
    await store.admit(Admit("linear-acme", delivery, (item,), json.dumps(record), now))
    return Queued(delivery, lane, url)


__all__ = ["APP_ID", "LINEAR", "PEM", "PUBLIC", "Queued", "admit", "gateway", "load_configuration", "write"]
