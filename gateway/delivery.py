"""`RawDelivery`: untrusted, bounded bytes and header pairs. Nothing here decodes or believes anything."""

from enum import StrEnum

from gateway.errors import Rejection
from gateway.structs import Opaque, field, force_setattr


class Outcome(StrEnum):
    """What became of a delivery, as records and metrics name it."""

    FORWARDED = "forwarded"
    DUPLICATE = "duplicate"
    IGNORED = "ignored"
    HANDSHAKE = "handshake"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"


class RawDelivery(Opaque):
    """One HTTP request as it arrived.

    `id` is our own delivery id (uuid7 text), `received_at` Unix seconds, `headers` pairs with lower-case names in
    arrival order (a dict would hide a second value), `query` the raw query string without `?`, `body` the entity
    body, already under the size cap.
    """

    id: str
    source: str
    received_at: float
    headers: tuple[tuple[bytes, bytes], ...]
    query: bytes
    body: bytes
    _first: dict[bytes, bytes] = field(default_factory=dict)  # of each name the first value

    def __post_init__(self) -> None:
        force_setattr(self, "_first", dict(reversed(self.headers)))

    def header(self, name: str) -> bytes | None:
        """Return the one value of header `name` (lower case), None where it is absent.

        Raises Rejection `header-repeated` (401) for two copies: a proxy and we could each believe another one.
        """
        wanted = name.encode("ascii")
        if len(self._first) < len(self.headers) and sum(key == wanted for key, _ in self.headers) > 1:
            raise Rejection("header-repeated", 401)
        return self._first.get(wanted)
