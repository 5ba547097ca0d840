"""The demo's stage: private folder, keys, GitHub double, receiver; and the sample deliveries it sends over HTTP.

Everything is the product itself, in processes of its own; only GitHub and the providers are played.
"""

import asyncio
import base64
import contextlib
import copy
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import jwt.algorithms
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.embedded import following
from gateway.environment import data_folder
from gateway.profiles import JwtProof, Profile, load_profiles
from gateway.samples import load_samples
from gateway.signing import fill, prepare, sign
from gateway.structs import Value, asdict

APP_ID, INSTALLATION, KID = 1001, 5001, "demo-key"
READY_S, SETTLE_S = 20.0, 10.0
EXPECTED = {
    "valid": "forwarded",
    "forged": "rejected",
    "stale": "rejected",
    "duplicate": "duplicate",
    "unwanted": "ignored",
}


class Line(Value):
    """What became of one sample delivery; `envelope` is the body that the GitHub double received."""

    source: str
    profile: str
    case: str
    status: int
    outcome: str | None
    reason: str | None
    delivery: str | None
    dispatch: str | None
    envelope: Any

    @property
    def good(self) -> bool:
        """Whether the case ended as it should."""
        return self.outcome == EXPECTED[self.case] and (self.envelope is not None) == (self.case == "valid")

    def to_json(self) -> dict[str, Any]:
        """The line as scripts read it."""
        return asdict(self)


def free_port() -> int:
    """A port that was free just now on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Stage:
    """Set up on entry, torn down on exit; only processes it started are ended, by their id."""

    def __init__(self, engine: str = "hypercorn") -> None:
        self.engine = engine
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-demo-"))
        self.samples = load_samples()
        self.profiles = load_profiles(data_folder("profiles"))
        self.secrets = {s["source"]: make_secret(self.profiles[s["profile"]]) for s in self.samples}
        self.forge_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.operator_token = secrets.token_urlsafe(24)
        self.public = f"http://127.0.0.1:{free_port()}"
        self.admin = f"http://127.0.0.1:{free_port()}"
        self.github = ""
        self.jwks = ""
        self._seen: set[str] = set()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start everything; leave nothing behind where that fails."""
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
            self.jwks = await self._serve_jwks()
            await self._start_github()
            self._configure()
            await self.start_receiver()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the processes and remove the folder."""
        await self._stack.aclose()

    async def _serve_jwks(self) -> str:
        document = {"keys": [public_jwk(self.forge_key)]}

        async def jwks(_request: web.Request) -> web.Response:
            return web.json_response(document)

        app = web.Application()
        app.router.add_get("/jwks.json", jwks)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/jwks.json"

    async def _start_github(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._private("app.pem", pem)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
        self._private("app.pub", public)
        repositories = sorted({self._subscription(s)["repository"] for s in self.samples})
        installed = [part for name in repositories for part in ("--installation", f"{INSTALLATION}={name}")]
        command = ["-m", "gateway.doubles.github", "--port", "0", "--app-id", str(APP_ID)]
        process = await self.spawn(*command, "--public-key", str(self.folder / "app.pub"), *installed)
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            announced = json.loads(await process.stdout.readline())
        self.github = announced["url"]
        for sample in self.samples:
            await self._fill_repository(self._subscription(sample))

    async def _fill_repository(self, document: Mapping[str, Any]) -> None:
        """Put into the double what a subscription is compiled for: the repository's id and the workflow's file."""
        name, workflow = document["repository"], document["workflow"]
        text = (data_folder("subscriptions") / "examples" / workflow).read_text()
        changes = {
            "repository": {"repo": name, "id": document["repository_id"]},
            "contents": {"repo": name, "path": workflow, "text": text},
        }
        for what, change in changes.items():
            async with self.session.post(f"{self.github}/_double/{what}", json=change) as response:
                response.raise_for_status()

    def _subscription(self, sample: Mapping[str, Any]) -> Any:
        return json.loads((data_folder("subscriptions") / "examples" / sample["subscription"]).read_bytes())

    def _private(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(data)

    def _configure(self) -> None:
        enrolled = self.folder / "enrolled"
        enrolled.mkdir()
        self._private("operator", self.operator_token.encode())
        lines = [
            "[server]",
            f'engine = "{self.engine}"',
            f'bind = "{self.public.removeprefix("http://")}"',
            f'admin_bind = "{self.admin.removeprefix("http://")}"',
            f'operator_tokens = ["file:{self.folder}/operator"]',
            "[store]",
            'embedded = "store"',
            "[github]",
            f'api_url = "{self.github}"',
            f"app_id = {APP_ID}",
            f'private_key = "file:{self.folder}/app.pem"',
            "[subscriptions]",
            'path = "enrolled"',
        ]
        for sample in self.samples:
            name, profile = sample["source"], self.profiles[sample["profile"]]
            lines += [f"[sources.{name}]", f'profile = "{profile.name}"']
            if isinstance(profile.proof, JwtProof):
                lines.append(f'jwks_url = "{self.jwks}"')
            else:
                self._private(name, self.secrets[name])
                lines.append(f'secrets = ["file:{self.folder}/{name}"]')
            lines += [f"identity.{key} = {json.dumps(values)}" for key, values in sample.get("identity", {}).items()]
            document = self._subscription(sample)
            shutil.copy(data_folder("subscriptions") / "examples" / sample["subscription"], enrolled)
            entry = (
                "[[enrollments]]",
                f'subscription = "{document["digest"]}"',
                f'source = "{name}"',
                f"installation = {INSTALLATION}",
            )
            (enrolled / sample["subscription"]).with_suffix(".toml").write_text("\n".join(entry) + "\n")
        (self.folder / "gateway.toml").write_text("\n".join(lines) + "\n")

    async def start_receiver(self) -> None:
        """Start the receiver and wait until it is ready. Raises RuntimeError with its log where it is not."""
        with (self.folder / "gateway.log").open("ab") as log:
            process = await self.spawn(
                "-m", "gateway", "serve", "--config", str(self.folder / "gateway.toml"), stderr=log
            )
        self.receiver = process
        end = time.monotonic() + READY_S
        while time.monotonic() < end and process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with self.session.get(f"{self.public}/readyz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the receiver did not start:\n{(self.folder / 'gateway.log').read_text()}")

    async def spawn(self, *arguments: str, stderr: Any = None) -> asyncio.subprocess.Process:
        """Run this Python with `arguments` in a process of its own, ended when the stage is."""
        # a session of its own: Ctrl-C ends this process, which then ends them in order
        process = await asyncio.create_subprocess_exec(
            *following(sys.executable, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._stack.push_async_callback(stop, process)
        return process

    async def lines(self) -> AsyncIterator[Line]:
        """Send every sample in each of its cases; yield what became of it."""
        for sample in self.samples:
            profile = self.profiles[sample["profile"]]
            signed = self.signed(sample, time.time())
            yield await self._line(sample, "valid", *signed)
            yield await self._line(sample, "duplicate", *signed)
            yield await self._line(sample, "forged", *self.signed(sample, time.time(), forged=True))
            if profile.freshness is not None or isinstance(profile.proof, JwtProof):
                yield await self._line(sample, "stale", *self.signed(sample, time.time() - 3600))
            yield await self._line(sample, "unwanted", *self.signed(unwanted(sample), time.time()))

    def signed(self, sample: Mapping[str, Any], now: float, *, forged: bool = False) -> tuple[dict[str, str], bytes]:
        """A sample as its provider would send it at `now`; `forged` with a key of somebody else."""
        profile = self.profiles[sample["profile"]]
        secret = make_secret(profile) if forged else self.secrets[sample["source"]]
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048) if forged else self.forge_key
        headers, body = prepare(profile, sample, secret, now)
        claims = fill(sample.get("claims", {}), now, secrets.token_hex(16))
        return sign(profile, headers, body, secret, private_key=key, claims=claims, kid=KID), body

    async def _line(self, sample: Mapping[str, Any], case: str, headers: Mapping[str, str], body: bytes) -> Line:
        url = f"{self.public}/hooks/{sample['source']}"
        async with self.session.post(url, data=body, headers=headers) as response:
            status, delivery = response.status, response.headers.get("gateway-delivery")
        record = await self._record(sample["source"], EXPECTED[case])
        dispatch = await self._dispatch() if case == "valid" else None
        envelope = dispatch["body"] if dispatch is not None else None
        return Line(
            sample["source"],
            sample["profile"],
            case,
            status,
            record and record["outcome"],
            record and record["reason"],
            delivery,
            envelope and envelope["client_payload"]["gateway"]["dispatch"],
            envelope,
        )

    async def _record(self, source: str, expected: str) -> Any:
        """The new record of a source; refusals are written about once a second."""
        end, newest = time.monotonic() + SETTLE_S, None
        while time.monotonic() < end:
            async with self.session.get(f"{self.admin}/api/v1/deliveries", params={"source": source}) as response:
                rows = [r for r in (await response.json())["deliveries"] if r["id"] not in self._seen]
            newest = next((r for r in rows if r["outcome"] == expected), rows[0] if rows else None)
            if newest is not None:
                self._seen.update(r["id"] for r in rows)
                return newest
            await asyncio.sleep(0.1)
        return newest

    async def _dispatch(self) -> Any:
        """The dispatch that the double received since the last look."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            async with self.session.get(f"{self.github}/_double/dispatches") as response:
                found = (await response.json())["dispatches"]
            for entry in found:
                name = entry["body"]["client_payload"]["gateway"]["dispatch"]
                if name not in self._seen:
                    self._seen.add(name)
                    return entry
            await asyncio.sleep(0.05)
        return None

    async def until_interrupted(self) -> None:
        """Wait for Ctrl-C or SIGTERM."""
        stop_now = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop_now.set)
        await stop_now.wait()


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a process that we started: politely, then at once."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def make_secret(profile: Profile) -> bytes:
    """A random secret in the form that the profile's provider uses."""
    raw = secrets.token_bytes(32)
    if getattr(profile.proof, "key", "utf8") == "whsec":
        return b"whsec_" + base64.b64encode(raw)
    if getattr(profile.proof, "form", "plain") == "basic":
        return b"gateway:" + raw.hex().encode()
    return raw.hex().encode()


def public_jwk(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    """The public half as a JWK."""
    jwk: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": KID, "use": "sig", "alg": "RS256"}


def unwanted(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The sample with the members replaced that make it an event which nobody wants."""
    changed = copy.deepcopy(dict(sample))
    for pointer, value in sample["unwanted"].items():
        *path, last = [int(t) if t.isdigit() else t for t in pointer.removeprefix("/").split("/")]
        target = changed["body"]
        for token in path:
            target = target[token]
        target[last] = value
    return changed
