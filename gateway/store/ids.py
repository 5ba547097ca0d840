"""Time-ordered ids (UUID version 7, RFC 9562 section 5.7: https://www.rfc-editor.org/rfc/rfc9562#section-5.7)."""

import os
import time
from typing import Final

_48_BITS: Final = (1 << 48) - 1
_VARIANT: Final = 0b10 << 62


def uuid7(now: float | None = None) -> str:
    """Return a fresh UUIDv7 as text: 48 bits of Unix milliseconds, 12 of their fraction, then random bits.

    The fraction keeps ids of one process in order within a millisecond (section 6.2, method 3).
    """
    micros = time.time_ns() // 1000 if now is None else round(now * 1_000_000)
    millis, rest = divmod(micros, 1000)
    text = (
        f"{millis & _48_BITS:012x}7{rest * 4096 // 1000:03x}{_VARIANT | int.from_bytes(os.urandom(8), 'big') >> 2:016x}"
    )
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
