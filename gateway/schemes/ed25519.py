"""Ed25519 (RFC 8032) over a described byte layout; the source's secrets are public keys.

Discord: https://discord.com/developers/docs/interactions/overview#setting-up-an-endpoint-validating-security-request-headers
Standard Webhooks `v1a`: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import Ed25519Proof, Encoding, KeyForm
from gateway.schemes.layout import offered, signed_bytes


def verify(raw: RawDelivery, proof: Ed25519Proof, secrets: Sequence[tuple[str, bytes]]) -> str:
    """Return the label of the first public key that verifies any offered signature; raises Rejection `signature`."""
    signed = signed_bytes(raw, proof)
    signatures = offered(raw, proof, proof.prefix)
    matched = [
        label
        for label, secret in secrets
        if any_valid(signatures, signed, public_key(secret, proof.key), proof.encoding)
    ]
    if not matched:
        raise Rejection("signature", 401)
    return matched[0]


def any_valid(signatures: Sequence[bytes], signed: bytes, key: Ed25519PublicKey | None, encoding: Encoding) -> bool:
    """Tell whether `key` verifies one of the encoded `signatures`; a missing key verifies nothing."""
    return key is not None and any(_valid(decode(text, encoding), signed, key) for text in signatures)


def _valid(signature: bytes | None, signed: bytes, key: Ed25519PublicKey) -> bool:
    if signature is None:
        return False
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def decode(text: bytes, encoding: Encoding) -> bytes | None:
    """Decode a signature in its one canonical spelling (lower-case hex, padded base64); None for every other text."""
    try:
        if encoding == "hex":
            value = binascii.unhexlify(text)
            return value if value.hex().encode() == text else None
        value = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return value if base64.b64encode(value) == text else None


def public_key(secret: bytes, form: KeyForm) -> Ed25519PublicKey | None:
    """Return the public key that a secret's text stands for: hex, or base64 after an optional `whpk_`; None for none."""
    try:
        value = (
            binascii.unhexlify(secret)
            if form == "hex"
            else base64.b64decode(secret.removeprefix(b"whpk_"), validate=True)
        )
        return Ed25519PublicKey.from_public_bytes(value)
    except ValueError:
        return None
