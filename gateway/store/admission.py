"""Group commit: concurrent deliveries of one source share a round trip. One call is in flight a source, the next collects."""

import asyncio
import math
from collections import deque
from typing import NamedTuple

import orjson

from gateway.errors import Unavailable
from gateway.store.client import Client, prefix
from gateway.store.connect import CALL_S
from gateway.store.records import micros
from gateway.store.types import Admit, AdmitItem, Admitted, ItemResult, Limits

MOST = 256  # items of one call
JTI_MARGIN_S = 120  # a token id outlives its token by the leeway it is judged with, and more


class _Waiting(NamedTuple):
    """A delivery that waits: encoded, its number of items and its time beside it."""

    row: bytes
    size: int
    now: float
    future: "asyncio.Future[Admitted]"
    since: float  # the loop's time


def _item(item: AdmitItem, now: float) -> list[object]:
    jti, end = item.jti or ("", now)
    jti_ttl = max(1, math.ceil(end - now) + JTI_MARGIN_S)
    return [max(1, item.ttl_s), item.dedupe, jti, jti_ttl, [(entry.lane, entry.event) for entry in item.entries]]


def _encode(one: Admit) -> bytes:
    """Encode one delivery for the script; done a delivery each, so that one that cannot be encoded fails alone."""
    row = (one.delivery, micros(one.now), one.record, [_item(item, one.now) for item in one.items])
    return orjson.dumps(row if one.carries is None else (*row, one.carries))


def _results(answer: str) -> list[Admitted]:
    """Read the script's answer; an empty list comes as an empty object."""
    return [
        Admitted(tuple(ItemResult(status, first or None) for status, first in (rows or ())))
        for rows in orjson.loads(answer)
    ]


class _Line:
    """The deliveries of one source that wait for the next call."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.flying: list[_Waiting] = []
        self.task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: _Waiting, loop: asyncio.AbstractEventLoop) -> None:
        """Add a delivery, whose caller gets an answer within `CALL_S`. One timer does for all: a task each costs more."""
        self.waiting.append(one)
        if self._timer is None:
            self._timer = loop.call_later(CALL_S, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now, next_due = loop.time(), math.inf
        for one in (*self.flying, *self.waiting):
            if one.future.done():
                continue
            if one.since + CALL_S > now:
                next_due = min(next_due, one.since + CALL_S)
            else:
                one.future.set_exception(Unavailable("store-timeout"))
        self._timer = None if next_due == math.inf else loop.call_at(next_due, self._expire, loop)

    def take(self) -> list[_Waiting]:
        """Take what fits in one call; who gave up waiting meanwhile is not applied."""
        taken: list[_Waiting] = []
        size = 0
        while self.waiting:
            one = self.waiting[0]
            if taken and size + one.size > MOST:
                break
            self.waiting.popleft()
            if not one.future.done():
                taken.append(one)
                size += one.size
        return taken


def _own(error: Exception) -> Exception:
    """Make each caller's own exception: a shared one would collect all their tracebacks."""
    if isinstance(error, Unavailable):
        return Unavailable(error.reason, error.retry_after_s)
    return error


class GroupCommit:
    """Admits deliveries in groups. `queued` is set whenever something was, for a dispatcher in the same process."""

    def __init__(self, client: Client, limits: Limits, queued: asyncio.Event) -> None:
        self._client = client
        self._limits = limits
        self._lines: dict[str, _Line] = {}
        self._queued = queued

    async def admit(self, admit: Admit) -> Admitted:
        """Admit one delivery, whole. Unavailable: not applied, or (after a timeout) applied whole; ask again."""
        line = self._lines.setdefault(admit.source, _Line())
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Admitted] = loop.create_future()
        line.add(_Waiting(_encode(admit), max(1, len(admit.items)), admit.now, future, loop.time()), loop)
        if line.task is None:
            line.task = asyncio.create_task(self._flush(admit.source, line))
        return await future

    async def _flush(self, source: str, line: _Line) -> None:
        try:
            while taken := line.take():
                line.flying = taken
                await self._commit(source, taken)
        finally:
            line.task, line.flying = None, []
            while line.waiting:  # only where this task was cancelled
                line.waiting.popleft().future.cancel()

    async def _commit(self, source: str, taken: list[_Waiting]) -> None:
        """Run one call; its failure is the failure of each of its deliveries."""
        try:
            results = await self._run(source, taken)
        except Exception as error:  # noqa: BLE001 (handed to every waiting caller, a bug included)
            for one in taken:
                if not one.future.done():
                    one.future.set_exception(_own(error))
            return
        self._queued.set()
        for one, result in zip(taken, results, strict=True):
            if not one.future.done():
                one.future.set_result(result)

    async def _run(self, source: str, taken: list[_Waiting]) -> list[Admitted]:
        limits = self._limits
        now = micros(max(one.now for one in taken))
        payload = b"[" + b",".join(one.row for one in taken) + b"]"
        return _results(
            await self._client.run_copied("admit", prefix(source), payload, now, limits.records, limits.records_age_s)
        )

    async def close(self) -> None:
        """Let the calls in flight end."""
        tasks = [line.task for line in self._lines.values() if line.task]
        await asyncio.gather(*tasks, return_exceptions=True)
