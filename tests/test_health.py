from typing import Any, cast

import pytest

from gateway.errors import Unavailable
from gateway.health import Lookout, judge, last_good, look
from gateway.store import BUCKET_S, BUCKETS, Depth, Flow

NOW = 1_000_000.0
CALM = Depth(0, 0, 0, 0, None)


def flow(now_counts: dict[str, int], last: dict[str, float]) -> Flow:
    return Flow({kind: (0,) * (BUCKETS - 1) + (count,) for kind, count in now_counts.items()}, last)


@pytest.mark.parametrize(
    ("seen", "depth", "state"),
    [
        (flow({}, {}), CALM, "new"),
        (flow({"unproven": 9}, {"unproven": NOW}), CALM, "new"),  # anybody can ask for a handshake
        (flow({"forwarded": 1}, {"forwarded": NOW}), CALM, "flowing"),
        (flow({"ignored": 1}, {"ignored": NOW}), CALM, "flowing"),
        (flow({}, {"forwarded": NOW - 90_000}), CALM, "silent"),
        (flow({"rejected": 1}, {"rejected": NOW}), CALM, "failing"),  # never a good one
        (flow({"rejected": 3, "forwarded": 1}, {"rejected": NOW, "forwarded": NOW - 60}), CALM, "failing"),
        (flow({"rejected": 3, "forwarded": 9}, {"rejected": NOW, "forwarded": NOW - 60}), CALM, "flowing"),
        (flow({"rejected": 9, "forwarded": 1}, {"rejected": NOW - 60, "forwarded": NOW}), CALM, "flowing"),  # mended
        (flow({}, {"rejected": NOW - 50_000, "forwarded": NOW - 60_000}), CALM, "flowing"),  # long ago
        (flow({"forwarded": 1}, {"forwarded": NOW}), Depth(1, 5, 1, 0, NOW - 1000), "stuck"),
        (flow({"forwarded": 1}, {"forwarded": NOW}), Depth(1, 5, 1, 0, NOW - 10), "flowing"),
    ],
)
def test_states(seen: Flow, depth: Depth, state: str) -> None:
    assert judge(seen, depth, NOW, 86_400) == state


def test_silence_may_be_expected() -> None:
    assert judge(flow({}, {"forwarded": 0.0}), CALM, NOW, 0) == "flowing"
    assert last_good(flow({}, {"rejected": 5.0})) is None


def test_totals_are_of_the_last_stretches() -> None:
    seen = Flow({"forwarded": tuple(range(BUCKETS))}, {})
    assert seen.total("forwarded", 2) == 2 * BUCKETS - 3
    assert seen.total("rejected") == 0
    assert BUCKET_S * BUCKETS == 86_400


class AwayStore:
    def __init__(self) -> None:
        self.asked = 0

    async def parked(self, _now: float) -> Any:
        self.asked += 1
        raise Unavailable("store-away")


async def test_a_store_that_is_away_is_told_and_asked_rarely() -> None:
    store = AwayStore()
    ticks = [NOW]
    lookout = Lookout(lambda: cast(Any, None), cast(Any, store), lambda: ticks[0])
    seen = await lookout.look()
    assert (seen.away, seen.sources) == ("store-away", ())
    assert not (await lookout.gauges()).store_up
    assert store.asked == 1
    ticks[0] += 10
    await lookout.look()
    await lookout.look(fresh=True)
    assert store.asked == 3
    assert (await look(cast(Any, None), cast(Any, store), NOW)).away == "store-away"
