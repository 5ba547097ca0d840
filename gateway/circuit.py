"""When GitHub seems away: nothing is sent but probes, ever rarer. One stuck repository is told from a host that is away."""

import random


class Circuit:
    """Counts outages of one API host in a row; after `threshold` nothing is sent to the repositories that they came from.

    Only one probe at a time is, ever rarer. That all of them fail says nothing of the others while they are one or two:
    a repository can answer 500 for ever. Of `repositories` it says that the host is away: nothing is sent to any.
    """

    def __init__(self, threshold: int = 5, repositories: int = 3, first_s: float = 1.0, most_s: float = 60.0) -> None:
        self._threshold, self._repositories = threshold, repositories
        self._first_s, self._most_s = first_s, most_s
        self._failures = 0
        self._suspects: set[str] = set()
        self._trips = 0
        self.probe_at: float | None = None

    @property
    def wide(self) -> bool:
        """True while the host seems away."""
        return self.probe_at is not None and len(self._suspects) >= self._repositories

    def holds(self, repository: str) -> bool:
        """Tell whether only a probe may be sent to this repository."""
        return self.wide or (self.probe_at is not None and repository in self._suspects)

    def may_probe(self, now: float) -> bool:
        """Tell whether the next probe is due."""
        return self.probe_at is not None and now >= self.probe_at

    def probe(self, now: float) -> bool:
        """Take the next probe where it is due."""
        if not self.may_probe(now):
            return False
        self._wait(now)
        return True

    def record(self, repository: str, outage: bool, now: float) -> None:
        """Note one answer."""
        if not outage:
            self._failures, self._trips, self.probe_at = 0, 0, None
            self._suspects.clear()
            return
        self._failures += 1
        self._suspects.add(repository)
        if self._failures >= self._threshold and self.probe_at is None:
            self._wait(now)

    def _wait(self, now: float) -> None:
        wait_s = min(self._first_s * 2 ** min(self._trips, 16), self._most_s)
        self.probe_at = now + wait_s * random.uniform(0.5, 1.0)  # noqa: S311 (spread, not a secret)
        self._trips += 1
