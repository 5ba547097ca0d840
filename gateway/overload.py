"""Admission control: what is refused before work is done for it, so that neither a flood nor a slow sender takes all.

Everything here is counted in this process and costs a few dictionary look-ups. Three bounds: requests at work and bytes of
bodies held (`Slot`), failed proofs of a sender (`Failures`), events that wait in the store (`Backlog`). Requests and bytes
are shared by one rule: a request may come in while all that is used, plus what its source uses, plus what its address
uses, is under the limit. So one address gets at most a third, one source a half, and there is always room for another.
"""

import asyncio
import ipaddress
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from gateway.errors import Rejection, Unavailable
from gateway.structs import Value

LARGE_BYTES = 262_144  # a larger body is decoded off the loop
REMEMBERED = 10_000  # addresses; the least recently seen are forgotten
PROVEN_S = 3_600.0
BURST_S = 20.0  # a bucket holds what this many seconds bring
SOURCE_SHARE = 4  # a source's bucket is this many times an address's
MEASURE_S = 2.0
UNPROVEN = frozenset({401, 408, 413, 415})  # refusals of a sender who has proved nothing
MOST_HOPS = 32  # entries of a forwarded-for list that are looked at

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Overloaded(Unavailable):
    """Too much at once; nothing was consumed. `status` is the default: 503 our own lack of room, 429 the sender's rate."""

    def __init__(self, reason: str, retry_after_s: int = 5, status: int = 503) -> None:
        super().__init__(reason, retry_after_s)
        self.status = status


class Bounds(Value):
    """`[limits]` of the configuration."""

    requests: int = 3_000
    body_bytes: int = 134_217_728
    failures_per_s: float = 50.0
    queue: int = 2_000_000
    queue_source: int = 1_000_000


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read addresses and CIDR ranges; ValueError where one is neither."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def client_address(scope: Mapping[str, Any], trusted: Collection[Network]) -> str:
    """Return who sent a request: the peer, or where that is a trusted proxy, the last address before the trusted ones.

    `X-Forwarded-For` is read from its right end, which the nearest proxy wrote: what stands further left a client can have
    made up. An entry that is no address ends the search at the proxy that passed it on.
    """
    peer = (scope.get("client") or ("",))[0]
    if not trusted:
        return _peer(peer)
    found = _parsed(peer)
    if found is None or not _within(found, trusted):
        return _peer(peer)
    values = [value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    hops = b",".join(values).decode("latin-1").rsplit(",", MOST_HOPS)[-MOST_HOPS:]
    for hop in reversed(hops):
        address = _parsed(hop.strip())
        if address is None:
            break
        found = address
        if not _within(address, trusted):
            break
    return _grouped(found, peer)


@lru_cache(maxsize=REMEMBERED)
def _peer(peer: str) -> str:
    return _grouped(_parsed(peer), peer)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = text
    if text.startswith("["):  # some proxies add the port: [v6]:port, v4:port
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, trusted: Collection[Network]) -> bool:
    return any(address in network for network in trusted)


def _grouped(address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, peer: str) -> str:
    """One host is one address; of IPv6 it usually has a /64 (https://www.rfc-editor.org/rfc/rfc6177)."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False).network_address) + "/64"
    return str(address) if address is not None else peer[:64]


class Share:
    """One bounded quantity, shared by the rule of this module."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: dict[str | tuple[str, str], int] = {}

    def take(self, source: str, address: str, amount: int = 1) -> bool:
        """Take `amount`; False, and nothing taken, where that is over this sender's share."""
        own, held = (source, address), self._held
        by_source, by_own = held.get(source, 0), held.get(own, 0)
        if self.used + by_source + by_own + amount > self.limit:
            return False
        self.used += amount
        held[source] = by_source + amount
        held[own] = by_own + amount
        return True

    def give(self, source: str, address: str, amount: int = 1) -> None:
        """Give back what was taken."""
        held, own = self._held, (source, address)
        self.used -= amount
        held[source] -= amount
        held[own] -= amount
        if not held[own]:
            del held[own]
            if not held[source]:
                del held[source]


class Bucket:
    """A token bucket: `rate` a second, at most what `BURST_S` bring."""

    __slots__ = ("at", "rate", "tokens")

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self.at, self.tokens = rate, now, rate * BURST_S

    def fill(self, now: float) -> float:
        """Add what time has brought; return what is there."""
        self.tokens = min(self.rate * BURST_S, self.tokens + (now - self.at) * self.rate)
        self.at = now
        return self.tokens


class Failures:
    """Failed proofs, by source and by source and address.

    Only failures cost. An address whose proof was good within the hour is let through at that source: behind a proxy that
    is not named, or a cloud's shared address, a forger must not shut its neighbour out.
    """

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._clock = per_s, clock
        self._sources: dict[str, Bucket] = {}
        self._addresses: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._proven: OrderedDict[tuple[str, str], float] = OrderedDict()

    def check(self, source: str, address: str) -> None:
        """Raise Overloaded (429) where this sender, or unknown senders to this source, failed too often just now."""
        key, now = (source, address), self._clock()
        proven = self._proven.get(key)
        if proven is not None and now - proven < PROVEN_S:
            return
        for bucket in (self._addresses.get(key), self._sources.get(source)):
            if bucket is not None and bucket.fill(now) < 1:
                raise Overloaded("too-many-failures", max(1, math.ceil((1 - bucket.tokens) / bucket.rate)), 429)

    def failed(self, source: str, address: str) -> None:
        """Note a failed proof."""
        key, now = (source, address), self._clock()
        mine = self._addresses.get(key) or Bucket(self._per_s, now)
        every = self._sources.setdefault(source, Bucket(self._per_s * SOURCE_SHARE, now))
        for bucket in (mine, every):
            bucket.tokens = max(0.0, bucket.fill(now) - 1)
        _remember(self._addresses, key, mine)

    def proved(self, source: str, address: str) -> None:
        """Note a good proof."""
        _remember(self._proven, (source, address), self._clock())


def _remember(table: "OrderedDict[tuple[str, str], T]", key: tuple[str, str], value: T) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > REMEMBERED:
        table.popitem(last=False)


class Waiting(Protocol):
    """The store's count of a source, as far as it is read here."""

    @property
    def waiting(self) -> int:
        """Events not sealed."""
        ...

    @property
    def sealed(self) -> int:
        """Batches not settled."""
        ...


class Backlog:
    """What waits in the store: each source measured at most every two seconds, by a delivery, and counted on in between.

    It guards the store's memory, so it may be off by what other processes admit in two seconds.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._clock = bounds, clock
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._due: dict[str, float] = {}

    async def check(self, source: str, depth: Callable[[str], Awaitable[Waiting]]) -> None:
        """Raise Overloaded where the queue of the source, or all queues together, hold too much."""
        if self._clock() >= self._due.get(source, 0.0):
            await self._measure(source, depth)
        if self._total >= self._bounds.queue:
            for other in tuple(self._counts):  # those without new deliveries have only shrunk
                await self._measure(other, depth)
        if self._counts[source] >= self._bounds.queue_source or self._total >= self._bounds.queue:
            raise Overloaded("queue-full", 60)

    def added(self, source: str, events: int) -> None:
        """Count what was just queued."""
        self._counts[source] += events
        self._total += events

    async def _measure(self, source: str, depth: Callable[[str], Awaitable[Waiting]]) -> None:
        now = self._clock()
        if now < self._due.get(source, 0.0):
            return
        self._due[source] = now + MEASURE_S
        found = await depth(source)
        self._total += found.waiting + found.sealed - self._counts[source]
        self._counts[source] = found.waiting + found.sealed


class Slot:
    """One request's share, held in a `with` and given back when it is over. Entering raises Overloaded."""

    __slots__ = ("_overload", "address", "body_bytes", "source")

    def __init__(self, overload: "Overload", source: str, address: str) -> None:
        self._overload, self.source, self.address, self.body_bytes = overload, source, address, 0

    def __enter__(self) -> Self:
        self._overload.failures.check(self.source, self.address)
        if not self._overload.requests.take(self.source, self.address):
            raise Overloaded("too-many-requests", 1)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._overload.requests.give(self.source, self.address)
        if self.body_bytes:
            self._overload.bodies.give(self.source, self.address, self.body_bytes)
        if isinstance(error, Rejection) and error.status in UNPROVEN:
            self._overload.failures.failed(self.source, self.address)

    def charge(self, size: int) -> None:
        """Take room for a piece of the body as it arrives, so that one which is only announced holds none."""
        if not self._overload.bodies.take(self.source, self.address, size):
            raise Overloaded("too-many-bytes", 2)
        self.body_bytes += size

    def metered(self, receive: Receive) -> Receive:
        """Wrap ASGI's `receive` so that it charges."""

        async def charged() -> MutableMapping[str, Any]:
            message = await receive()
            if size := len(message.get("body", b"")):
                self.charge(size)
            return message

        return charged

    def judge(self, *, proven: bool, refused: bool) -> None:
        """Note how the proof ended. Neither, where none was asked for: a handshake says nothing about its sender."""
        if proven:
            self._overload.failures.proved(self.source, self.address)
        elif refused:
            self._overload.failures.failed(self.source, self.address)


@dataclass(slots=True)
class Overload:
    """One process's counters."""

    bounds: Bounds = field(default_factory=Bounds)
    trusted: tuple[Network, ...] = ()
    requests: Share = field(init=False)
    bodies: Share = field(init=False)
    failures: Failures = field(init=False)
    backlog: Backlog = field(init=False)
    _large: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.requests, self.bodies = Share(self.bounds.requests), Share(self.bounds.body_bytes)
        self.failures, self.backlog = Failures(self.bounds.failures_per_s), Backlog(self.bounds)
        self._large = asyncio.Semaphore(1)

    def slot(self, source: str, scope: Mapping[str, Any]) -> Slot:
        """Return a slot for one request, to be entered before anything of it is read."""
        return Slot(self, source, client_address(scope, self.trusted))

    async def off_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Run pure work over a body of more than `LARGE_BYTES` in a thread, one at a time."""
        async with self._large:
            return await asyncio.to_thread(work, *args)

    def guard(self, app: App, path: str) -> App:
        """Bound another endpoint of the same port by the same counters, as if it were a source of its own."""

        async def guarded(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != path:
                await app(scope, receive, send)
                return
            try:
                with self.slot(path, scope) as slot:
                    await app(scope, slot.metered(receive), self._judged(slot, send))
            except Overloaded as error:
                headers = [(b"retry-after", str(error.retry_after_s).encode()), (b"content-length", b"0")]
                headers.append((b"connection", b"close"))
                await send({"type": "http.response.start", "status": error.status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})

        return guarded

    def _judged(self, slot: Slot, send: Send) -> Send:
        async def judged(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                slot.judge(proven=status == 200, refused=status == 400 or status in UNPROVEN)
            await send(message)

        return judged
