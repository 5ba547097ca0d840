"""The judge of a run: what was accepted against what became of it. A pure function, so that it can be judged itself.

It knows nothing of the product but what others see: the answers that senders got, the dispatches that GitHub took, the dead
letters and what still waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Posted:
    """One event as its sender sees it: when it was first posted, and when first answered 2xx (None: never)."""

    event: str
    lane: str
    posted: float
    answered: float | None


@dataclass(frozen=True, slots=True)
class Dispatched:
    """One batch under its dispatch id, members in order."""

    dispatch: str
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All of one run.

    `answers` are 2xx answers of one event in the order of its sending, each the delivery id that was named. `taken` is what
    GitHub took, in order, repeats included; `dead` the dead letters, `sealed` and `waiting` what is still queued.
    """

    posted: Sequence[Posted]
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    taken: Sequence[Dispatched] = ()
    dead: Sequence[Dispatched] = ()
    sealed: Sequence[Dispatched] = ()
    waiting: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise: `kind` is lost, twice, changed, answered-twice, disordered or invented."""

    kind: str
    what: str


def audit(history: History) -> list[Finding]:
    """Return every broken promise, none where all were kept."""
    return [
        *_lost(history),
        *_twice(history),
        *_changed(history),
        *_answers(history),
        *_order(history),
        *_made_up(history),
    ]


def _batches(history: History) -> Iterable[Dispatched]:
    return (*history.taken, *history.dead, *history.sealed)


def _somewhere(history: History) -> set[str]:
    return {event for batch in _batches(history) for event in batch.events} | set(history.waiting)


def _lost(history: History) -> list[Finding]:
    known = _somewhere(history)
    return [Finding("lost", one.event) for one in history.posted if one.answered is not None and one.event not in known]


def _twice(history: History) -> list[Finding]:
    """An event under two dispatch ids, or twice in one, or queued beside its dispatch."""
    of: dict[str, set[str]] = {}
    found = []
    for batch in _batches(history):
        if len(set(batch.events)) < len(batch.events):
            found.append(Finding("twice", batch.dispatch))
        for event in batch.events:
            of.setdefault(event, set()).add(batch.dispatch)
    for event in history.waiting:
        if event in of.setdefault(event, set()):
            found.append(Finding("twice", event))
        of[event] |= {event}
    return found + [Finding("twice", event) for event, ids in of.items() if len(ids) > 1]


def _changed(history: History) -> list[Finding]:
    first: dict[str, tuple[str, ...]] = {}
    return [
        Finding("changed", batch.dispatch)
        for batch in _batches(history)
        if first.setdefault(batch.dispatch, batch.events) != batch.events
    ]


def _answers(history: History) -> list[Finding]:
    """Every repeat of an event is answered with the delivery that came first."""
    return [Finding("answered-twice", event) for event, ids in history.answers.items() if len(set(ids)) > 1]


def _order(history: History) -> list[Finding]:
    """What was answered before another was posted leaves before it, in its lane; a dead letter has left the order."""
    place: dict[str, int] = {}
    for batch in history.taken:
        for event in batch.events:
            place.setdefault(event, len(place))
    dead = {event for batch in history.dead for event in batch.events}
    lanes: dict[str, list[Posted]] = {}
    for one in history.posted:
        if one.event not in dead:
            lanes.setdefault(one.lane, []).append(one)
    return [finding for lane in lanes.values() for finding in _lane_order(lane, place)]


def _lane_order(lane: list[Posted], place: Mapping[str, int]) -> Iterable[Finding]:
    answered = sorted((one for one in lane if one.answered is not None), key=lambda one: one.answered or 0.0)
    latest, position = -1, 0
    for one in sorted(lane, key=lambda one: one.posted):
        while position < len(answered) and (answered[position].answered or 0.0) < one.posted:
            latest = max(latest, place.get(answered[position].event, len(place)))
            position += 1
        if one.event in place and place[one.event] < latest:
            yield Finding("disordered", one.event)


def _made_up(history: History) -> list[Finding]:
    posted = {one.event for one in history.posted}
    return [Finding("invented", event) for event in sorted(_somewhere(history) - posted)]


# -- the store's own structure


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything under one source's prefix: key (without the prefix) to value, and what lives for how long (-1: for ever)."""

    values: Mapping[str, object]
    ttl: Mapping[str, int]


def structure(snapshot: Snapshot) -> list[Finding]:
    """Return what no state between two scripts may show: work that nobody would come to, or rows that nothing would trim."""
    values = snapshot.values
    ready = _keys(values.get("ready"))
    found = []
    for key in values:
        kind, _, name = key.partition(":")
        if kind in {"lane", "sealed"}:
            if name not in ready:
                found.append(Finding("stuck", key))
            if snapshot.ttl[key] >= 0:
                found.append(Finding("expiring", key))
        if kind == "sealed":
            found += [Finding("unsendable", one) for one in _keys(values[key]) if not _whole(snapshot, one)]
        if kind == "dispatch":
            found += _dispatch(snapshot, name)
    for lane in ready:
        if not {f"lane:{lane}", f"sealed:{lane}", f"lease:{lane}"} & values.keys():
            found.append(Finding("idle-turn", lane))
    for one in _keys(values.get("dead")):
        if "events" not in _row(values.get(f"dispatch:{one}")):
            found.append(Finding("empty-letter", one))
    for name in ("admitted", "authentic", "refused"):
        if set(_keys(values.get(f"rec:{name}"))) != set(_keys(values.get(f"rec:{name}:at"))):
            found.append(Finding("untrimmable", name))
    for key in ("dead", "rec:admitted", "rec:admitted:at", "rec:events"):
        if key in values and snapshot.ttl[key] < 0:
            found.append(Finding("unbounded", key))
    return found


def _dispatch(snapshot: Snapshot, ident: str) -> Iterable[Finding]:
    key = f"dispatch:{ident}"
    row = _row(snapshot.values[key])
    status, lane = row.get("status"), row.get("lane", "")
    queued = ident in _keys(snapshot.values.get(f"sealed:{lane}"))
    listed = ident in _keys(snapshot.values.get("dead"))
    if (status in {"queued", "sending", "asked"}) != queued:
        yield Finding("nowhere" if not queued else "settled-but-queued", ident)
    if (status == "dead") != listed:
        yield Finding("unlisted" if not listed else "listed-but-alive", ident)
    if status in {"sent", "discarded"} and ("events" in row or snapshot.ttl[key] < 0):
        yield Finding("kept", ident)
    if status == "dead" and snapshot.ttl[key] < 0:
        yield Finding("kept", ident)
    if status == "sending" and not {"first_sent", "last_sent", "first_attempt"} <= row.keys():
        yield Finding("unnoted-send", ident)
    if status == "sending" and row.get("attempts") == "0":
        yield Finding("unnoted-send", ident)


def _whole(snapshot: Snapshot, ident: str) -> bool:
    key = f"dispatch:{ident}"
    return "events" in _row(snapshot.values.get(key)) and snapshot.ttl[key] < 0


def _keys(value: object) -> Sequence[str]:
    return [str(one) for one in value] if isinstance(value, Mapping | list | tuple | set) else []


def _row(value: object) -> Mapping[str, str]:
    return value if isinstance(value, Mapping) else {}
