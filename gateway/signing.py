"""Sign a delivery exactly as its provider would: the inverse of `verify`, driven by the same profile data.

For `gateway deliver` and `gateway demo`, which send a first test without the provider. Secrets come in as plain bytes and go out
only inside the signature.
"""

import base64
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from gateway.profiles import (
    ClientStateProof,
    Ed25519Proof,
    JwtProof,
    MacProof,
    Profile,
    SharedSecretProof,
    layout_piece,
)


def fill(value: Any, now: float, delivery: str) -> Any:
    """Replace a sample's placeholders: `$uuid`, `$now_s`, `$now_s+N`, `$now_ms` (integers), `$iso` (RFC 3339 text)."""
    if isinstance(value, dict):
        return {key: fill(inner, now, delivery) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, now, delivery) for inner in value]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if (later := re.fullmatch(r"\$now_s\+(\d{1,4})", value)) is not None:
        return int(now) + int(later[1])
    plain = {
        "$uuid": delivery,
        "$now_s": int(now),
        "$now_ms": int(now * 1000),
        "$iso": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    return plain.get(value, value)


def prepare(profile: Profile, sample: Mapping[str, Any], secret: bytes, now: float) -> tuple[dict[str, str], bytes]:
    """Fill a sample (`{"headers": {...}, "body": {...}}`) and encode it, with the per-item client state where the profile has one."""
    delivery = str(uuid.uuid4())
    headers = {name.lower(): str(value) for name, value in fill(sample.get("headers", {}), now, delivery).items()}
    body = fill(sample["body"], now, delivery)
    if isinstance(profile.proof, ClientStateProof):
        items = body[profile.proof.items.removeprefix("/")]
        for item in items:
            item[profile.proof.at.removeprefix("/")] = secret.decode()
    if isinstance(profile.proof, MacProof) and _members(profile.proof):  # such as Stripe's `t=`, beside the signature
        given = (f"{name}={int(now)}" for name in _members(profile.proof))
        headers.setdefault(profile.proof.header, (profile.proof.separator or ",").join(given))
    headers.setdefault("content-type", "application/json")
    return headers, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def sign(
    profile: Profile,
    headers: Mapping[str, str],
    body: bytes,
    secret: bytes,
    *,
    private_key: RSAPrivateKey | Ed25519PrivateKey | None = None,
    claims: Mapping[str, Any] | None = None,
    kid: str = "",
) -> dict[str, str]:
    """Return the headers with the provider's proof added. Header names are lower case; raises TypeError where the private key is missing."""
    proof, signed = profile.proof, dict(headers)
    if isinstance(proof, MacProof):
        before = signed[proof.header] + (proof.separator or "") if _members(proof) else ""
        signed[proof.header] = before + _mac(proof, signed, body, secret, private_key)
    elif isinstance(proof, Ed25519Proof):
        if not isinstance(private_key, Ed25519PrivateKey):
            raise TypeError(f"profile {profile.name} signs with a private key that only the provider has")
        signed[proof.header] = proof.prefix + _encode(private_key.sign(_layout(proof, signed, body)), proof.encoding)
    elif isinstance(proof, SharedSecretProof):
        plain = secret if proof.form == "plain" else b"Basic " + base64.b64encode(secret)
        signed[proof.header] = plain.decode()
    elif isinstance(proof, JwtProof):
        if not isinstance(private_key, RSAPrivateKey):
            raise TypeError(f"profile {profile.name} takes tokens that only the provider can sign")
        token = jwt.encode(dict(claims or {}), private_key, algorithm="RS256", headers={"kid": kid})
        signed[proof.header] = f"Bearer {token}"
    return signed


def _mac(proof: MacProof, headers: Mapping[str, str], body: bytes, secret: bytes, private_key: Any) -> str:
    """One signature of the header: keyed, or of a private key where the source's secret is a public one."""
    signed = _layout(proof, headers, body)
    if proof.also_ed25519_prefix is not None and secret.startswith((b"whpk_", b"whsk_")):
        if not isinstance(private_key, Ed25519PrivateKey):
            raise TypeError("the source's secret is a public key: only the sender has the private one")
        return proof.also_ed25519_prefix + _encode(private_key.sign(signed), "base64")
    return proof.prefix + _encode(hmac.digest(_key(proof, secret), signed, hashlib.sha256), proof.encoding)


def _members(proof: MacProof | Ed25519Proof) -> list[str]:
    """The members of the signature's own header that are signed."""
    return [name for kind, name in map(layout_piece, proof.layout) if kind == "signature"]


def _key(proof: MacProof, secret: bytes) -> bytes:
    if proof.key == "whsec":
        return base64.b64decode(secret.removeprefix(b"whsec_"))
    return bytes.fromhex(secret.decode()) if proof.key == "hex" else secret


def _layout(proof: MacProof | Ed25519Proof, headers: Mapping[str, str], body: bytes) -> bytes:
    members = dict(one.partition("=")[::2] for one in headers.get(proof.header, "").split(proof.separator or ","))
    parts = []
    for kind, text in map(layout_piece, proof.layout):
        if kind == "body":
            parts.append(body)
        elif kind == "literal":
            parts.append(text.encode())
        else:
            parts.append((headers[text] if kind == "header" else members[text].strip()).encode())
    return b"".join(parts)


def _encode(digest: bytes, encoding: str) -> str:
    return digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
