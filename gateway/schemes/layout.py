"""The signed bytes and the offered signatures, as a profile describes them. Shared by the keyed MAC and Ed25519."""

from functools import lru_cache
from typing import Final

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import Ed25519Proof, MacProof, layout_piece

_BODY_ALONE: Final = ("{body}",)


def signed_bytes(raw: RawDelivery, proof: MacProof | Ed25519Proof) -> bytes:
    """Concatenate the layout over the body as received. Raises Rejection `signature` where it has no single meaning.

    A signed header that is missing, or that holds the literal which ends it (an id with a dot, before
    `.{timestamp}`), would let one signature cover two readings.
    """
    if proof.layout == _BODY_ALONE:
        return raw.body
    pieces = _pieces(proof.layout)
    out = []
    for index, (kind, text) in enumerate(pieces):
        if kind == "body":
            out.append(raw.body)
        elif kind == "literal":
            out.append(text.encode())
        else:
            value = raw.header(text) if kind == "header" else member(raw, proof, text)
            after = pieces[index + 1] if index + 1 < len(pieces) else ("", "")
            if value is None or (after[0] == "literal" and after[1].encode() in value):
                raise Rejection("signature", 401)
            out.append(value)
    return b"".join(out)


@lru_cache(maxsize=256)
def _pieces(layout: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(map(layout_piece, layout))


def offered(raw: RawDelivery, proof: MacProof | Ed25519Proof, prefix: str) -> list[bytes]:
    """Return the encoded signatures offered under `prefix`, without it: none where the header is missing or has no such."""
    value = raw.header(proof.header)
    if value is None:
        return []
    start = prefix.encode()
    return [item.removeprefix(start) for item in _split(value, proof.separator) if item.startswith(start)]


def member(raw: RawDelivery, proof: MacProof | Ed25519Proof, name: str) -> bytes | None:
    """Return the one `name=value` member of the signature header (Stripe's `t`); two are a Rejection `header-repeated`."""
    start = f"{name}=".encode()
    values = [
        item.removeprefix(start)
        for item in _split(raw.header(proof.header) or b"", proof.separator)
        if item.startswith(start)
    ]
    if len(values) > 1:
        raise Rejection("header-repeated", 401)
    return values[0] if values else None


def _split(value: bytes, separator: str | None) -> list[bytes]:
    return [value] if separator is None else [item.strip(b" \t") for item in value.split(separator.encode())]
