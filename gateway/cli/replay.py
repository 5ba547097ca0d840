"""`gateway replay`: a recorded delivery's projected events once more, under new dispatch ids."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import click

from gateway import audit
from gateway.cli.explain import listed
from gateway.cli.options import config_option, json_option
from gateway.configuration import Configuration, load_configuration
from gateway.storage import opened
from gateway.store import Admit, AdmitItem, uuid7


@click.command(epilog="Example: gateway replay 019a2b4c-7d00-7000-8000-000000000001")
@click.argument("ident", metavar="DELIVERY")
@config_option
@json_option
def replay(ident: str, config: Path, *, as_json: bool) -> None:
    """Queue the events that DELIVERY forwarded again, as a new delivery with new dispatches.

    What is kept is the projected event, so a delivery that was ignored or refused cannot be replayed: have its provider
    send it again. Exit 1 where DELIVERY is unknown, forwarded nothing, or is no longer enrolled.
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
        wanted = tuple(e for e in entries if configuration.index.by_digest(e.lane.rpartition(":")[0]) is not None)
        if not wanted:
            why = (
                "its subscription is no longer enrolled"
                if entries
                else f"it was {known['outcome']}: nothing was queued"
            )
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
