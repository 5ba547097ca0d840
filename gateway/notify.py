"""Notifications to the operator's own webhook, signed as Standard Webhooks (https://www.standardwebhooks.com/).

They say that something needs a person: a suspension, a dead letter, a source that fails, is silent or stuck, an ask. What
is told is found in the store, not in this process's memory, so that a restart loses none; each is claimed there first, so
that of several processes one tells it, once in `repeat_s`, or anew where it had been well for an hour in between. At
most `hourly` an hour leave a process.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson

from gateway import log
from gateway.errors import Unavailable
from gateway.health import Look, Lookout, SourceHealth
from gateway.keys import SecretValue
from gateway.metrics import Metrics
from gateway.profiles import Profile
from gateway.settings import Notifications
from gateway.signing import sign
from gateway.store import REVOKED, Dispatch, Store, uuid7
from gateway.structs import Value

EVERY_S = 30.0
TOTAL_S = 10.0
TRIES = 3
CLAIM_S = 120  # longer than all tries of one: what a process claimed and could not tell is told by the next
RECENT_S = 3600.0
LETTERS, CHUNK = 2_000, 200  # dead letters of one source that are counted in one look


class Notice(Value):
    """One thing to tell: `about` tells it from others of its `type`; `data` has slugs, ids, names and times of ours."""

    type: str
    about: str
    data: Mapping[str, Any]


def notices(look: Look, more: Sequence[Dispatch] = ()) -> Iterator[Notice]:
    """What a look at the store has to tell; nothing while the store is away. `more` are dead letters beyond the look's."""
    for one in look.sources:
        if one.state in {"failing", "silent", "stuck"}:
            facts = {"source": one.name, "last_good": _moment(one.last_good), "last_refused": _moment(one.last_refused)}
            yield Notice(f"source.{one.state}", one.name, {**facts, "refused_last_hour": one.refused_recently})
    for row in look.subscriptions:
        if row.state == "suspended" and row.reason != REVOKED:  # that was an operator, and it ends in a moment
            facts = {"subscription": row.digest, "source": row.source, "repository": row.repository}
            yield Notice("subscription.suspended", f"{row.digest}:{row.reason}", {**facts, "reason": row.reason})
    letters = [
        one
        for one in (*(letter for source in look.sources for letter in source.letters), *more)
        if _is_recent(one, look.at)
    ]
    count = Counter((one.source, one.digest, one.trigger, one.reason) for one in letters)
    for (source, digest, trigger, reason), number in count.items():
        facts = {"source": source, "subscription": digest, "trigger": trigger, "reason": reason or ""}
        yield Notice("dispatch.dead", f"{source}:{digest}:{trigger}:{reason}", {**facts, "dead_last_hour": number})
    for ask in look.asks:
        asked = ask.dispatch
        facts = {"dispatch": asked.id, "source": asked.source, "subscription": asked.digest, "trigger": asked.trigger}
        yield Notice("ask.waiting", asked.id, {**facts, "expires": _moment(ask.expires)})


def _is_recent(letter: Dispatch, now: float) -> bool:
    return now - (letter.settled_at or 0) < RECENT_S


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


class Notifier:
    """Looks every half minute and tells what is new."""

    def __init__(
        self,
        settings: Notifications,
        profile: Profile,
        store: Store,
        lookout: Lookout,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._profile, self._secret = settings, profile, SecretValue(settings.secret)
        self._store, self._lookout, self._session = store, lookout, session
        self._metrics, self._clock = metrics, clock
        self._sent: deque[float] = deque(maxlen=settings.hourly)
        self._wrong: dict[str, float] = {}  # what was to be told, and when it was last

    async def round(self) -> int:
        """Tell what nobody has told yet; return how many were sent."""
        sent, look = 0, await self._lookout.look()
        if look.away is not None:
            return 0
        found = {
            f"notified:{one.type}:{one.about}": one
            for one in notices(look, await self._more_letters(look.sources, look.at))
        }
        await self._forget_what_is_well(found)
        for name, notice in found.items():
            if not await self._store.remember_first(name, str(self._clock()), CLAIM_S):
                continue
            if self._full():
                self._metrics.notified("suppressed")
                log.event("notification-suppressed", logging.WARNING, type=notice.type)
                await self._store.forget(name)
                return sent
            if await self._send(notice):
                self._sent.append(self._clock())
                await self._store.remember(name, str(self._clock()), self._settings.repeat_s)
                self._metrics.notified("sent")
                log.event("notification-sent", type=notice.type)
                sent += 1
            else:
                self._metrics.notified("failed")
                await self._store.forget(name)
                return sent  # one that does not get through tells nothing of the others, but they would wait as long
        return sent

    async def _more_letters(self, sources: Sequence[SourceHealth], now: float) -> list[Dispatch]:
        """The last hour's dead letters that a look leaves out: a burst of one subscription must not hide another's."""
        found: list[Dispatch] = []
        for source in sources:
            seen, last = len(source.letters), list(source.letters[-1:])
            while last and _is_recent(last[0], now) and seen < min(source.depth.dead, LETTERS):
                page = await self._store.dead_letters(source.name, CHUNK, seen)
                found += page
                seen, last = seen + len(page), page[-1:]
        return found

    async def _forget_what_is_well(self, found: Collection[str]) -> None:
        """Let a thing be told again at once where it had been well for an hour: what comes back is news."""
        now = self._clock()
        self._wrong |= dict.fromkeys(found, now)
        for name in [name for name, at in self._wrong.items() if now - at >= RECENT_S]:
            await self._store.forget(name)
            del self._wrong[name]

    def _full(self) -> bool:
        return len(self._sent) == self._settings.hourly and self._clock() - self._sent[0] < RECENT_S

    async def _send(self, notice: Notice) -> bool:
        """Send one, again with the same id where that fails; only a 2xx is success."""
        self._secret.refresh()
        ident, now = f"msg_{uuid7()}", self._clock()
        body = orjson.dumps({"type": notice.type, "timestamp": _moment(now), "data": notice.data})
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(2.0**attempt)
            headers = {
                "content-type": "application/json",
                "webhook-id": ident,
                "webhook-timestamp": str(int(self._clock())),
            }
            signed = sign(self._profile, headers, body, self._secret.value)
            status = await self._post(signed, body)
            if status is not None and 200 <= status < 300:
                return True
            log.event("notification-failed", logging.WARNING, type=notice.type, status=status)
        return False

    async def _post(self, headers: Mapping[str, str], body: bytes) -> int | None:
        timeout = aiohttp.ClientTimeout(total=TOTAL_S)
        try:
            async with self._session.post(
                self._settings.url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look and tell inside the context."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                try:
                    await self.round()
                except Unavailable as error:
                    log.event("notification-unavailable", logging.WARNING, reason=error.reason)
                except Exception:  # noqa: BLE001 (a bug here must not pass for silence)
                    log.LOGGER.exception("notification-bug")

        task = asyncio.create_task(loop())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
