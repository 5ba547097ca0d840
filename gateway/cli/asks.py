"""`gateway asks` and `gateway answer`: dispatches that wait for an operator."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import click

from gateway.asks import answer as answer_ask
from gateway.cli import complete
from gateway.cli.dead import moment, sources, urls
from gateway.cli.options import config_option, json_option
from gateway.configuration import Configuration, load_configuration
from gateway.storage import opened

TOLD = {
    "unknown": "nobody is asked about {0}; see: gateway asks",
    "already": "{0} was answered before: the first answer stands",
    "expired": "the question about {0} has ended: it is, or will be, a dead letter (gateway dead list)",
}


@click.command(epilog="Example: gateway asks --json")
@config_option
@json_option
@click.option("--source", shell_complete=complete.sources, help="Only this source.")
def asks(config: Path, source: str | None, *, as_json: bool) -> None:
    """List the dispatches that wait for a yes or a no, the one that ends first on top."""
    rows = asyncio.run(_asks(load_configuration(config), source))
    if as_json:
        click.echo(json.dumps({"asks": rows}))
        return
    for row in rows:
        click.echo(f"{row['id']}  ends {row['expires_at']}  {row['source']} {row['trigger']} -> {row['repository']}")
        for url in row["urls"]:
            click.echo(f"    {url}")
    click.echo(f"{len(rows)} waiting" + (". Answer: gateway answer ID yes|no" if rows else ""), err=True)


@click.command("answer", epilog="Example: gateway answer 019a2b4c-7d00-7000-8000-000000000001 yes")
@click.argument("ident", metavar="DISPATCH")
@click.argument("answer", type=click.Choice(["yes", "no"]))
@click.option("--as", "who", help="Who answers; by default $GATEWAY_OPERATOR or the user of this command.")
@config_option
@json_option
def answer_(ident: str, answer: str, who: str | None, config: Path, *, as_json: bool) -> None:
    """Release a dispatch with yes, or make it a dead letter with no. The first answer stands.

    Exit 1 where nobody is asked about it, it was answered before, or the question has ended.
    """
    status = asyncio.run(_answer(load_configuration(config), ident, answer, who))
    if as_json:
        click.echo(json.dumps({"asks": [{"id": ident, "answer": answer, "status": status}]}))
    elif status == "answered":
        click.echo(f"{ident}: {answer}")
    if status != "answered":
        click.echo(TOLD[status].format(ident), err=True)
        raise SystemExit(1)


async def _asks(configuration: Configuration, source: str | None) -> list[dict[str, Any]]:
    async with opened(configuration) as store:
        ends = {
            k: v for name in await sources(store, configuration, source) for k, v in (await store.asked(name)).items()
        }
        found = await store.dispatches(sorted(ends, key=lambda ident: ends[ident]))
    rows = []
    for dispatch in found:
        enrolled = configuration.index.by_digest(dispatch.digest)
        rows.append(
            {
                "id": dispatch.id,
                "source": dispatch.source,
                "subscription": dispatch.digest,
                "trigger": dispatch.trigger,
                "repository": None if enrolled is None else enrolled.subscription.repository,
                "urls": urls(dispatch),
                "expires_at": moment(ends[dispatch.id]),
            }
        )
    return rows


async def _answer(configuration: Configuration, ident: str, answer: str, who: str | None) -> str:
    async with opened(configuration) as store:
        return await answer_ask(store, who, ident, answer, time.time())
