"""What can still be read of a malformed configuration, so that one run shows every problem and not only the first kind.

A pure function of the document and of where its model found faults: what is faulty is left out, what is required and
missing gets a stand-in. The result is only looked at for further problems; nothing ever runs on it.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

Place = tuple[str, ...]
WHOLE = ("notifications", "tracing", "enrollments", "api_oauth")  # parts that say nothing without each of their keys

STAND_INS: Mapping[Place, Any] = {
    ("github",): {"app_id": 1, "private_key": "env:NONE"},
    ("github", "app_id"): 1,
    ("github", "private_key"): "env:NONE",
    ("store",): {"embedded": "."},
    ("sources",): {},
    ("sources", "*"): {"profile": ""},
    ("sources", "*", "profile"): "",
}


def place_of(location: Iterable[int | str]) -> Place:
    """The keys on the way to a fault, as far as they name a table's member: no position of a list, no branch of a union."""
    place: list[str] = []
    for part in location:
        if not isinstance(part, str) or "[" in part:
            break
        place.append(part)
    return tuple(place)


def readable(document: Mapping[str, Any], faults: Iterable[Place]) -> dict[str, Any]:
    """A copy without what is faulty, deepest faults first."""
    left = copy.deepcopy(dict(document))
    for place in sorted({_part(place) for place in faults}, key=len, reverse=True):
        _mend(left, place)
    return left


def _part(place: Place) -> Place:
    ends = [end for end, key in enumerate(place, 1) if key in WHOLE]
    return place[: ends[0]] if ends else place


def _mend(document: dict[str, Any], place: Place) -> None:
    if not place:
        return
    known = STAND_INS.get(("sources", "*", *place[2:]) if place[0] == "sources" and len(place) > 1 else place)
    parent = _parent(document, place)
    if parent is None:  # a table on the way is no table, and a fault of its own
        return
    if known is not None:
        parent[place[-1]] = copy.deepcopy(known)
    elif place[-1] in parent:
        del parent[place[-1]]
    else:  # required and missing, without a stand-in: its table says nothing without it
        _mend(document, place[:-1])


def _parent(document: dict[str, Any], place: Place) -> dict[str, Any] | None:
    table: Any = document
    for key in place[:-1]:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def concerns(key: str, told: Iterable[str]) -> bool:
    """Whether a problem's key is about the same place as one that was told already."""
    return any(key == one or key.startswith(f"{one}.") or one.startswith(f"{key}.") for one in told)
