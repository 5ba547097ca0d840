"""Whether events flow: each source's state, what waits, what is parked, suspended, asked about or dead.

One look at the store serves the console, the API, `/metrics` and notifications. A state is judged from counts and times
alone. "No data" is never healthy: a source without a delivery is `new`, and nothing is known while the store is away.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from gateway.answers import Rate
from gateway.configuration import Configuration
from gateway.delivery import Outcome
from gateway.errors import Unavailable
from gateway.metrics import Gauges, SourceGauges
from gateway.store import BUCKET_S, Depth, Dispatch, Flow, Lane, Store
from gateway.structs import Value, field
from gateway.subscriptions import Enrolled
from gateway.suspension import State as Standing
from gateway.suspension import state_of

State = Literal["flowing", "new", "silent", "failing", "stuck", "removed"]
ORDER: tuple[State, ...] = ("failing", "stuck", "removed", "silent", "new", "flowing")
GOOD = (Outcome.FORWARDED, Outcome.DUPLICATE, Outcome.IGNORED, Outcome.HANDSHAKE)
UNPROVEN = "unproven"  # a handshake that anybody may ask for: neither good nor refused
RECENT = 3600 // BUCKET_S + 1
REFUSALS = 3
STUCK_S = 900.0
FRESH_S = 2.0
LETTERS = 20
ASKS = 200


class SourceHealth(Value):
    """One source: its state, since when nothing good came, what waits."""

    name: str
    profile: str
    state: State
    last_good: float | None
    last_refused: float | None
    refused_recently: int
    flow: Flow
    depth: Depth
    letters: tuple[Dispatch, ...] = ()


class Row(Value):
    """A subscription as operators see it."""

    digest: str
    source: str
    repository: str
    state: Standing
    reason: str | None


class Asked(Value):
    """A dispatch that waits for an operator's yes, and when its question ends by itself."""

    dispatch: Dispatch
    expires: float


class Look(Value):
    """Everything at one moment; `away` is the reason where the store did not answer, and then nothing else is known."""

    at: float
    away: str | None
    sources: tuple[SourceHealth, ...] = ()
    lanes: tuple[Lane, ...] = ()
    parked: Mapping[int, float] = field(default_factory=dict)
    subscriptions: tuple[Row, ...] = ()
    asks: tuple[Asked, ...] = ()

    @property
    def dead(self) -> int:
        """All dead letters."""
        return sum(source.depth.dead for source in self.sources)

    @property
    def waiting(self) -> int:
        """All events and batches that wait."""
        return sum(source.depth.waiting + source.depth.sealed for source in self.sources)


def judge(flow: Flow, depth: Depth, now: float, silent_after_s: float) -> State:
    """Name a source's state; the first that applies of failing, stuck, new, silent, flowing."""
    good, refused = last_good(flow), flow.last.get(Outcome.REJECTED)
    recent = flow.total(Outcome.REJECTED, RECENT)
    if refused is not None and now - refused < RECENT * BUCKET_S and (good is None or refused > good):
        came = sum(flow.total(kind, RECENT) for kind in GOOD)
        if good is None or (recent >= REFUSALS and recent > came):
            return "failing"
    if depth.oldest is not None and now - depth.oldest > STUCK_S:
        return "stuck"
    if good is None:
        return "new"
    return "silent" if silent_after_s and now - good > silent_after_s else "flowing"


def last_good(flow: Flow) -> float | None:
    """The time of the last authentic delivery, whatever became of it."""
    return max((flow.last[kind] for kind in GOOD if kind in flow.last), default=None)


async def look(configuration: Configuration, store: Store, now: float) -> Look:
    """Look at the store once. Never raises for a store that is away."""
    try:
        return await _look(configuration, store, now)
    except Unavailable as error:
        return Look(now, error.reason)


async def _look(configuration: Configuration, store: Store, now: float) -> Look:
    sources, lanes, asks = [], [], []
    parked, suspended = await store.parked(now), await store.suspended()
    for name in (*configuration.sources, *sorted(await store.sources() - configuration.sources.keys())):
        flow, depth = await asyncio.gather(store.flow(name, now), store.depth(name))
        source = configuration.sources.get(name)
        if source is None and not (depth.dead or depth.lanes):
            continue
        letters = tuple(await store.dead_letters(name, LETTERS)) if depth.dead else ()
        if depth.lanes:
            lanes += await store.lanes(name)
            asks += await _asked(store, name)
        state: State = "removed"
        if source is not None:
            state = judge(flow, depth, now, configuration.settings.sources[name].silent_after_s)
        profile = source.profile.name if source is not None else ""
        refused, recent = flow.last.get(Outcome.REJECTED), flow.total(Outcome.REJECTED, RECENT)
        sources.append(SourceHealth(name, profile, state, last_good(flow), refused, recent, flow, depth, letters))
    asks.sort(key=lambda one: one.expires)
    return Look(now, None, tuple(sources), tuple(lanes), parked, rows(configuration, suspended), tuple(asks))


async def _asked(store: Store, source: str) -> list[Asked]:
    ends = await store.asked(source)
    return [Asked(one, ends[one.id]) for one in await store.dispatches(list(ends)[:ASKS])]


def rows(configuration: Configuration, suspended: Mapping[str, str]) -> tuple[Row, ...]:
    """Every enrolled subscription with its state; one whose source or profile does not fit never activates."""
    inactive = {one.subscription.digest: reason for one, reason in configuration.index.inactive}
    return tuple(
        Row(one.subscription.digest, one.source, one.subscription.repository, *_state(one, inactive, suspended))
        for one in configuration.enrolled
    )


def _state(one: Enrolled, inactive: Mapping[str, str], suspended: Mapping[str, str]) -> tuple[Standing, str | None]:
    digest = one.subscription.digest
    if digest in inactive:
        return "mismatched", inactive[digest]
    return state_of(suspended.get(digest)), suspended.get(digest)


class HasRates(Protocol):
    """What a `GitHubApp` has learned of rate limits."""

    rates: dict[int, Rate]


class Lookout:
    """Looks at most once in `FRESH_S` however many ask, so that neither a scrape nor a page can load the store."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        store: Store,
        clock: Callable[[], float] = time.time,
        github: "HasRates | None" = None,
    ) -> None:
        self._configuration, self._store, self._clock = configuration, store, clock
        self._last: Look | None = None
        self._lock = asyncio.Lock()
        self._github = github

    async def look(self, *, fresh: bool = False) -> Look:
        """Return a look that is fresh enough; `fresh` asks for a new one, after a change."""
        async with self._lock:
            now = self._clock()
            if fresh or self._last is None or not 0 <= now - self._last.at < FRESH_S:
                self._last = await look(self._configuration(), self._store, now)
            return self._last

    async def gauges(self) -> Gauges:
        """The look as metrics show it."""
        seen = await self.look()
        states = [row.state for row in seen.subscriptions]
        return Gauges(
            seen.at,
            seen.away is None,
            {
                one.name: SourceGauges(
                    one.state,
                    one.last_good,
                    one.last_refused,
                    one.depth.waiting,
                    one.depth.sealed,
                    one.depth.dead,
                    one.depth.oldest,
                )
                for one in seen.sources
            },
            seen.parked,
            {state: states.count(state) for state in ("active", "suspended", "mismatched")},
            len(seen.asks),
            self._github.rates if self._github is not None else {},
        )
