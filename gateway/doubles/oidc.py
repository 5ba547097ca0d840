"""A double of GitHub's OIDC issuer, with keys of its own, and of the endpoint where a run asks for its token.

- `GET /.well-known/jwks`, `GET /.well-known/openid-configuration`: what a relying party reads.
- `GET /token?run=ID&audience=A` with the run's request token: what `ACTIONS_ID_TOKEN_REQUEST_URL` is for a job.
- `POST /_double/run` `{claims}` starts a run: the answer has `url` and `token` for the job's environment. The claims are
  those of `run_claims`; `python -m gateway.doubles.runner` starts a run with them and runs the action in it.
- `POST /_double/sign` `{claims, header?, own_key?}` signs anything; claims without times get good ones, and null is no claim.
  `own_key: false` uses a key that the issuer does not publish.
- `POST /_double/state` `{away?, rotate?}`: keys that cannot be fetched, or a new key beside the old one.

What GitHub documents of a token: https://docs.github.com/en/actions/reference/security/oidc
"""

import argparse
import asyncio
import base64
import itertools
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import jwt.algorithms
import orjson
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from gateway.structs import Value

LIFE_S = 300


class Issuer:
    """Keys, runs and tokens of one issuer; `url` is its `iss`."""

    def __init__(self, url: str = "", clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.away = False
        self.asked = 0
        self.runs: dict[str, tuple[str, dict[str, Any]]] = {}
        self._clock = clock
        self._numbers = itertools.count(9_000_000_001)
        self.stranger = generate_private_key(65537, 2048)
        self.keys: dict[str, RSAPrivateKey] = {}
        self.rotate()

    def rotate(self) -> str:
        """Publish a new key beside the old ones and sign with it from now on; return its id."""
        kid = secrets.token_hex(8)
        self.keys[kid] = generate_private_key(65537, 2048)
        return kid

    @property
    def kid(self) -> str:
        """The key that signs."""
        return next(reversed(self.keys))

    def jwks(self) -> dict[str, Any]:
        """Return the published keys."""
        return {"keys": [_public(key, kid) for kid, key in self.keys.items()]}

    def claims(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Complete the claims of a run with an issuer, times, a single-use id and a run id, where they are not given."""
        now = int(self._clock())
        times = {"iat": now, "nbf": now - 5, "exp": now + LIFE_S}
        named = {"iss": self.url, "jti": secrets.token_hex(16), "run_id": str(next(self._numbers)), "run_attempt": "1"}
        return {name: value for name, value in {**named, **times, **given}.items() if value is not None}

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None, *, own_key: bool = True) -> str:
        """Sign claims as they are, with RS256 whatever the header says."""
        head = {"typ": "JWT", "alg": "RS256", "kid": self.kid, **(header or {})}
        return self.sign_raw(orjson.dumps(head), orjson.dumps(dict(claims)), own_key=own_key)

    def sign_raw(self, header: bytes, claims: bytes, *, own_key: bool = True) -> str:
        """Sign the very bytes, which need not be good JSON."""
        signed = encode(header) + b"." + encode(claims)
        key = self.keys[self.kid] if own_key else self.stranger
        return (signed + b"." + encode(key.sign(signed, PKCS1v15(), SHA256()))).decode()

    def start_run(self, claims: Mapping[str, Any]) -> tuple[str, str]:
        """Start a run; return its id and its request token."""
        run, token = str(claims.get("run_id") or next(self._numbers)), secrets.token_urlsafe(24)
        self.runs[run] = (token, {**claims, "run_id": run})
        return run, token

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/.well-known/jwks", self._jwks),
                web.get("/.well-known/openid-configuration", self._configuration),
                web.get("/token", self._token),
                web.post("/_double/run", self._run),
                web.post("/_double/sign", self._sign),
                web.post("/_double/state", self._state),
            ]
        )
        return app

    async def _jwks(self, _: web.Request) -> web.StreamResponse:
        self.asked += 1
        return web.Response(status=503) if self.away else web.json_response(self.jwks())

    async def _configuration(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/.well-known/jwks"})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        """Answer as the runner's token service does: the value of one token for one audience."""
        known = self.runs.get(request.query.get("run", ""))
        if known is None or request.headers.get("Authorization") != f"Bearer {known[0]}":
            return web.Response(status=401)
        audience = request.query.get("audience") or f"https://github.com/{known[1].get('repository_owner', '')}"
        return web.json_response({"value": self.sign(self.claims({"aud": audience, **known[1]}))})

    async def _run(self, request: web.Request) -> web.StreamResponse:
        run, token = self.start_run((await request.json()).get("claims", {}))
        return web.json_response(
            {"run_id": run, "url": f"{self.url}/token?run={quote(run, safe='')}", "token": token}, status=201
        )

    async def _sign(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        token = self.sign(self.claims(asked["claims"]), asked.get("header"), own_key=asked.get("own_key", True))
        return web.json_response({"value": token})

    async def _state(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.away = bool(asked.get("away", self.away))
        if asked.get("rotate"):
            self.rotate()
        return web.json_response({"away": self.away, "kids": list(self.keys), "asked": self.asked})


def run_claims(
    *,
    repository: str,
    repository_id: int,
    workflow: str,
    workflow_sha: str,
    actor_id: int,
    branch: str = "main",
    actor: str = "gateway-double[bot]",
) -> dict[str, Any]:
    """Return the claims of a job of a run that a `repository_dispatch` started, as GitHub documents them."""
    owner, ref = repository.split("/", maxsplit=1)[0], f"refs/heads/{branch}"
    path = f"{repository}/{workflow}@{ref}"
    return {
        "sub": f"repo:{repository}:ref:{ref}",
        "ref": ref,
        "ref_type": "branch",
        "sha": workflow_sha,
        "repository": repository,
        "repository_id": str(repository_id),
        "repository_owner": owner,
        "repository_owner_id": "4242",
        "repository_visibility": "private",
        "actor": actor,
        "actor_id": str(actor_id),
        "event_name": "repository_dispatch",
        "workflow": "destination",
        "workflow_ref": path,
        "workflow_sha": workflow_sha,
        "job_workflow_ref": path,
        "job_workflow_sha": workflow_sha,
        "runner_environment": "github-hosted",
        "run_number": "7",
    }


CLAIMS = frozenset(
    run_claims(repository="o/r", repository_id=1, workflow="w", workflow_sha="", actor_id=1).keys()
    | {"iss", "aud", "jti", "iat", "nbf", "exp", "run_id", "run_attempt", "environment"}
)
"""The names of the claims that this issuer's tokens may have."""


def encode(data: bytes) -> bytes:
    """Encode base64url without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _public(key: RSAPrivateKey, kid: str) -> dict[str, Any]:
    jwk: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"kty": "RSA", "n": jwk["n"], "e": jwk["e"], "kid": kid, "use": "sig", "alg": "RS256"}


class Running(Value):
    """An issuer that listens."""

    address: str
    issuer: Issuer

    @property
    def jwks_url(self) -> str:
        """Where its keys are."""
        return f"{self.address}/.well-known/jwks"


@asynccontextmanager
async def running(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Running]:
    """Run an issuer in this event loop; port 0 takes a free one."""
    issuer = Issuer()
    runner = web.AppRunner(issuer.app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        shown = f"[{host}]" if ":" in host else host
        issuer.url = f"http://{shown}:{runner.addresses[0][1]}"
        yield Running(issuer.url, issuer)
    finally:
        await runner.cleanup()


async def serve(host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; say the address in one line of JSON."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(host, port) as double:
        told = {"event": "listening", "url": double.address, "issuer": double.address, "jwks_url": double.jwks_url}
        sys.stdout.write(orjson.dumps(told).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the double as a process of its own; 3 where its port is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.doubles.oidc",
        description=__doc__,
        epilog="Example: python -m gateway.doubles.oidc --port 8092",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        asyncio.run(serve(options.host, options.port))
    except OSError as error:
        sys.stderr.write(f"oidc double: {error.strerror or error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
