"""Delivery records: what operators see. Refusals are buffered, so that a flood of forgeries costs one write a second."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from gateway.delivery import Outcome
from gateway.errors import Unavailable
from gateway.store.client import Client, prefix
from gateway.store.types import Limits, Page, QueueEntry
from gateway.structs import Value

log = logging.getLogger(__name__)
CLASSES = ("admitted", "authentic", "refused")  # each capped on its own, so that no class pushes another out
UNPROVEN_HANDSHAKE = "url-validation"  # answered for whoever asks
FLUSH_S = 1.0
BUFFER = 2_000  # rows of one second; more are dropped and counted
FIRST_CHUNK, CHUNK = 25, 200
SCAN = 5_000  # records that one page looks through
SOURCES_KEY = "gw:sources"
SOURCES_S = 30 * 86_400
KNOWN_S = 60.0  # a process that lives on keeps the set alive, and writes it anew into a store that was emptied


class _Place(Value, order=True):
    """Where a record stands in time; the text form is a page's cursor."""

    time_us: int
    id: str

    @classmethod
    def parse(cls, cursor: str) -> "_Place":
        """Read a cursor; ValueError where it is none."""
        time_us, dash, ident = cursor.partition("-")
        if not (dash and ident and time_us.isascii() and time_us.isdigit()):
            raise ValueError("not a cursor")
        return cls(int(time_us), ident)

    def __str__(self) -> str:
        return f"{self.time_us}-{self.id}"


_Stream = AsyncGenerator[tuple[_Place, dict[str, Any]], None]


def micros(seconds: float) -> int:
    """Return a record's time: microseconds order the requests of one millisecond."""
    return round(seconds * 1_000_000)


def cursor(at: float) -> str:
    """Return the cursor that begins with what was received before a time in Unix seconds."""
    return str(_Place(micros(at), "0"))


def _class_of(outcome: str, reason: str | None) -> str:
    """Tell where a record belongs: what nobody has proven must not push out what somebody has."""
    unproven = outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE) or reason == UNPROVEN_HANDSHAKE
    return "refused" if unproven else "authentic"


def read_record(text: str) -> dict[str, Any]:
    """Read a stored record: the outcome that the admission found stands before the text and overrides it."""
    head, _, body = text.partition("\n")
    outcome, reason, first = head.split("|", 2)
    row: dict[str, Any] = orjson.loads(body)
    if outcome == Outcome.REJECTED and row.get("outcome") == Outcome.IGNORED:
        return row  # other items of the batch were authentic, and ignored comes first
    if outcome:
        row["outcome"] = outcome
    if reason:
        row["reason"] = reason
    if first:
        row["first"] = first
    return row


class Records:
    """Writes and reads delivery records of every source."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._buffer: dict[str, list[tuple[str, int, str, str]]] = {}
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()  # what `close` has to wait for
        self._last = 0.0
        self._known: dict[str, float] = {}
        self._knowing = asyncio.Lock()
        self.dropped = 0

    async def record(self, source: str, record: str) -> None:
        """Buffer a record (JSON with `id`, `received_at` in Unix seconds and `outcome`); written within about a second.

        It is dropped, and counted in `dropped`, while the store is away or when a second brings too many.
        """
        if self._size >= BUFFER:
            self.dropped += 1
            return
        row = orjson.loads(record)
        at, kind = micros(float(row["received_at"])), _class_of(row["outcome"], row.get("reason"))
        self._buffer.setdefault(source, []).append((str(row["id"]), at, kind, record))
        self._size += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush_later())

    async def _flush_later(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._last + FLUSH_S - time.monotonic()))
        finally:
            if self._task:
                self._writing.add(self._task)
                self._task.add_done_callback(self._writing.discard)
            self._task = None
            self._last = time.monotonic()
        await self.flush()

    async def flush(self) -> None:
        """Write what is buffered now; what the store does not take is dropped."""
        buffer, self._buffer, self._size = self._buffer, {}, 0
        for source, rows in buffer.items():
            for start in range(0, len(rows), CHUNK):
                await self._write(source, rows[start : start + CHUNK])

    async def _write(self, source: str, rows: list[tuple[str, int, str, str]]) -> None:
        now = max(row[1] for row in rows)
        limits = (self._limits.records, self._limits.records_age_s)
        try:
            await self.know(source)
            await self._client.run("record", prefix(source), orjson.dumps(rows), now, *limits)
        except Unavailable:
            self.dropped += len(rows)

    async def _drain(self) -> None:
        """Write the last rows, at close."""
        if self._task:
            self._task.cancel()
        await asyncio.gather(*self._writing, *([self._task] if self._task else []), return_exceptions=True)
        await self.flush()

    async def know(self, source: str) -> None:
        """Remember that this source has something stored; now and then, so that an admission costs no second round trip."""

        async def work(redis: Any) -> None:
            pipe = redis.pipeline(transaction=False)
            pipe.sadd(SOURCES_KEY, source)
            pipe.expire(SOURCES_KEY, SOURCES_S)
            await pipe.execute()

        async with self._knowing:  # of many deliveries at once, one asks
            if not self.knows(source):
                await self._client.call(work)
                self._known[source] = time.monotonic() + KNOWN_S

    def knows(self, source: str) -> bool:
        """Tell whether `know` was called lately."""
        return time.monotonic() < self._known.get(source, 0.0)

    async def sources(self) -> set[str]:
        """Return the sources that have or had something stored."""

        async def work(redis: Any) -> set[str]:
            return set(await redis.smembers(SOURCES_KEY))

        return await self._client.call(work) | self._known.keys()

    async def deliveries(
        self, source: str | None = None, outcome: str | None = None, limit: int = 50, before: str | None = None
    ) -> Page:
        """Return records, newest first, of one source or all. `before` is a page's `next`; ValueError where it is none.

        Each row has its `dispatches` as a list of ids under `dispatch_ids`. A page looks through at most `SCAN` records:
        one with fewer rows than asked for, or none, and a `next` goes on from there.
        """
        found: list[dict[str, Any]] = []
        last, seen = None, 0
        async with aclosing(self.newest(source, outcome, before)) as merged:
            async for place, row in merged:
                if len(found) == limit or seen == SCAN:
                    return Page(tuple(found), last)
                if outcome is None or row.get("outcome") == outcome:
                    found.append(row)
                last, seen = place, seen + 1
        return Page(tuple(found), None)

    async def newest(
        self, source: str | None = None, outcome: str | None = None, before: str | None = None
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the records of the classes that can hold an outcome, newest first, each with the cursor that goes on after it."""
        start = _Place.parse(before) if before else None
        sources = [source] if source else sorted(await self.sources())
        streams = [self._newest(one, name, start) for one in sources for name in CLASSES if _may_hold(name, outcome)]
        async with aclosing(_merge(streams)) as merged:
            async for place, row in merged:
                yield str(place), row

    async def _newest(self, source: str, name: str, last: _Place | None) -> "_Stream":
        """Yield one class of a source from before `last` on, newest first, a chunk a round trip, the first ones small.

        A chunk begins where the one before ended, by time and not by number: what arrives meanwhile moves no others.
        """
        key, size = f"{prefix(source)}rec:{name}", FIRST_CHUNK
        while True:
            top = "+inf" if last is None else last.time_us

            async def places(redis: Any, top: str | int = top, size: int = size) -> list[_Place]:
                rows = await redis.zrevrangebyscore(f"{key}:at", top, "-inf", start=0, num=size, withscores=True)
                return [_Place(int(score), ident) for ident, score in rows]

            chunk = await self._client.call(places)
            wanted = [place for place in chunk if last is None or place < last]
            for place, row in zip(wanted, await self._rows(source, name, [p.id for p in wanted]), strict=True):
                if row is not None:
                    yield place, row
            if len(chunk) < size:
                return
            last = wanted[-1] if wanted else last
            size = min(CHUNK, size * 2) if wanted else size * 2  # all of one moment: look further

    async def _rows(self, source: str, name: str, ids: list[str]) -> list[dict[str, Any] | None]:
        if not ids:
            return []

        async def work(redis: Any) -> list[list[str | None]]:
            pipe = redis.pipeline(transaction=False)
            pipe.hmget(f"{prefix(source)}rec:{name}", ids)
            pipe.hmget(f"{prefix(source)}rec:dispatches", ids)
            found: list[list[str | None]] = await pipe.execute()
            return found

        texts, links = await self._client.call(work)
        return [_row(text, link) for text, link in zip(texts, links, strict=True)]

    async def delivery(self, ident: str) -> Mapping[str, Any] | None:
        """Return one delivery's record, None where it is unknown or trimmed."""
        for source in sorted(await self.sources()):
            for name in CLASSES:
                (row,) = await self._rows(source, name, [ident])
                if row is not None:
                    return row
        return None

    async def queued_records(self, source: str, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the records that there still are of these deliveries, which all queued something, in this order."""
        rows = await self._rows(source, "admitted", list(ids))
        return {ident: row for ident, row in zip(ids, rows, strict=True) if row is not None}

    async def projected(self, source: str, delivery: str) -> tuple[QueueEntry, ...]:
        """Return the projected events that a delivery queued, for a replay; empty once its record was trimmed."""

        async def work(redis: Any) -> str | None:
            found: str | None = await redis.hget(f"{prefix(source)}rec:events", delivery)
            return found

        text = await self._client.call(work)
        pairs: Iterable[tuple[str, str, str]] = (line.partition("\t") for line in (text or "").split("\n") if line)
        return tuple(QueueEntry(lane, event, delivery) for lane, _, event in pairs)


def _may_hold(name: str, outcome: str | None) -> bool:
    """Tell which class can hold an outcome, so that a filtered page does not read the others."""
    if outcome is None or outcome == Outcome.IGNORED:
        return True
    if outcome in (Outcome.FORWARDED, Outcome.DUPLICATE):
        return name == "admitted"
    if outcome == Outcome.HANDSHAKE:
        return name != "admitted"
    return name == _class_of(outcome, None)


def _row(text: str | None, link: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    return {**read_record(text), "dispatch_ids": link.split(" ") if link else []}


async def _merge(streams: list[_Stream]) -> _Stream:
    """Merge streams that are newest first into one."""
    try:
        first = await asyncio.gather(*(anext(stream, None) for stream in streams), return_exceptions=True)
        for failed in first:  # only now: none of the others may be running when they are closed
            if isinstance(failed, BaseException):
                raise failed
        heads = {stream: head for stream, head in zip(streams, first, strict=True) if isinstance(head, tuple)}
        while heads:
            newest = max(heads, key=lambda stream: heads[stream][0])
            yield heads[newest]
            head = await anext(newest, None)
            if head is None:
                del heads[newest]
            else:
                heads[newest] = head
    finally:
        for stream in streams:
            await stream.aclose()
