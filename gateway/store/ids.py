"""Time-ordered ids (UUID version 7, RFC 9562 section 5.7: https://www.rfc-editor.org/rfc/rfc9562#section-5.7)."""

import os
import time
import uuid


def uuid7(now: float | None = None) -> str:
    """Return a fresh UUIDv7 as text: 48 bits of Unix milliseconds, 12 of their fraction, then random bits.

    The fraction keeps ids of one process in order within a millisecond (section 6.2, method 3).
    """
    micros = time.time_ns() // 1000 if now is None else round(now * 1_000_000)
    millis, rest = divmod(micros, 1000)
    value = (millis & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xFFFF << 64) | 0x7 << 76 | rest * 4096 // 1000 << 64
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
