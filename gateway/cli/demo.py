"""`gateway demo`: the whole product on one machine, against a GitHub double, with signed sample deliveries of each provider."""

import asyncio
import json
from contextlib import AsyncExitStack

import click
from rich.console import Console

from gateway.cli.progress import waiting
from gateway.demo import Line, Stage


@click.command(epilog="Example: gateway demo --once --json")
@click.option("--once", is_flag=True, help="Stop after the sample deliveries instead of serving until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a delivery.")
def demo(*, once: bool, as_json: bool) -> None:
    """Start a receiver, an embedded store and a GitHub double, send signed samples, and show what became of each.

    Exits 0 only if every delivery ended as it should.
    """
    raise SystemExit(asyncio.run(_demo(once=once, as_json=as_json)))


async def _demo(*, once: bool, as_json: bool) -> int:
    # soft: a line is broken by the terminal alone, so that addresses and ids can be copied whole
    console, wrong = Console(soft_wrap=True), 0
    async with AsyncExitStack() as stack:
        with waiting("starting the gateway, its store and the double", quiet=as_json):
            stage = await stack.enter_async_context(Stage())
        if not as_json:
            console.print(
                f"[bold]receiver[/] {stage.public}  [bold]admin[/] {stage.admin}  [bold]GitHub double[/] {stage.github}"
            )
        async for line in stage.lines():
            wrong += not line.good
            if as_json:
                click.echo(json.dumps(line.to_json(), separators=(",", ":")))
            else:
                _show(console, line)
        if not as_json:
            verdict = (
                f"[red]{wrong} ended otherwise than they should[/]"
                if wrong
                else "[green]every delivery ended as it should[/]"
            )
            console.print(f"\n{verdict}")
        if not once:
            # on standard error beside JSON, which stays one object a line
            click.echo(
                f"serving until Ctrl-C; console: {stage.admin}/ (operator token: {stage.operator_token})", err=as_json
            )
            click.echo(f"in another terminal: gateway deliveries --config {stage.folder}/gateway.toml", err=as_json)
            await stage.until_interrupted()
    return 1 if wrong else 0


STEPS = {
    "forwarded": "received > verified > matched > queued > dispatched",
    "duplicate": "received > verified > matched > already queued: nothing is queued twice",
    "ignored": "received > verified > nothing matches",
    "rejected": "received > refused before anything was believed",
}


def _show(console: Console, line: Line) -> None:
    mark = "[green]ok[/]" if line.good else "[red]WRONG[/]"
    why = f" ({line.reason})" if line.reason else ""
    console.print(f"\n{mark} [bold]{line.source}[/] {line.case}: HTTP {line.status}, {line.outcome}{why}")
    console.print(f"   {STEPS.get(line.outcome or '', 'no record')}  [dim]delivery {line.delivery}[/]")
    if line.envelope is not None:
        console.print(f"   dispatch {line.dispatch}")
        console.print_json(json.dumps(line.envelope), indent=2)
