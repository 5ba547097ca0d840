"""`gateway doctor`: a deployment looked at from the outside in, with what to mend."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import click

from gateway.cli.options import config_option, json_option
from gateway.cli.progress import waiting
from gateway.doctor import examine
from gateway.doctor.finding import Finding

MARKS = {
    "ok": click.style("ok  ", fg="green"),
    "warn": click.style("warn", fg="yellow"),
    "fail": click.style("FAIL", fg="red"),
}


@click.command(epilog="Example: gateway doctor --config /etc/gateway/gateway.toml")
@config_option
@json_option
def doctor(config: Path, *, as_json: bool) -> None:
    """Check public address, clock, store, GitHub App, keys, secrets and admitted runs of a deployment; print what to mend.

    Run it where the gateway runs, under its user. Changes nothing. Exit 1 where something fails, 2 where the
    configuration is wrong, which hides no other part.
    """
    found = asyncio.run(_examine(config, quiet=as_json))
    failed = [one for one in found if one.state == "fail"]
    if as_json:
        click.echo(json.dumps({"checks": [one.to_json() for one in found]}))
    else:
        warned = sum(one.state == "warn" for one in found)
        click.echo(f"{len(found)} check(s), {len(failed)} failed, {warned} to look at")
    raise SystemExit(2 if any(one.check == "configuration" for one in failed) else int(bool(failed)))


async def _examine(config: Path, *, quiet: bool) -> list[Finding]:
    found = []
    with waiting("looking", quiet=quiet) as bar:
        async with aclosing(examine(config)) as findings:
            async for one in findings:
                found.append(one)
                if not quiet:
                    bar.say(
                        f"{MARKS[one.state]} {one.check}: {one.detail}" + (f"\n     fix: {one.fix}" if one.fix else "")
                    )
    return found
