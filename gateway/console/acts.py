"""What an operator can do here: replay or discard dead letters, answer an ask, send a test event.

Each act stands in the audit trail before it is done: one that cannot be attributed is not done.
"""

import time
from collections.abc import Awaitable, Callable, Iterable

from gateway import asks, audit, letters
from gateway.configuration import Configuration
from gateway.console.session import Operator
from gateway.keys import Keys
from gateway.samples import sample_for, signed_sample
from gateway.store import Dispatch, Store
from gateway.structs import Value

MOST = 10_000
CHUNK = 200
Post = Callable[[str, dict[str, str], bytes], Awaitable[tuple[int, str | None]]]


class Sent(Value):
    """What a test event was answered with."""

    status: int
    delivery: str | None


class Acts:
    """`post` takes a delivery through the application as one from outside; `wake` tells the dispatcher of new work."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        keys: Keys,
        store: Store,
        post: Post,
        wake: Callable[[str], None],
    ) -> None:
        self._configuration, self._keys, self._store = configuration, keys, store
        self._post, self._wake = post, wake

    async def letters(self, source: str) -> list[str]:
        """The ids of a source's dead letters, at most 10,000."""
        found: list[str] = []
        while len(found) < MOST:
            page = await self._store.dead_letters(source, CHUNK, len(found))
            found += [one.id for one in page]
            if len(page) < CHUNK:
                break
        return found

    async def replay(self, operator: Operator, ids: Iterable[str]) -> list[str]:
        """Queue dead letters again under their own dispatch ids; returns those that were dead.

        One whose subscription is not enrolled stays: it would be a dead letter again at once.
        """
        done: list[str] = []
        enrolled = self._configuration().index.by_digest
        for source, named in await self._by_source(ids, lambda letter: enrolled(letter.digest) is not None):
            done += await letters.settle(self._store, letters.REPLAY, operator.name, source, named)
            self._wake(source)
        return done

    async def discard(self, operator: Operator, ids: Iterable[str]) -> list[str]:
        """Give dead letters up; returns those that were dead."""
        done: list[str] = []
        for source, named in await self._by_source(ids, lambda _: True):
            done += await letters.settle(self._store, letters.DISCARD, operator.name, source, named)
        return done

    async def _by_source(self, ids: Iterable[str], fits: Callable[[Dispatch], bool]) -> list[tuple[str, list[str]]]:
        """Dead letters by source, at most 200 at a time: each group is in the audit trail before it is acted on."""
        found: dict[str, list[str]] = {}
        for one in await self._store.dispatches(list(dict.fromkeys(ids))):
            if one.status == "dead" and fits(one):
                found.setdefault(one.source, []).append(one.id)
        return [
            (source, named[start : start + CHUNK])
            for source, named in found.items()
            for start in range(0, len(named), CHUNK)
        ]

    async def answer(self, operator: Operator, ident: str, answer: str) -> str:
        """Answer a question once: `answered`, `unknown`, `already` or `expired`. It is written down first."""
        status = await asks.answer(self._store, operator.name, ident, answer, time.time())
        source = await self._store.source_of(ident)
        if source is not None:
            self._wake(source)
        return status

    def can_test(self, name: str) -> bool:
        """Whether a sample can be signed for this source."""
        source = self._configuration().sources.get(name)
        return source is not None and sample_for(source.profile) is not None

    async def test(self, operator: Operator, name: str) -> Sent | None:
        """Send a signed sample to a source, None where none can be. It takes the whole path, dispatch included."""
        source = self._configuration().sources.get(name)
        if source is None or not self.can_test(name):
            return None
        ring = await self._keys.ring(source)
        signed = signed_sample(source, ring.secrets[0].value, time.time())
        if signed is None:
            return None
        await audit.record(self._store, "test", operator.name, source=name)
        status, delivery = await self._post(name, *signed)
        return Sent(status, delivery)
