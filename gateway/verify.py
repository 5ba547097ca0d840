"""The proof of a delivery, over its bytes as received and under its source's profile: numbered steps, one exit each.

The profile chooses the scheme, never the headers that happen to arrive: a wrong proof falls back to no other, and
nothing to check against is a refusal. `VerifiedDelivery` is made here and nowhere else. What this module does not do:
decode the body (except where the proof stands inside it), look at event names, ids or tenants in it.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway import pointers, strict_json
from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import (
    ClientStateProof,
    Ed25519Proof,
    Freshness,
    Handshake,
    JwtProof,
    MacProof,
    Proof,
    SharedSecretProof,
    Source,
)
from gateway.schemes import client_state, ed25519, jwt, layout, mac, shared_secret
from gateway.structs import Opaque, field

MAX_ITEMS: Final = 1000
_TIMESTAMP: Final = re.compile(rb"[0-9]{1,13}")
_NO_FACTS: Final[Mapping[str, str]] = MappingProxyType({})


class Secret(Opaque):
    """One live secret: `label` (its position or name) is what records show, `value` never leaves.

    `subscription` binds it to the items of one provider subscription (Microsoft Graph).
    """

    label: str
    value: bytes
    subscription: str | None = None


class KeyRing(Opaque):
    """Plain key material of one source: its live secrets, or for a signed JWT the provider's public keys by `kid`."""

    secrets: tuple[Secret, ...] = ()
    jwks: Mapping[str, RSAPublicKey] = field(default_factory=dict)


class ItemProof(Opaque):
    """One item of a batch that is proved item by item: the `key` that proved it, or the `reason` why none did."""

    value: Any
    key: str | None
    reason: str | None


class VerifiedDelivery(Opaque):
    """A delivery whose proof held. Made by `verify` alone (`assumed` is for explaining).

    `key` is the label or `kid` that matched (`""` where items prove themselves), `facts` what the proof establishes,
    `jti` a token's single-use id and when it ends, `items` the proofs of a batch.
    """

    raw: RawDelivery
    key: str
    facts: Mapping[str, str]
    jti: tuple[str, float] | None
    items: tuple[ItemProof, ...] | None


class HandshakeAnswer(Opaque):
    """What answers a handshake. Nothing of it is stored."""

    status: int
    content_type: str | None
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def handshake(raw: RawDelivery, source: Source) -> HandshakeAnswer | None:
    """Answer an unauthenticated handshake (Microsoft Graph's `validationToken`), None where `raw` is none.

    https://learn.microsoft.com/graph/change-notifications-delivery-webhooks#notificationurl-validation
    The token is anybody's text: bounded, given back as plain text that no browser may sniff, and it touches no state.
    Raises Rejection `handshake` (400) for a token that is empty, too long, repeated, no UTF-8 or holds control characters.
    """
    for shake in source.profile.handshakes:
        if shake.unauthenticated and shake.query is not None:
            values = _query_values(raw.query, shake.query)
            if values:
                return _echo(values, shake)
    return None


def verify(raw: RawDelivery, source: Source, keys: KeyRing, now: float) -> VerifiedDelivery:
    """Prove `raw` to be from `source`'s provider; raises Rejection and nothing else.

    1. The proof of the profile's scheme, over the raw bytes, against every live key: `signature`, `token`, `claims`,
       and `header-repeated` for a second copy of a security header (401).
    2. Freshness of a signed time in the headers, past and future bounded: `freshness` (401). A time inside the body is
       judged by the reader, once there is a body.
    3. Identity as far as the proof itself names it (a token's installation, cloud, environment): `identity` (403).
    """
    proof = source.profile.proof
    freshness = source.profile.freshness
    sent = _header_time(raw, proof, freshness) if freshness is not None else None
    verified = _prove(raw, source, keys, now)
    if freshness is not None and sent is not None:
        _check_freshness(sent, freshness, source.freshness_s, now)
    if isinstance(proof, JwtProof):
        _check_identity(verified.facts, source)
    return verified


def assumed(raw: RawDelivery, source: Source) -> VerifiedDelivery:
    """Take `raw` as proven, for explaining a saved delivery alone: nothing that is made of it may be dispatched.

    What a token would establish is taken from the source's identity, of several values the first.
    """
    facts = {
        part[1:]: source.identity[name][0]
        for name, part in source.profile.identity.items()
        if part.startswith("@") and source.identity.get(name)
    }
    proof = source.profile.proof
    items = None
    if isinstance(proof, ClientStateProof):
        found = pointers.resolve(strict_json.loads(raw.body), pointers.parse(proof.items))
        if not isinstance(found, list):
            raise Rejection("json-shape", 400)
        items = tuple(ItemProof(item, "", None) for item in found)
    return VerifiedDelivery(raw, "", MappingProxyType(facts), None, items)


def unverified_kid(raw: RawDelivery, source: Source) -> str | None:
    """Return the key id that a JWT source's delivery claims, before any proof; None for other schemes or no token."""
    proof = source.profile.proof
    return jwt.unverified_kid(raw, proof) if isinstance(proof, JwtProof) else None


def secret_problem(proof: Proof, value: bytes) -> str | None:
    """Say what is wrong with a configured secret, None where it can prove something. Never quotes it.

    A secret that cannot be decoded, or an empty one, would never match (or be computable by anybody): an error at start.
    """
    if not value:
        return "is empty"
    if isinstance(proof, JwtProof):
        return "is not used: the keys are the provider's"
    if isinstance(proof, SharedSecretProof):
        return _shared_secret_problem(proof, value)
    if isinstance(proof, Ed25519Proof) and ed25519.public_key(value, proof.key) is None:
        return "is no Ed25519 public key"
    if isinstance(proof, MacProof):
        if proof.also_ed25519_prefix is not None and value.startswith((b"whpk_", b"whsk_")):
            return None if ed25519.public_key(value, "whsec") is not None else "is no Ed25519 public key (whpk_...)"
        if mac.mac_key(value, proof.key) is None:
            return "is not encoded as this profile's secrets are"
    return None


def _shared_secret_problem(proof: SharedSecretProof, value: bytes) -> str | None:
    if proof.form == "basic":
        _, colon, password = value.partition(b":")
        return None if colon and password else "is not user:password"
    if any(byte < 0x21 or byte > 0x7E for byte in value):
        return "cannot be sent as a header's value"
    return None


def _prove(raw: RawDelivery, source: Source, keys: KeyRing, now: float) -> VerifiedDelivery:
    proof = source.profile.proof
    pairs = [(secret.label, secret.value) for secret in keys.secrets if secret.value]
    if isinstance(proof, MacProof):
        return VerifiedDelivery(raw, mac.verify(raw, proof, pairs), _NO_FACTS, None, None)
    if isinstance(proof, Ed25519Proof):
        return VerifiedDelivery(raw, ed25519.verify(raw, proof, pairs), _NO_FACTS, None, None)
    if isinstance(proof, SharedSecretProof):
        return VerifiedDelivery(raw, shared_secret.verify(raw, proof, pairs), _NO_FACTS, None, None)
    if isinstance(proof, JwtProof):
        audiences = source.identity.get(proof.audience, ())
        proved = jwt.verify(raw, proof, keys.jwks, audiences, now)
        return VerifiedDelivery(raw, proved.kid, MappingProxyType(dict(proved.facts)), proved.jti, None)
    return VerifiedDelivery(raw, "", _NO_FACTS, None, _prove_items(raw, proof, keys))


def _prove_items(raw: RawDelivery, proof: ClientStateProof, keys: KeyRing) -> tuple[ItemProof, ...]:
    """Decode the batch and prove each item; raises Rejection `json-...` (400) where there is no list of items."""
    items = pointers.resolve(strict_json.loads(raw.body), pointers.parse(proof.items))
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise Rejection("json-shape", 400)  # each item costs a proof, and nobody is proved yet
    secrets = [(secret.label, secret.value, secret.subscription) for secret in keys.secrets if secret.value]
    return tuple(_prove_item(item, proof, secrets) for item in items)


def _prove_item(item: Any, proof: ClientStateProof, secrets: list[tuple[str, bytes, str | None]]) -> ItemProof:
    if not isinstance(item, dict):
        return ItemProof(item, None, "json-shape")
    key = client_state.verify(item, proof, secrets)
    return ItemProof(item, key, None if key is not None else "signature")


def _header_time(raw: RawDelivery, proof: Proof, freshness: Freshness) -> bytes | None:
    """Return the signed time where it stands in the headers, None where the body holds it or nothing is signed at all.

    Missing beside a signature: `freshness`; there are no bytes that the signature could be compared over.
    """
    place, _, name = freshness.at.partition(":")
    if not isinstance(proof, MacProof | Ed25519Proof) or not name or raw.header(proof.header) is None:
        return None
    sent = raw.header(name) if place == "header" else layout.member(raw, proof, name)
    if sent is None:
        raise Rejection("freshness", 401)
    return sent


def _check_freshness(sent: bytes, freshness: Freshness, window_s: float | None, now: float) -> None:
    if _TIMESTAMP.fullmatch(sent) is None:
        raise Rejection("freshness", 401)
    at = int(sent) / (1000 if freshness.unit == "ms" else 1)
    if abs(now - at) > (freshness.window_s if window_s is None else window_s):
        raise Rejection("freshness", 401)


def _check_identity(facts: Mapping[str, str], source: Source) -> None:
    """Bind what the token names; a fact that is missing equals nothing."""
    for name, part in source.profile.identity.items():
        allowed = source.identity.get(name)
        if allowed is None and name in source.profile.identity_optional:
            continue
        if part.startswith("@") and facts.get(part[1:]) not in (allowed or ()):
            raise Rejection("identity", 403)


def _query_values(query: bytes, name: str) -> list[str] | None:
    """Return the decoded values of a query parameter; no UTF-8 or too many fields: Rejection `handshake`."""
    if name.encode() not in query:
        return None
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise Rejection("handshake", 400) from error
    return [value for key, value in pairs if key == name]


def _echo(values: list[str], shake: Handshake) -> HandshakeAnswer:
    body = values[0].encode()
    if len(values) > 1 or not body or len(body) > shake.max_bytes or not values[0].isprintable():
        raise Rejection("handshake", 400)
    headers = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))
    return HandshakeAnswer(shake.answer.status, shake.answer.content_type, body, headers)
