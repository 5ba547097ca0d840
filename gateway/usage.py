"""When each live secret last proved a delivery: what tells an operator that a rotation is through.

Noted by reference, since positions move when a list changes. Written at most every few seconds, off the answer's path;
what a crash takes with it is noted again by the next delivery.
"""

import asyncio
from collections.abc import Iterable

from gateway.errors import Unavailable
from gateway.settings import SourceSettings
from gateway.store import Store
from gateway.verify import VerifiedDelivery

WRITE_S = 5.0
FRESH_S = 1.0  # a use is not noted again for so long


class Usage:
    """What is not written yet, by source."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}
        self._noted: dict[tuple[str, str], float] = {}
        self._task: asyncio.Task[None] | None = None

    def saw(self, store: Store, settings: SourceSettings, verified: VerifiedDelivery) -> None:
        """Note the secrets that proved a delivery."""
        source, at = verified.raw.source, verified.raw.received_at
        used = {key for key in _labels(verified) if at - self._noted.get((source, key), 0.0) >= FRESH_S}
        if not used:
            return
        self._noted.update(dict.fromkeys(((source, key) for key in used), at))
        references = {label: reference for label, reference, _ in settings.references() if label in used}
        if not references:
            return
        seen = self._seen.setdefault(verified.raw.source, {})
        seen.update(dict.fromkeys(references.values(), verified.raw.received_at))
        if self._task is None:
            self._task = asyncio.create_task(self._later(store))

    async def _later(self, store: Store) -> None:
        await asyncio.sleep(WRITE_S)
        self._task = None
        await self.write(store)

    async def write(self, store: Store) -> None:
        """Write what was seen. A store that is away gets it with the next write."""
        seen, self._seen = self._seen, {}
        for source, times in seen.items():
            try:
                await store.secret_used(source, times)
            except Unavailable:
                self._seen.setdefault(source, {}).update({**times, **self._seen.get(source, {})})

    async def close(self, store: Store) -> None:
        """Write the last of it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write(store)


def _labels(verified: VerifiedDelivery) -> set[str]:
    keys: Iterable[str | None] = [verified.key, *(item.key for item in verified.items or ())]
    return {key for key in keys if key}
