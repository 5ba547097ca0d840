"""Delivery records as the API, the console and the commands give them: metadata, with what is known of their dispatches."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway.delivery import Outcome
from gateway.rollover import ROLLOVER
from gateway.store import Dispatch, Store
from gateway.structs import asdict
from gateway.suspension import SUSPENDED

EXPORT_BATCH = 500


async def delivery_page(store: Store, params: Mapping[str, str]) -> dict[str, Any]:
    """One page of records. Raises ValueError for a bad parameter."""
    page = await store.deliveries(**delivery_query(params))
    named = [ident for row in page.rows for ident in row.get("dispatch_ids", ())]
    known = {d.id: d for d in await store.dispatches(named)}
    return {"deliveries": [delivery_row(row, known) for row in page.rows], "next": page.next}


async def one_delivery(store: Store, ident: str) -> dict[str, Any] | None:
    """One record with all that is known of its dispatches, None where it is unknown or trimmed.

    A dispatch's id finds the first of its deliveries that has a record, and `dispatch` in it names them all.
    """
    row, of = await store.delivery(ident), None
    if row is None:
        of = await store.dispatch(ident)
        found = {} if of is None else await store.queued_records(of.source, of.deliveries)
        row = next(iter(found.values()), None)
    if row is None:
        return None
    known = {one.id: one for one in await store.dispatches(row.get("dispatch_ids", ()))}
    shown = delivery_row(row, known)
    carried = await _carried(store, [one for one in known.values() if one.run is None])
    for dispatch in shown["dispatches"]:
        one = known[dispatch["id"]]
        dispatch |= {"subscription": one.digest, "reason": one.reason, "attempts": one.attempts}
        dispatch |= {"settled_at": one.settled_at, "admitted_at": one.admitted_at}
        dispatch["refused"] = None if one.refused is None else asdict(one.refused)
        dispatch["carried"] = carried.get(one.id)
    stopped = [(one, one["digest"]) for one in shown.get("subscriptions", ()) if one["test"] == SUSPENDED]
    stopped += [(one, known[one["id"]].digest) for one in shown["dispatches"] if _stopped(known[one["id"]])]
    now = await store.suspended() if stopped else {}
    for shows, digest in stopped:
        shows["suspended"] = now.get(digest)
    if of is not None:
        shown["dispatch"] = {"id": of.id, "deliveries": list(of.deliveries)}
    return shown


def _stopped(dispatch: Dispatch) -> bool:
    """Tell whether a suspension is why a dispatch is held, or why its run was refused."""
    reasons = {dispatch.reason, dispatch.refused and dispatch.refused.reason}
    return dispatch.run is None and SUSPENDED in reasons


async def _carried(store: Store, dispatches: Sequence[Dispatch]) -> dict[str, list[str]]:
    """Which dispatches went on under another subscription, as which: a rollover's record has the old one's id."""
    if not dispatches:
        return {}
    found = await store.queued_records(dispatches[0].source, [one.id for one in dispatches])
    return {ident: list(row["dispatch_ids"]) for ident, row in found.items() if row.get("reason") == ROLLOVER}


def delivery_row(row: Mapping[str, Any], known: Mapping[str, Dispatch]) -> dict[str, Any]:
    """A record as lists give it, with what became of its dispatches."""
    shown = {key: value for key, value in row.items() if key != "dispatch_ids"}
    named = [known[ident] for ident in row.get("dispatch_ids", ()) if ident in known]
    shown["dispatches"] = [
        {"id": one.id, "status": one.status, "admitted": one.run is not None, "run": one.run} for one in named
    ]
    return shown


def delivery_query(params: Mapping[str, str]) -> dict[str, Any]:
    """The API's parameters, or ValueError that says which is wrong."""
    unknown = params.keys() - {"source", "outcome", "limit", "next"}
    if unknown:
        raise ValueError(f"unknown parameter {min(unknown)}")
    outcome = params.get("outcome")
    if outcome is not None and outcome not in set(Outcome):
        raise ValueError("outcome must be one of " + ", ".join(Outcome))
    limit = params.get("limit", "100")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 5 and 1 <= int(limit) <= 500):
        raise ValueError("limit must be 1 to 500")
    return {"source": params.get("source"), "outcome": outcome, "limit": int(limit), "before": params.get("next")}


async def export(store: Store, *, source: str | None = None, outcome: str | None = None) -> AsyncIterator[str]:
    """Yield every record there is, newest first, as the API gives it: one line of an export each."""
    batch: list[dict[str, Any]] = []
    async with aclosing(store.newest(source, outcome)) as rows:
        async for _, row in rows:
            if outcome is None or row["outcome"] == outcome:
                batch.append(row)
            if len(batch) == EXPORT_BATCH:
                for line in await _lines(store, batch):
                    yield line
                batch.clear()
    for line in await _lines(store, batch):
        yield line


async def _lines(store: Store, rows: list[dict[str, Any]]) -> list[str]:
    known = {d.id: d for d in await store.dispatches([ident for row in rows for ident in row.get("dispatch_ids", ())])}
    return [json.dumps(delivery_row(row, known), separators=(",", ":")) for row in rows]
