"""`gateway deliveries`: what arrived and what became of it, from the store's records."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.cli import complete
from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask
from gateway.configuration import load_base
from gateway.deliveries import delivery_row, export
from gateway.delivery import Outcome
from gateway.store import Store


@click.command(epilog="Example: gateway deliveries --source linear-acme --outcome rejected --limit 20")
@click.option("--source", shell_complete=complete.sources, help="Of this source alone.")
@click.option("--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="With this outcome alone.")
@click.option("--limit", type=click.IntRange(1, 500), help="Records of one page; 50 unless given.")
@click.option("--next", "cursor", help="Go on where the page before ended.")
@click.option("--export", "whole", is_flag=True, help="Write every record there is as JSON lines: `--export > FILE`.")
@config_option
@json_option
def deliveries(
    source: str | None,
    outcome: str | None,
    limit: int | None,
    cursor: str | None,
    config: Path,
    *,
    whole: bool,
    as_json: bool,
) -> None:
    """List delivery records, newest first. They hold no value of a delivery."""
    if whole and (limit is not None or cursor is not None or as_json):
        raise click.UsageError("--export writes every record as JSON: leave out --limit, --next and --json")
    base = load_base(config)
    if source is not None and source not in base.sources:
        raise click.BadParameter(f"{source} is none of {', '.join(base.sources)}", param_hint="--source")

    async def page(store: Store) -> dict[str, Any]:
        found = await store.deliveries(source, outcome, limit or 50, cursor)
        named = [ident for row in found.rows for ident in row.get("dispatch_ids", ())]
        known = {one.id: one for one in await store.dispatches(named)}
        return {"deliveries": [delivery_row(row, known) for row in found.rows], "next": found.next}

    async def every(store: Store) -> None:
        async for line in export(store, source=source, outcome=outcome):
            click.echo(line)

    if whole:
        ask(base, every)
        return
    try:
        answer = ask(base, page)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--next") from None
    if as_json:
        click.echo(json.dumps(answer))
        return
    for row in answer["deliveries"]:
        at = datetime.fromtimestamp(row["received_at"], UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        sent = "; ".join(f"{one['id']} {_state(one)}" for one in row["dispatches"])
        reason = f" ({row['reason']})" if row["reason"] else ""
        click.echo(f"{at}  {row['id']}  {row['source']}  {row['outcome']}{reason}" + (f"  > {sent}" if sent else ""))
    if answer["next"]:
        click.echo(f"more: --next {answer['next']}", err=True)


def _state(dispatch: Mapping[str, Any]) -> str:
    """How far a dispatch came: the run that it was admitted to is its end."""
    return f"{dispatch['status']}, admitted (run {dispatch['run']})" if dispatch["admitted"] else dispatch["status"]
