"""The auditor can fail: a good history passes, and each way to break it is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.auditor import Dispatched, History, Posted, Snapshot, audit, structure

GOOD = History(
    posted=[
        Posted("a1", "A", 0.0, 1.0),
        Posted("a2", "A", 2.0, 3.0),
        Posted("a3", "A", 2.5, 3.5),
        Posted("a4", "A", 4.0, 5.0),
        Posted("b1", "B", 0.0, 6.0),
        Posted("b2", "B", 7.0, 8.0),
        Posted("b3", "B", 9.0, 10.0),
        Posted("c1", "C", 0.0, None),
        Posted("c2", "C", 0.0, None),
    ],
    answers={"a1": ["d1", "d1"], "a2": ["d2"]},
    taken=[
        Dispatched("1", ("a1", "a3")),
        Dispatched("1", ("a1", "a3")),
        Dispatched("2", ("a2",)),
        Dispatched("3", ("b2",)),
    ],
    dead=[Dispatched("4", ("b1",))],
    sealed=[Dispatched("5", ("a4",))],
    waiting=["b3", "c1"],
)
BREAKS: dict[str, tuple[str, Callable[[History], History]]] = {
    "an accepted event is nowhere": ("lost", lambda h: replace(h, waiting=["c1"])),
    "a whole batch is nowhere": ("lost", lambda h: replace(h, sealed=[])),
    "a dead letter is gone": ("lost", lambda h: replace(h, dead=[])),
    "an event under two dispatch ids": ("twice", lambda h: replace(h, taken=[*h.taken, Dispatched("6", ("a2",))])),
    "an event taken and still sealed": ("twice", lambda h: replace(h, sealed=[*h.sealed, Dispatched("6", ("a2",))])),
    "an event taken and still waiting": ("twice", lambda h: replace(h, waiting=[*h.waiting, "a2"])),
    "an event waiting twice": ("twice", lambda h: replace(h, waiting=[*h.waiting, "b3"])),
    "an event twice in a batch": ("twice", lambda h: replace(h, taken=[*h.taken, Dispatched("6", ("c2", "c2"))])),
    "a batch with other members": ("changed", lambda h: replace(h, taken=[*h.taken, Dispatched("2", ("a2", "c2"))])),
    "a batch in another order": ("changed", lambda h: replace(h, taken=[*h.taken, Dispatched("1", ("a3", "a1"))])),
    "a duplicate answered as new": ("answered-twice", lambda h: replace(h, answers={"a1": ["d1", "d9"]})),
    "a later event before an earlier": (
        "disordered",
        lambda h: replace(h, taken=[h.taken[2], *h.taken[:2], *h.taken[3:]]),
    ),
    "a later event sent while an earlier waits": (
        "disordered",
        lambda h: replace(h, taken=h.taken[2:], sealed=[*h.sealed, h.taken[0]]),
    ),
    "an event that nobody posted": ("invented", lambda h: replace(h, waiting=[*h.waiting, "zz"])),
}


def test_a_good_history_passes() -> None:
    assert audit(GOOD) == []


@pytest.mark.parametrize("name", BREAKS)
def test_each_break_is_found(name: str) -> None:
    kind, change = BREAKS[name]
    assert kind in {finding.kind for finding in audit(change(GOOD))}


QUEUED = {"lane": "L", "status": "queued", "attempts": "0", "events": "e"}
SENDING = QUEUED | {"status": "sending", "attempts": "1", "first_sent": "1", "last_sent": "1", "first_attempt": "1"}
GOOD_STORE = Snapshot(
    values={
        "lane:L": ["1\nd\ne2"],
        "sealed:L": ["1", "2"],
        "ready": {"L": 1.0},
        "dispatch:1": SENDING,
        "dispatch:2": QUEUED,
        "dispatch:3": {"lane": "L", "status": "dead", "events": "e"},
        "dispatch:4": {"lane": "L", "status": "sent"},
        "dead": {"3": 1.0},
        "rec:admitted": {"d": "x"},
        "rec:admitted:at": {"d": 1.0},
        "rec:events": {"d": "x"},
    },
    ttl={
        **dict.fromkeys(("lane:L", "sealed:L", "ready", "dispatch:1", "dispatch:2"), -1),
        **dict.fromkeys(("dispatch:3", "dispatch:4", "dead", "rec:admitted", "rec:admitted:at", "rec:events"), 100),
    },
)


def without(snapshot: Snapshot, key: str) -> Snapshot:
    return Snapshot({k: v for k, v in snapshot.values.items() if k != key}, snapshot.ttl)


def having(snapshot: Snapshot, ttl: int | None = None, **values: object) -> Snapshot:
    named = {key.replace("__", ":"): value for key, value in values.items()}
    lives = snapshot.ttl if ttl is None else {**snapshot.ttl, **dict.fromkeys(named, ttl)}
    return Snapshot({**snapshot.values, **named}, lives)


STRUCTURE_BREAKS: dict[str, tuple[str, Snapshot]] = {
    "no turn": ("stuck", without(GOOD_STORE, "ready")),
    "an idle turn": ("idle-turn", having(GOOD_STORE, ready={"L": 1.0, "M": 1.0})),
    "a sealed id without its batch": ("unsendable", without(GOOD_STORE, "dispatch:2")),
    "a queued batch that expires": ("unsendable", having(GOOD_STORE, 10, dispatch__2=QUEUED)),
    "a lane that expires": ("expiring", having(GOOD_STORE, 10, lane__L=["x"])),
    "a batch in no lane": ("nowhere", having(GOOD_STORE, sealed__L=["1"])),
    "a sent batch that is queued": ("settled-but-queued", having(GOOD_STORE, sealed__L=["1", "2", "4"])),
    "a dead letter that is not listed": ("unlisted", having(GOOD_STORE, dead={})),
    "a listed one that is alive": ("listed-but-alive", having(GOOD_STORE, dead={"3": 1.0, "2": 1.0})),
    "a listed one without events": ("empty-letter", having(GOOD_STORE, dispatch__3={"lane": "L", "status": "dead"})),
    "a sent one that is kept": ("kept", having(GOOD_STORE, -1, dispatch__4={"lane": "L", "status": "sent"})),
    "a sent one with its events": (
        "kept",
        having(GOOD_STORE, dispatch__4={"lane": "L", "status": "sent", "events": "e"}),
    ),
    "a send without its time": ("unnoted-send", having(GOOD_STORE, dispatch__1=QUEUED | {"status": "sending"})),
    "a record without index": ("untrimmable", having(GOOD_STORE, rec__admitted={"d": "x", "e": "x"})),
    "records for ever": ("unbounded", having(GOOD_STORE, -1, rec__events={"d": "x"})),
}


def test_a_good_store_passes() -> None:
    assert structure(GOOD_STORE) == []


@pytest.mark.parametrize("name", STRUCTURE_BREAKS)
def test_each_structural_break_is_found(name: str) -> None:
    kind, snapshot = STRUCTURE_BREAKS[name]
    assert kind in {finding.kind for finding in structure(snapshot)}
