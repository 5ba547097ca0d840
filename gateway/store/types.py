"""What goes into the store and comes out of it: plain values, no key names, no client."""

from collections.abc import Mapping
from typing import Any

from gateway.structs import Value


class QueueEntry(Value):
    """One event for one lane: `lane` is `<digest>:<trigger>`, `event` what `EnvelopeEvent.queued` made."""

    lane: str
    event: str
    delivery: str


class AdmitItem(Value):
    """One event of a delivery: its dedupe texts (the delivery id first, a body digest second) and where it goes.

    `jti` is a single-use token id with its end in Unix seconds. An item that matched nothing is not passed.
    """

    dedupe: tuple[str, ...]
    ttl_s: int
    jti: tuple[str, float] | None
    entries: tuple[QueueEntry, ...]


class Admit(Value):
    """A whole delivery: admitted in one step, or not at all. `record` is its delivery record as JSON text.

    One that is made of the events of a dispatch names it as `carries`: no run is admitted to that from then on.
    """

    source: str
    delivery: str
    items: tuple[AdmitItem, ...]
    record: str
    now: float
    carries: str | None = None


class ItemResult(Value):
    """`status` is queued, duplicate, replayed-body or replayed-token; `first` the id of the delivery that came first.

    `taken`: a run has the dispatch that the delivery carries, so nothing was queued.
    """

    status: str
    first: str | None


class Admitted(Value):
    """One result an item, in order."""

    items: tuple[ItemResult, ...]


class Batch(Value):
    """A sealed batch under a lease. Members and `dispatch` never change; `events` are merged and in order."""

    source: str
    lane: str
    digest: str
    trigger: str
    dispatch: str
    events: tuple[str, ...]
    deliveries: tuple[str, ...]
    attempts: int
    first_attempt: float | None
    lease: str
    reason: str | None = None


class Refusal(Value):
    """Why, when and which run was refused a dispatch."""

    reason: str
    run: str
    at: float


class Dispatch(Value):
    """What is known of one dispatch, up to 7 days after it was settled; `events` is empty once it was taken.

    `status` is queued, asked, sending, sent, dead or discarded (or what `done` was given); `run` the admitted workflow run.
    """

    id: str
    source: str
    lane: str
    digest: str
    trigger: str
    status: str
    reason: str | None
    attempts: int
    events: tuple[str, ...]
    deliveries: tuple[str, ...]
    envelope_digest: str | None
    sealed_at: float | None
    first_attempt: float | None
    first_sent: float | None
    last_sent: float | None
    settled_at: float | None
    run: str | None
    admitted_at: float | None
    count: int = 0  # events of the batch, also after they were taken
    refused: Refusal | None = None  # of its own repository's runs, the last before one was admitted


class Page(Value):
    """Delivery records, newest first, as they were written with their final outcome; `next` continues after them."""

    rows: tuple[Mapping[str, Any], ...]
    next: str | None


class Depth(Value):
    """What waits in a source: lanes with work, unsealed events, sealed batches, dead letters, the oldest event's time."""

    lanes: int
    waiting: int
    sealed: int
    dead: int
    oldest: float | None


class Limits(Value):
    """Bounds of what is kept. Nothing undelivered is subject to any of them; a dead letter is, 100,000 to a source."""

    records: int = 10_000
    records_age_s: int = 14 * 86_400
    dead: int = 100_000
    batch_events: int = 20
    batch_bytes: int = 54_000  # of 60,000: what is not queued of 20 events takes at most 4,000, the rest under 1,000
