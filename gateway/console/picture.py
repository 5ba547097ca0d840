"""The flow of the last hours as an inline SVG: one column a stretch of time, kinds stacked. No style attribute: CSS classes."""

from collections.abc import Iterable

from gateway.store import BUCKET_S, BUCKETS, Flow
from gateway.structs import Value

KINDS = (
    ("forwarded", "forwarded"),
    ("duplicate", "duplicate"),
    ("ignored", "ignored"),
    ("handshake", "handshake"),
    ("rejected", "refused"),
    ("unavailable", "not taken"),
)
MERGE = 2  # stretches in one column
COLUMNS = BUCKETS // MERGE
WIDTH, HEIGHT, GAP = 10, 100, 2


class Bar(Value):
    """One rectangle in units of the picture; `kind` is its class."""

    kind: str
    x: int
    y: float
    height: float


class Column(Value):
    """What stands in one column, for the text that goes with it."""

    ago_s: int
    counts: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]

    @property
    def total(self) -> int:
        """All deliveries of the column."""
        return sum(count for _, count in self.counts)


class Picture(Value):
    """Columns from 24 hours ago to now, the highest column's count, and totals by kind, as a table tells them."""

    columns: tuple[Column, ...]
    top: int
    totals: tuple[tuple[str, str, int], ...]
    width: int = COLUMNS * WIDTH
    height: int = HEIGHT
    bar: int = WIDTH - GAP

    @property
    def empty(self) -> bool:
        """Whether nothing came at all."""
        return self.top == 0


def draw(flows: Iterable[Flow]) -> Picture:
    """Draw the sum of several sources' flows."""
    rows = list(flows)
    counts = {
        kind: [
            sum(sum(flow.counts.get(kind, ())[start : start + MERGE]) for flow in rows)
            for start in range(0, BUCKETS, MERGE)
        ]
        for kind, _ in KINDS
    }
    top = max((sum(row[place] for row in counts.values()) for place in range(COLUMNS)), default=0)
    columns = tuple(_column(place, [(kind, counts[kind][place]) for kind, _ in KINDS], top) for place in range(COLUMNS))
    return Picture(columns, top, tuple((kind, name, sum(counts[kind])) for kind, name in KINDS))


def _column(place: int, counts: list[tuple[str, int]], top: int) -> Column:
    bars, floor = [], float(HEIGHT)
    for kind, count in counts:
        if count:
            height = max(count / top * (HEIGHT - 4), 1.5)  # one refusal among thousands must still be seen
            floor -= height
            bars.append(Bar(kind, place * WIDTH + GAP // 2, round(max(floor, 0), 1), round(height, 1)))
    return Column((COLUMNS - 1 - place) * BUCKET_S * MERGE, tuple(counts), tuple(bars))
