"""`Keys`: secrets and JWKS for the verifying core. Cached, rotated without a restart, cooled down; hands out plain material.

A `file:` secret that changes on disk is read again within two seconds; when it cannot be read or is empty, the last good
value stays and a warning says so (a rotation that is half done must not open or close anything). A JWKS is refreshed
hourly and on an unknown kid, at most once a minute, and used for up to six hours after its last good fetch.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway import log
from gateway.environment import resolve
from gateway.errors import Unavailable
from gateway.profiles import JwtProof, Source
from gateway.settings import Settings, SourceSettings
from gateway.strict_json import loads
from gateway.verify import KeyRing, Secret

CHECK_FILES_S = 1.0
REFRESH_S = 3600.0
COOLDOWN_S = 60.0
STALE_S = 6 * 3600.0
JWKS_BYTES = 262_144


class SecretValue:
    """One reference and its last good value."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.value = resolve(reference)
        self._stamp = self._now()

    def _now(self) -> tuple[int, int, int] | None:
        if not self.reference.startswith("file:"):
            return None
        try:
            status = Path(self.reference.removeprefix("file:")).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def refresh(self) -> None:
        """Read a changed file again; keep the last good value where that fails."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        try:
            self.value = resolve(self.reference)
        except ValueError:
            log.event("secret-unreadable", logging.WARNING, reference=self.reference)
        else:
            log.event("secret-reloaded", reference=self.reference)
        self._stamp = stamp


@dataclass(slots=True)
class KeySet:
    """One JWKS URL's keys and when they were fetched (monotonic seconds)."""

    keys: Mapping[str, RSAPublicKey]
    good_at: float
    tried_at: float


class Jwks:
    """JWKS documents by URL."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession]) -> None:
        self._session = session
        self._sets: dict[str, KeySet] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def keys(self, url: str, kid: str | None) -> Mapping[str, RSAPublicKey]:
        """Return the keys of `url`, refreshed where `kid` is unknown. Raises Unavailable `jwks-unavailable`.

        That is also said of an unknown `kid` while the last try to look for it failed: it may be a new key.
        """
        if _due(self._sets.get(url), kid):
            async with self._locks.setdefault(url, asyncio.Lock()):
                if _due(self._sets.get(url), kid):  # nobody tried while we waited
                    await self._refresh(url, self._sets.get(url))
        known = self._sets.get(url)
        if known is None or not known.keys or time.monotonic() - known.good_at > STALE_S:
            raise Unavailable("jwks-unavailable", 30)
        if kid is not None and kid not in known.keys and known.tried_at > known.good_at:
            raise Unavailable("jwks-unavailable", 30)
        return known.keys

    async def _refresh(self, url: str, known: KeySet | None) -> None:
        now = time.monotonic()
        try:
            keys = await fetch_jwks(self._session(), url)
        except Unavailable as error:
            log.event("jwks-failed", logging.WARNING, url=url, reason=error.reason)
            if known is not None:
                known.tried_at = now
            else:
                self._sets[url] = KeySet({}, now - STALE_S - 1, now - COOLDOWN_S + 5)  # first try failed: again in 5 s
        else:
            self._sets[url] = KeySet(keys, now, now)


def _due(known: KeySet | None, kid: str | None) -> bool:
    """Whether the keys are to be fetched now."""
    if known is None:
        return True
    now = time.monotonic()
    if now - known.tried_at <= COOLDOWN_S:
        return False
    return now - known.good_at > REFRESH_S or (kid is not None and kid not in known.keys)


async def fetch_jwks(session: aiohttp.ClientSession, url: str) -> dict[str, RSAPublicKey]:
    """Fetch a JWKS (RFC 7517, https://www.rfc-editor.org/rfc/rfc7517): its RSA signing keys of 2,048 bits or more, by kid."""
    timeout = aiohttp.ClientTimeout(total=2)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise Unavailable("jwks-status")
            body = await response.content.read(JWKS_BYTES + 1)
            while len(body) <= JWKS_BYTES and (more := await response.content.read(JWKS_BYTES)):
                body += more
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable("jwks-unreachable") from error
    if len(body) > JWKS_BYTES:
        raise Unavailable("jwks-too-large")
    try:
        document: Any = loads(body)
        listed = document["keys"]
        keys = {
            entry["kid"]: key
            for entry in listed
            if isinstance(entry, dict)
            and isinstance(entry.get("kid"), str)
            and isinstance(key := _rsa(entry), RSAPublicKey)
        }
    except Exception as error:  # whatever a foreign document makes a parser raise, it is no key set
        raise Unavailable("jwks-malformed") from error
    if not keys:
        raise Unavailable("jwks-empty")
    return keys


def _rsa(entry: Mapping[str, Any]) -> RSAPublicKey | None:
    if entry.get("kty") != "RSA" or entry.get("use", "sig") != "sig" or entry.get("alg", "RS256") != "RS256":
        return None
    key = jwt.PyJWK(dict(entry), algorithm="RS256").key
    return key if isinstance(key, RSAPublicKey) and key.key_size >= 2048 else None


class Keys:
    """The key rings of all sources."""

    def __init__(self, settings: Settings, session: Callable[[], aiohttp.ClientSession]) -> None:
        self.jwks = Jwks(session)
        self._checked_at = time.monotonic()
        self._secrets: dict[str, tuple[tuple[str, SecretValue, str | None], ...]] = {}
        self._rings: dict[str, KeyRing] = {}
        self._sources: Mapping[str, SourceSettings] = {}
        self.replace(settings)

    def replace(self, settings: Settings) -> None:
        """Take another configuration's references. Raises ValueError where one cannot be read; nothing changes then."""
        secrets = {
            name: tuple((label, SecretValue(reference), bound) for label, reference, bound in source.references())
            for name, source in settings.sources.items()
        }
        self._secrets, self._sources = secrets, settings.sources
        self._build()

    def _build(self) -> None:
        self._rings = {
            name: KeyRing(tuple(Secret(label, secret.value, bound) for label, secret, bound in entries))
            for name, entries in self._secrets.items()
        }

    async def ring(self, source: Source, kid: str | None = None) -> KeyRing:
        """The key material of a source; for a JWT profile its JWKS, where `kid` should be. Raises Unavailable."""
        proof = source.profile.proof
        if isinstance(proof, JwtProof):
            url = self._sources[source.name].jwks_url or proof.jwks_url
            return KeyRing((), await self.jwks.keys(url, kid))
        self.refresh()
        return self._rings[source.name]

    def refresh(self) -> None:
        """Read files that changed again, at most once a second.

        To be called without a delivery too: a process that got none while a leaked secret was written over, and found the
        file deleted later, would keep the leaked one as the last good value.
        """
        if time.monotonic() - self._checked_at < CHECK_FILES_S:
            return
        self._checked_at = time.monotonic()
        for entries in self._secrets.values():
            for _, secret, _ in entries:
                secret.refresh()
        self._build()
