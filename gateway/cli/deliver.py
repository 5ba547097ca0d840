"""`gateway deliver`: send a test delivery to a source, signed as its provider would."""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.cli import complete
from gateway.cli.explain import read_headers
from gateway.cli.options import BODY_BYTES, config_option, content, json_option
from gateway.cli.progress import waiting
from gateway.configuration import Base, enrollments, load_base
from gateway.delivery import RawDelivery
from gateway.environment import resolve, text_problem
from gateway.errors import Rejection, Unavailable
from gateway.explain import completed
from gateway.pointers import parse
from gateway.pointers import resolve as resolve_pointer
from gateway.profiles import Profile, Source
from gateway.samples import fitting, shipped
from gateway.signing import fill, prepare, sign
from gateway.subscriptions import build_index
from gateway.verify import secret_problem

TIMEOUT_S = 30.0


@click.command(epilog="Example: gateway deliver linear-acme --config gateway.toml")
@click.argument("source", shell_complete=complete.sources)
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A body as JSON, or a sample with headers and body.  [default: the shipped sample of the source's profile]",
)
@click.option(
    "--headers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Headers for it: a JSON object, or a list of [name, value] pairs. Those that are signed or name the event are supplied.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A private key as PEM, where the provider signs with one: the source then has your public key, or your jwks_url.",
)
@click.option("--kid", default="", help="The key's id in your jwks_url.")
@click.option("--url", help="Where to: the address before /hooks/.  [default: server.bind on this machine]")
@config_option
@json_option
def deliver(
    source: str,
    file: Path | None,
    headers: Path | None,
    key: Path | None,
    kid: str,
    url: str | None,
    config: Path,
    *,
    as_json: bool,
) -> None:
    """Sign a delivery with SOURCE's first secret and send it to /hooks/SOURCE.

    The shipped sample carries the source's own identity; whether a subscription wants it depends on what is granted.
    Times that the provider signs are set to now, and the delivery id is new. Exit 1: it was refused; 3: nobody answered
    or the receiver is away.
    """
    base = load_base(config)
    if source not in base.sources:
        raise click.UsageError(f"{source} is none of {', '.join(base.sources)}")
    target = base.sources[source]
    sample, now = _sample(base, target, file, headers), time.time()
    try:
        secret = _secret(base, source)
        sent, body = prepare(target.profile, sample, secret, now)
        claims = fill(sample.get("claims", {}), now, str(uuid.uuid4()))
        signed = sign(target.profile, sent, body, secret, private_key=_private(key), claims=claims, kid=kid)
    except TypeError as error:
        raise click.UsageError(f"{error}; a key of your own: --key") from None
    except (ValueError, KeyError) as error:
        raise click.UsageError(f"cannot be signed: {error}") from None
    where = f"{(url or _here(base)).rstrip('/')}/hooks/{source}"
    with waiting("waiting for the answer", quiet=as_json):
        status, delivery, answer = asyncio.run(_post(where, signed, body))
    if as_json:
        row = {"source": source, "url": where, "status": status, "delivery": delivery, "answer": answer}
        click.echo(json.dumps({"deliveries": [row]}))
    else:
        click.echo(f"{status} {delivery or '(no Gateway-Delivery)'}" + (f" {answer}" if answer else ""))
        if delivery:
            click.echo(f"what became of it: gateway explain {delivery} --config {config}", err=True)
    raise SystemExit(0 if 200 <= status < 300 else 3 if status >= 500 else 1)


def _secret(base: Base, source: str) -> bytes:
    """The source's first secret; a JWT source has none. Raises ValueError, never with the value."""
    for _, reference, _ in base.settings.sources[source].references():
        secret = resolve(reference)
        error = text_problem(secret) or secret_problem(base.sources[source].profile.proof, secret)
        if error is not None:
            raise ValueError(f"{reference} {error}")
        return secret
    return b""


def _private(file: Path | None) -> RSAPrivateKey | Ed25519PrivateKey | None:
    if file is None:
        return None
    try:
        key = load_pem_private_key(content(file, BODY_BYTES), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey | Ed25519PrivateKey):
        raise click.BadParameter("is no unencrypted RSA or Ed25519 private key in PEM form", param_hint="--key")
    return key


def _sample(base: Base, source: Source, file: Path | None, headers: Path | None) -> dict[str, Any]:
    profile = source.profile
    own = shipped(profile)
    if file is None:
        sample = fitting(own, source)
    else:
        sample = {"claims": fitting(own, source).get("claims", {})} | _given(file, profile, own)
    given = {name.decode(): value.decode() for name, value in read_headers(headers)}
    sample["headers"] = {name.lower(): value for name, value in sample.get("headers", {}).items()} | given
    if not sample.pop("whole", True):
        sample["headers"] = _event_header(base, source, sample, given) | given
    return sample


def _given(file: Path, profile: Profile, shipped: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document = json.loads(content(file, BODY_BYTES))
    except (ValueError, RecursionError):
        raise click.BadParameter("is no JSON", param_hint="--file") from None
    if isinstance(document, dict) and isinstance(document.get("body"), (dict, list)) and "headers" in document:
        return document
    if isinstance(document, dict) and profile.freshness is not None and profile.freshness.at.startswith("/"):
        _set(document, profile.freshness.at, f"$now_{profile.freshness.unit}")
    return {"headers": shipped.get("headers", {}), "body": document, "whole": False}


def _event_header(base: Base, source: Source, sample: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a body alone: a shipped sample's, but the event's by the body's shape, as `explain` supplies it."""
    event = source.profile.event
    headers = {name: value for name, value in sample["headers"].items() if name != event.header}
    if event.header is None or event.header in given:
        return headers
    enrolled, _ = enrollments(base)
    raw = RawDelivery("deliver", source.name, time.time(), (), b"", json.dumps(sample["body"]).encode())
    try:
        _, added = completed(raw, source.profile, build_index(enrolled, base.sources).wanted(source.name))
    except Rejection as error:
        raise click.BadParameter(f"is refused: {error.reason}", param_hint="--file") from None
    if event.header in added:
        return headers | {event.header: added[event.header]}
    if event.shapes and f"header:{event.header}" in event.parts:
        raise click.UsageError(
            f"the body may be of several events: name its own in the header {event.header}, with --headers"
        )
    said = resolve_pointer(sample["body"], parse(event.header_equals)) if event.header_equals else None
    if not isinstance(said, str) or event.header_values:
        said = sample["headers"].get(event.header)
    return headers | ({event.header: said} if said else {})


def _set(document: Any, pointer: str, value: Any) -> None:
    *parents, last = parse(pointer)
    for token in parents:
        document = document.setdefault(token, {})
    before = document.get(last)
    document[last] = int(value) if isinstance(before, int) and str(value).isdecimal() else value


def _here(base: Base) -> str:
    host, _, port = base.settings.server.bind.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"  # noqa: S104 (what it is compared with)


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str | None, str]:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise click.BadParameter("is no http URL", param_hint="--url")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            return response.status, response.headers.get("gateway-delivery"), (await response.text())[:2048]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"{url} does not answer: {type(error).__name__}") from error
