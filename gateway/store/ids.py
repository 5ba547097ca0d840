"""Time-ordered ids (UUID version 7, RFC 9562 section 5.7: https://www.rfc-editor.org/rfc/rfc9562#section-5.7)."""

import os
import time
import uuid


def uuid7(now: float | None = None) -> str:
    """Return a fresh UUIDv7 as text: 48 bits of Unix milliseconds, then random bits."""
    millis = round((time.time() if now is None else now) * 1000) & (1 << 48) - 1
    value = millis << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
