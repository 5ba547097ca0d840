"""`gateway audit`: what operators did, and who."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from gateway import audit as trail
from gateway.cli.dead import moment
from gateway.cli.options import config_option, json_option
from gateway.configuration import Configuration, load_configuration
from gateway.storage import opened


@click.command(epilog="Example: gateway audit --limit 20 --json")
@config_option
@json_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most entries.")
@click.option("--before", help="Only entries older than the one with this id.")
def audit(config: Path, limit: int, before: str | None, *, as_json: bool) -> None:
    """List operators' actions, newest first."""
    try:
        entries = asyncio.run(_entries(load_configuration(config), limit, before))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--before") from None
    if as_json:
        click.echo(json.dumps({"actions": entries}))
        return
    for entry in entries:
        rest = {k: v for k, v in entry.items() if k not in {"id", "at", "who", "action"}}
        click.echo(f"{moment(entry['at'])}  {entry['who']}  {entry['action']}  {json.dumps(rest)}")


async def _entries(configuration: Configuration, limit: int, before: str | None) -> list[dict[str, Any]]:
    async with opened(configuration) as store:
        await trail.take_kept(store, configuration)
        return await store.audit(limit, before)
