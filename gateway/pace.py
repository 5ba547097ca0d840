"""How fast: the waits between attempts, spread at random, and how much may be under way at once."""

import asyncio
import random
from collections import Counter

from gateway.structs import Value, replace

BACKOFF_S = 1.0
BACKOFF_MAX_S = 900.0
POLL_MIN_S = 0.2
AWAY_MAX_S = 5.0


class Limits(Value):
    """Bounds of what is under way at once.

    A repository has fewer slots than its installation and an installation fewer than all, so that a stuck one leaves room
    for the others. `waiting` batches of one repository may wait for its slots; more go back to the store.
    """

    overall: int = 64
    installation: int = 8
    repository: int = 4
    waiting: int = 16
    taken: int = 512

    def share(self, processes: int) -> "Limits":
        """Return one process's part of what may be under way at once."""
        return replace(
            self,
            overall=-(-self.overall // processes),
            installation=-(-self.installation // processes),
            repository=-(-self.repository // processes),
        )


class Slots:
    """The slots that sends wait for: those of their repository, of its installation, and of all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots: dict[int | str, asyncio.Semaphore] = {}
        self._taken: Counter[int | str] = Counter()
        self.overall = asyncio.Semaphore(limits.overall)

    def crowded(self, repository: str) -> bool:
        """Tell whether as many wait for the repository's slots as may."""
        return self._taken[repository] >= self._limits.waiting

    def take(self, repository: str, installation: int) -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
        """Return the semaphores of both, kept until `free`."""
        self._taken.update((repository, installation))
        return self._slot(repository, self._limits.repository), self._slot(installation, self._limits.installation)

    def free(self, repository: str, installation: int) -> None:
        """Forget the slots that nobody uses: the tables are as large as what is under way."""
        for key in (repository, installation):
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
                self._slots.pop(key, None)

    def _slot(self, key: int | str, size: int) -> asyncio.Semaphore:
        return self._slots.setdefault(key, asyncio.Semaphore(size))


def backoff_s(attempts: int) -> float:
    """Return the wait after a failed attempt that followed `attempts` others: 1 s doubling to 15 min, full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return jitter(min(BACKOFF_S * 2 ** min(attempts, 20), BACKOFF_MAX_S))


def jitter(most_s: float) -> float:
    """Return a wait of up to `most_s`."""
    return random.uniform(0.0, most_s)  # noqa: S311 (spread, not a secret)
