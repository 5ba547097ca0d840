"""A signed JWT against a JWKS (Atlassian Forge Invocation Token): RS256 only, strictly decoded, judged at `now`.

https://developer.atlassian.com/platform/forge/remote/essentials/#the-forge-invocation-token--fit-
The segments are decoded here and not by a library: duplicate claims, a textual `exp`, a boolean `iat` and a list of
audiences are each accepted somewhere, and none of them has one meaning.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from gateway import pointers, strict_json
from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import JwtProof, Pick
from gateway.structs import Opaque

MAX_TOKEN_BYTES: Final = 16_384
MAX_JTI_CHARS: Final = 200
MIN_KEY_BITS: Final = 2048

_TOKEN: Final = re.compile(rb"Bearer ([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TEXT: Final = re.compile(r"[\x21-\x7e]+")


class Proved(Opaque):
    """A token that holds: the key's id, the facts that its claims establish, and its single-use id with its end."""

    kid: str
    facts: Mapping[str, str]
    jti: tuple[str, float]


class Token(Opaque):
    """A token's parts, decoded and not yet believed."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


def verify(
    raw: RawDelivery,
    proof: JwtProof,
    jwks: Mapping[str, RSAPublicKey],
    audiences: tuple[str, ...],
    now: float,
) -> Proved:
    """Prove the token of `raw`; raises Rejection `token`, `claims` or `freshness` (401).

    1. Shape: one bearer token, bounded, three canonical base64url segments of strict JSON objects.
    2. Header: RS256, a known `kid`, no `crit` extension.
    3. Signature, with that one key.
    4. Claims: issuer, one audience out of `audiences`, exact values, equal pairs, nothing forbidden, a `jti`.
    5. Times: `exp`, `nbf` and `iat` are numbers, bounded to both sides with leeway; the lifetime is bounded.
    """
    token = parse(raw.header(proof.header))
    kid = known_kid(token.header, jwks)
    check_signature(token, jwks[kid])
    _check_claims(token, proof, audiences)
    expires = _check_times(token.claims, proof, now)
    jti = token.claims.get("jti")
    if not isinstance(jti, str) or len(jti) > MAX_JTI_CHARS or not _TEXT.fullmatch(jti):
        raise Rejection("claims", 401)
    return Proved(kid, _facts(token.claims, proof), (jti, expires + proof.leeway_s))


def unverified_kid(raw: RawDelivery, proof: JwtProof) -> str | None:
    """Return the key id that the token claims, before any proof, so that its caller may refresh a JWKS; None for none."""
    try:
        kid = parse(raw.header(proof.header)).header.get("kid")
    except Rejection:
        return None
    return kid if isinstance(kid, str) and _TEXT.fullmatch(kid) else None


def parse(value: bytes | None) -> Token:
    """Decode without believing; raises Rejection `token`."""
    match = _TOKEN.fullmatch(value) if value is not None and len(value) <= MAX_TOKEN_BYTES else None
    if match is None:
        raise Rejection("token", 401)
    head, body, signature = match.groups()
    return Token(_object(head), _object(body), head + b"." + body, _segment(signature))


def _segment(text: bytes) -> bytes:
    """Decode base64url without padding, in its one canonical spelling (RFC 7515 section 2)."""
    try:
        value = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError as error:
        raise Rejection("token", 401) from error
    if base64.urlsafe_b64encode(value).rstrip(b"=") != text:
        raise Rejection("token", 401)
    return value


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = strict_json.loads(_segment(text))
    except Rejection as error:
        raise Rejection("token", 401) from error
    if not isinstance(value, dict):
        raise Rejection("token", 401)
    return value


def known_kid(header: Mapping[str, Any], jwks: Mapping[str, RSAPublicKey]) -> str:
    """Return the key id; embedded or linked keys (`jwk`, `jku`, `x5c`) are never looked at."""
    kid = header.get("kid")
    if header.get("alg") != "RS256" or "crit" in header or not isinstance(kid, str) or kid not in jwks:
        raise Rejection("token", 401)
    return kid


def check_signature(token: Token, key: RSAPublicKey) -> None:
    """Check RS256 with the one key; raises Rejection `token`."""
    if key.key_size < MIN_KEY_BITS:  # RFC 7518 section 3.3
        raise Rejection("token", 401)
    try:
        key.verify(token.signature, token.signed, PKCS1v15(), SHA256())
    except InvalidSignature as error:
        raise Rejection("token", 401) from error


def _check_claims(token: Token, proof: JwtProof, audiences: tuple[str, ...]) -> None:
    claims = token.claims
    audience = claims.get("aud")
    sound = (
        claims.get("iss") == proof.issuer
        and isinstance(audience, str)
        and audience in audiences
        and all(_text(claims, pointer) == value for pointer, value in proof.equals.items())
        and all(_text(claims, one) is not None and _text(claims, one) == _text(claims, two) for one, two in proof.same)
        and not any(_present(part, pointer) for pointer in proof.forbidden for part in (claims, token.header))
    )
    if not sound:
        raise Rejection("claims", 401)


def _check_times(claims: Mapping[str, Any], proof: JwtProof, now: float) -> float:
    """Judge the three times; returns `exp`. Each may be off by the leeway, no more, on the side that it bounds."""
    issued, begins, expires = (moment(claims.get(name)) for name in ("iat", "nbf", "exp"))
    if now >= expires + proof.leeway_s or now < begins - proof.leeway_s or now < issued - proof.leeway_s:
        raise Rejection("freshness", 401)
    if not 0 < expires - issued <= proof.max_lifetime_s:
        raise Rejection("claims", 401)
    return expires


def moment(value: Any) -> float:
    """Return a NumericDate (RFC 7519 section 2); raises Rejection `freshness` for text, a boolean or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejection("freshness", 401)
    return float(value)


def _facts(claims: Mapping[str, Any], proof: JwtProof) -> dict[str, str]:
    facts = {name: _text(claims, pointer) for name, pointer in proof.facts.items()}
    facts.update({name: _picked(claims, pick) for name, pick in proof.picked.items()})
    return {name: value for name, value in facts.items() if value is not None}


def _picked(claims: Mapping[str, Any], pick: Pick) -> str | None:
    among = pointers.resolve(claims, pointers.parse(pick.among))
    found = [
        _text(element, pick.take)
        for element in (among if isinstance(among, list) else [])
        if all(_text(element, pointer) == value for pointer, value in pick.where.items())
    ]
    return found[0] if len(found) == 1 else None


def _text(document: Any, pointer: str) -> str | None:
    value = pointers.resolve(document, pointers.parse(pointer))
    return value if isinstance(value, str) else None


def _present(document: Any, pointer: str) -> bool:
    return pointers.resolve(document, pointers.parse(pointer)) is not pointers.MISSING
