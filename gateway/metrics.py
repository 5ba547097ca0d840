"""Prometheus metrics with bounded label sets: sources, triggers and installations of the configuration, slugs of the code.

Counters are those of this machine's processes; gauges are read from the shared store when somebody scrapes (`present`), so that every
process shows the same. A label's value never comes from a delivery. Names and meanings stand in docs/observability.md.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.answers import Rate
from gateway.structs import Value, field

disable_created_metrics()  # type: ignore[no-untyped-call]
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
REASONS = 128  # distinct slugs kept of one label; more are `other`
SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
ADMIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
DISPATCH_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class SourceGauges(Value):
    """One source at one moment; `last_good` None where no authentic delivery is known, `oldest` None where none waits."""

    health: str
    last_good: float | None
    last_refused: float | None
    waiting: int
    sealed: int
    dead: int
    oldest: float | None


class Gauges(Value):
    """What `present` shows beside the counters. Without a store (`store_up` False) the rest is absent, never stale."""

    at: float
    store_up: bool
    sources: Mapping[str, SourceGauges] = field(default_factory=dict)
    parked: Mapping[int, float] = field(default_factory=dict)
    subscriptions: Mapping[str, int] = field(default_factory=dict)
    asks: int = 0
    rates: Mapping[int, Rate] = field(default_factory=dict)


HEALTH = ("flowing", "new", "silent", "failing", "stuck", "removed")
NEVER = float("inf")  # an age that no rule takes for healthy


class Metrics:
    """This process's counters and their text form."""

    def __init__(self, worker: str = "0") -> None:
        self._registry = CollectorRegistry()
        self._worker = worker
        self._reasons: dict[str, set[str]] = {}
        # What a delivery or a dispatch adds is counted here and given to the library when somebody looks: it takes a lock
        # for each count.
        self._counted: dict[tuple[str, ...], int] = {}
        self._families: dict[str, Counter] = {}
        self._admit_s = _Times(
            "gateway_admit_seconds", "From the whole request to its answer, the store's copy included"
        )
        self._registry.register(self._admit_s)

        def counter(name: str, text: str, *labels: str) -> Counter:
            made = Counter(f"gateway_{name}", text, labels, registry=self._registry)
            if labels:
                self._families[name] = made
            return made

        counter("deliveries", "Deliveries by outcome", "source", "outcome")
        counter("refused", "Deliveries refused, by reason", "source", "reason")
        counter("unavailable", "Deliveries answered 503 or 429, by reason", "source", "reason")
        counter("matched", "Matches by trigger", "source", "trigger")
        counter("secret_used", "Deliveries proven, by the position of the secret", "source", "position")
        counter("dispatches", "Turns of batches by result", "result", "reason")
        counter("admissions", "Runs that asked for admission, by result", "result", "reason")
        self._parked = counter("parked_seconds", "Time that installations were parked for by GitHub's rate limits")
        self._dropped = counter("records_dropped", "Delivery records that were not written")
        counter("notifications", "Notifications to the operator by result", "result")
        self._dispatch_s = Histogram(
            "gateway_dispatch_seconds", "One turn of a batch that was sent", buckets=DISPATCH_S, registry=self._registry
        )

    # -- what happened -----------------------------------------------------------------------------------------------

    def delivery(self, source: str, outcome: str, took_s: float) -> None:
        """Count a delivery that was answered."""
        self._count("deliveries", source, outcome)
        self._admit_s.observe(source, took_s)

    def refused(self, source: str, reason: str) -> None:
        """Count a refusal."""
        self._count("refused", source, self._slug("refused", reason))

    def unavailable(self, source: str, reason: str) -> None:
        """Count a delivery that the provider was asked to send again later."""
        self._count("unavailable", source, self._slug("unavailable", reason))

    def matched(self, source: str, triggers: Iterable[str]) -> None:
        """Count matches; triggers are those of enrolled subscriptions."""
        for trigger in triggers:
            self._count("matched", source, trigger)

    def proven(self, source: str, position: str) -> None:
        """Count a delivery by the secret that proved it: its place in the configuration, for a rotation."""
        self._count("secret_used", source, position)

    def dispatched(self, result: str, reason: str, took_s: float, *, sent: bool) -> None:
        """Count one turn of a batch."""
        self._count("dispatches", result, self._slug("dispatch", reason))
        if sent:
            self._dispatch_s.observe(took_s)

    def parked(self, seconds: float) -> None:
        """Add the time that an installation is parked for."""
        self._parked.inc(max(0.0, seconds))

    def admission(self, result: str, reason: str) -> None:
        """Count one answer to a run."""
        self._count("admissions", result, self._slug("admission", reason))

    def notified(self, result: str) -> None:
        """Count one notification: sent, failed or suppressed."""
        self._count("notifications", result)

    def dropped(self, records: int) -> None:
        """Add records that could not be written."""
        self._dropped.inc(records)

    def _count(self, *key: str) -> None:
        self._counted[key] = self._counted.get(key, 0) + 1

    def _settle(self) -> None:
        """Give the library what was counted since it was last looked at."""
        counted, self._counted = self._counted, {}
        for (name, *labels), number in counted.items():
            self._families[name].labels(*labels).inc(number)

    def _slug(self, label: str, reason: str) -> str:
        """Return the reason where it is a slug and not one too many: a label set is bounded whatever its caller does."""
        known = self._reasons.setdefault(label, set())
        if reason in known:
            return reason
        if len(known) >= REASONS or not SLUG.fullmatch(reason):
            return "other"
        known.add(reason)
        return reason

    # -- what is shown -----------------------------------------------------------------------------------------------

    def export(self) -> str:
        """Return this process's counters, for the process of the same machine that is scraped."""
        self._settle()
        return generate_latest(self._registry).decode()

    def present(self, gauges: Gauges, others: Mapping[str, str] | None = None) -> bytes:
        """Return everything in the text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/).

        `others` are the exports of other processes. Each process keeps series of its own, told apart by `worker`: a sum
        would look like a reset whenever one of them is started anew.
        """
        self._settle()
        pages = {self._worker: self._registry.collect()}
        pages |= {worker: text_string_to_metric_families(text) for worker, text in (others or {}).items()}
        shown = CollectorRegistry(auto_describe=False)
        shown.register(_Fixed([*_by_worker(pages), *_families(gauges)]))
        return generate_latest(shown)


class _Times(Collector):
    """A histogram by source without the library's locks: a look for the bucket and two additions."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._seen: dict[str, list[int]] = {}
        self._sum: dict[str, float] = {}

    def observe(self, source: str, took_s: float) -> None:
        seen = self._seen.get(source)
        if seen is None:
            seen, self._sum[source] = self._seen.setdefault(source, [0] * (len(ADMIT_S) + 1)), 0.0
        seen[bisect_left(ADMIT_S, took_s)] += 1
        self._sum[source] += took_s

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=("source",))
        bounds = (*map(floatToGoString, ADMIT_S), "+Inf")
        for source, seen in self._seen.items():
            family.add_metric((source,), list(zip(bounds, accumulate(seen), strict=True)), self._sum[source])
        yield family


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _by_worker(pages: Mapping[str, Iterable[Metric]]) -> Iterable[Metric]:
    merged: dict[str, Metric] = {}
    for worker, families in sorted(pages.items()):
        for family in families:
            into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += [one._replace(labels={**one.labels, "worker": worker}) for one in family.samples]
    return merged.values()


def _families(gauges: Gauges) -> Iterator[Metric]:
    yield _gauge("store_up", "Whether the store answers", {(): float(gauges.store_up)})
    if not gauges.store_up:
        return
    sources, now = gauges.sources, gauges.at

    def each(name: str, text: str, value: Mapping[str, float]) -> Metric:
        return _gauge(name, text, {(key,): number for key, number in value.items()}, "source")

    def age(at: float | None, otherwise: float) -> float:
        return otherwise if at is None else max(0.0, now - at)

    yield _gauge(
        "source_health",
        "1 for the state that a source is in",
        {(name, state): float(one.health == state) for name, one in sources.items() for state in HEALTH},
        "source",
        "state",
    )
    yield each(
        "last_good_age_seconds",
        "Age of the last authentic delivery; +Inf where there was none",
        {name: age(one.last_good, NEVER) for name, one in sources.items()},
    )
    yield each("queue_events", "Events that wait, not sealed", {n: one.waiting for n, one in sources.items()})
    yield each("queue_batches", "Sealed batches that wait", {n: one.sealed for n, one in sources.items()})
    yield each(
        "queue_oldest_age_seconds",
        "Age of the oldest event that waits; 0 where none does",
        {name: age(one.oldest, 0.0) for name, one in sources.items()},
    )
    yield each("dead_letters", "Dead letters", {name: one.dead for name, one in sources.items()})
    yield _gauge(
        "installation_parked_seconds",
        "How long an installation stays parked",
        {(str(number),): max(0.0, until - now) for number, until in gauges.parked.items()},
        "installation",
    )
    yield _gauge("subscriptions", "Subscriptions by state", {(s,): n for s, n in gauges.subscriptions.items()}, "state")
    yield _gauge("asks", "Dispatches that wait for an operator's answer", {(): gauges.asks})
    for name, text, value in (
        ("github_rate_remaining", "Requests left to an installation, as GitHub last said", "remaining"),
        ("github_rate_limit", "Requests that an installation has an hour, as GitHub last said", "limit"),
        ("github_rate_reset_timestamp_seconds", "When an installation's budget starts anew", "resets_at"),
    ):
        found: dict[tuple[str, ...], float] = {
            (str(number),): float(getattr(rate, value)) for number, rate in gauges.rates.items()
        }
        yield _gauge(name, text, found, "installation")


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"gateway_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
