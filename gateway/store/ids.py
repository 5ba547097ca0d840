"""Time-ordered ids (UUID version 7, RFC 9562 section 5.7: https://www.rfc-editor.org/rfc/rfc9562#section-5.7)."""

import os
import time
from typing import Final

_48_BITS: Final = (1 << 48) - 1
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def uuid7(now: float | None = None) -> str:
    """Return a fresh UUIDv7 as text: 48 bits of Unix milliseconds, 12 of their fraction, then random bits.

    The fraction keeps ids of one process in order within a millisecond (section 6.2, method 3).
    """
    micros = time.time_ns() // 1000 if now is None else round(now * 1_000_000)
    millis, rest = divmod(micros, 1000)
    at, rand = f"{millis & _48_BITS:012x}", os.urandom(8).hex()
    return f"{at[:8]}-{at[8:]}-7{rest * 4096 // 1000:03x}-{_VARIANT[rand[0]]}{rand[1:4]}-{rand[4:]}"
