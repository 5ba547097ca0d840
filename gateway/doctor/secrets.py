"""The key sets that we depend on, and the files of our secrets."""

import stat
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from gateway.configuration import Configuration
from gateway.doctor.finding import Finding, Findings
from gateway.environment import resolve
from gateway.errors import Unavailable
from gateway.keys import fetch_jwks
from gateway.profiles import JwtProof
from gateway.settings import references

LEAST_SECRET = 16


async def keys_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """Published key sets that we depend on, and the secrets' files."""
    urls = {configuration.settings.admission.jwks_url: "admission"}
    for name, source in configuration.sources.items():
        if isinstance(source.profile.proof, JwtProof):
            urls.setdefault(
                configuration.settings.sources[name].jwks_url or source.profile.proof.jwks_url, f"source {name}"
            )
    for url, whose in urls.items():
        try:
            keys = await fetch_jwks(session, url)
        except Unavailable as error:
            fix = f"open outgoing https to {urlsplit(url).hostname}, or correct the address"
            yield Finding("JWKS", "fail", f"{url} ({whose}): {error.reason}", fix)
        else:
            yield Finding("JWKS", "ok", f"{url} ({whose}): {len(keys)} key(s)")
    for finding in secrets(configuration):
        yield finding


def secrets(configuration: Configuration) -> list[Finding]:
    """Files that others may read, and secrets that can be guessed. Whether they are there, the configuration says."""
    named, found, missing = references(configuration.settings), [], 0
    for key, reference in named:
        path = Path(reference.removeprefix("file:"))
        try:
            secret = resolve(reference)
        except ValueError:  # a problem of the configuration, told there
            missing += 1
            continue
        if reference.startswith("file:") and stat.S_IMODE(path.stat().st_mode) & 0o007:
            found.append(Finding("secrets", "warn", f"{key}: {path} is readable by everyone", f"chmod o= {path}"))
        if len(secret) < LEAST_SECRET:
            detail = f"{key}: {reference} has fewer than {LEAST_SECRET} bytes"
            found.append(Finding("secrets", "warn", detail, "use at least 32 random bytes: openssl rand -hex 32"))
    return found or ([] if missing else [Finding("secrets", "ok", f"{len(named)} present")])
