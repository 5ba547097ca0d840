"""Keyed MAC (HMAC-SHA256) over a described byte layout: the proof of most providers.

What is compared is the encoded text, so that one signature has one spelling: lower-case hex or canonical base64.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import KeyForm, MacProof
from gateway.schemes import ed25519
from gateway.schemes.layout import offered, signed_bytes


def verify(raw: RawDelivery, proof: MacProof, secrets: Sequence[tuple[str, bytes]]) -> str:
    """Return the label of the first secret that any offered signature matches; raises Rejection `signature`.

    Every live secret is tried against every offered signature, in constant time, whatever matched before. A secret
    that is a public key (`whpk_`, only where the profile knows the asymmetric prefix) proves signatures of that prefix
    alone, and a symmetric one never does: neither kind of key can be passed off as the other.
    """
    signed = signed_bytes(raw, proof)
    macs = offered(raw, proof, proof.prefix)
    matched = [label for label, secret in secrets if _proves(raw, proof, secret, signed, macs)]
    if not matched:
        raise Rejection("signature", 401)
    return matched[0]


def _proves(raw: RawDelivery, proof: MacProof, secret: bytes, signed: bytes, macs: Sequence[bytes]) -> bool:
    if proof.also_ed25519_prefix is not None and secret.startswith(b"whpk_"):
        signatures = offered(raw, proof, proof.also_ed25519_prefix)
        return ed25519.any_valid(signatures, signed, ed25519.public_key(secret, "whsec"), proof.encoding)
    key = mac_key(secret, proof.key)
    if key is None:
        return False
    expected = _encode(hmac.digest(key, signed, hashlib.sha256), proof)
    return any([hmac.compare_digest(expected, mac) for mac in macs])  # noqa: C419 (a list: no early exit)


def _encode(digest: bytes, proof: MacProof) -> bytes:
    return digest.hex().encode() if proof.encoding == "hex" else base64.b64encode(digest)


def mac_key(secret: bytes, form: KeyForm) -> bytes | None:
    """Return the MAC key that a secret's text stands for, None where it stands for none (empty, or not so encoded)."""
    try:
        if form == "whsec":
            # Some issuers hand out `v1,whsec_...`: https://github.com/standard-webhooks/standard-webhooks
            key = base64.b64decode(secret.removeprefix(b"v1,").removeprefix(b"whsec_"), validate=True)
        elif form == "hex":
            key = binascii.unhexlify(secret)
        else:
            key = secret
    except ValueError:
        return None
    return key or None
