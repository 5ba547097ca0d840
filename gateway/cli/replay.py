"""`gateway replay`: a recorded delivery's projected events once more, under new dispatch ids."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway import audit
from gateway.cli.explain import listed
from gateway.cli.options import config_option, json_option
from gateway.configuration import Configuration, load_configuration
from gateway.rollover import grants, successor
from gateway.storage import opened
from gateway.store import Admit, AdmitItem, QueueEntry, uuid7
from gateway.structs import replace as changed
from gateway.suspension import SUPERSEDED


@click.command(epilog="Example: gateway replay 019a2b4c-7d00-7000-8000-000000000001")
@click.argument("ident", metavar="DELIVERY")
@config_option
@json_option
def replay(ident: str, config: Path, *, as_json: bool) -> None:
    """Queue the events that DELIVERY forwarded again, as a new delivery with new dispatches.

    What is kept is the projected event, so a delivery that was ignored or refused cannot be replayed: have its provider
    send it again. What a rollover superseded goes to the subscription that took over. Exit 1 where DELIVERY is unknown,
    forwarded nothing, or no active subscription is left for it.
    """
    answer = asyncio.run(_replay(load_configuration(config), ident))
    if "problem" in answer:
        click.echo(answer["problem"], err=True)
        raise SystemExit(1)
    if as_json:
        click.echo(json.dumps({"deliveries": [answer]}))
    else:
        click.echo(f"queued {answer['events']} event(s) as delivery {answer['id']}")


async def _replay(configuration: Configuration, ident: str) -> dict[str, Any]:
    async with opened(configuration) as store:
        known = await store.delivery(ident)
        if known is None:
            dispatch = await store.dispatch(ident)
            if dispatch is not None:
                return {
                    "problem": f"{ident} is a dispatch: replay one of its deliveries, {listed(dispatch.deliveries)}"
                }
            return {"problem": f"{ident} is unknown: never recorded, or older than the records are kept"}
        source = known["source"]
        entries = await store.projected(source, ident)
        if not entries:
            return {"problem": f"{ident} cannot be replayed: it was {known['outcome']}: nothing was queued"}
        suspended = await store.suspended()
        lanes = {entry: _lane(entry, configuration, suspended) for entry in entries}
        wanted = tuple(changed(entry, lane=lane) for entry, (lane, _) in lanes.items() if lane is not None)
        why = next((why for lane, why in lanes.values() if lane is None), "")
        if not wanted:
            return {"problem": f"{ident} cannot be replayed: {why}"}
        new, now = uuid7(), time.time()
        await audit.record(store, "replay", source=source, delivery=ident, replayed_as=new)
        text = {
            "id": new,
            "source": source,
            "received_at": round(now, 3),
            "outcome": "forwarded",
            "reason": "replay",
            "first": ident,
            "subscriptions": [
                {"digest": digest, "trigger": trigger, "matched": True, "test": None, "pointer": None}
                for digest, _, trigger in (entry.lane.rpartition(":") for entry in wanted)
            ],
        }
        item = AdmitItem((f"replay:{new}",), 3600, None, wanted)  # a call whose answer is lost is repeated
        await store.admit(Admit(source, new, (item,), json.dumps(text, separators=(",", ":")), now))
        return {"id": new, "replayed": ident, "source": source, "events": len(wanted)}


def _lane(entry: QueueEntry, configuration: Configuration, suspended: Mapping[str, str]) -> tuple[str | None, str]:
    """Return where an event is queued now; None, and why, where it would never be sent."""
    digest, _, trigger = entry.lane.rpartition(":")
    enrolled, reason = configuration.index.by_digest(digest), suspended.get(digest)
    if enrolled is None:
        return None, "its subscription is no longer enrolled"
    if reason is None:
        return entry.lane, ""
    new = successor(enrolled, configuration.enrolled, suspended) if reason == SUPERSEDED else None
    if new is None:
        return None, f"its subscription is suspended ({reason}); see: gateway subscriptions"
    if not grants(new, trigger, [entry.event]):
        return None, f"{new.subscription.digest}, which took over, does not grant it"
    return f"{new.subscription.digest}:{trigger}", ""
