"""`gateway wire`: the provider's webhook, registered, compared and mended; or exact steps for its console."""

import asyncio
import contextlib
import json
import time
from pathlib import Path

import click

from gateway import audit, wire
from gateway.cli import complete
from gateway.cli.dead import moment
from gateway.cli.options import config_option, json_option
from gateway.cli.progress import waiting
from gateway.configuration import Configuration, load_configuration
from gateway.github import open_session
from gateway.health import last_good
from gateway.storage import opened
from gateway.store import uuid7

MARKS = {"good": "ok", "missing": "MISSING", "drifted": "DRIFT", "expiring": "expires soon", "surplus": "SURPLUS"}


@click.command("wire", epilog="Example: gateway wire github-acme --check --json")
@click.argument("source", shell_complete=complete.sources)
@click.option("--check", is_flag=True, help="Only look: exit 1 where a hook is missing or has drifted.")
@config_option
@json_option
def wire_(source: str, config: Path, *, check: bool, as_json: bool) -> None:
    """Register or update SOURCE's webhook at its provider; a second run changes nothing.

    Where the provider has no API for that, print the steps for its console with the values filled in; --check then
    tells whether a genuine delivery has arrived. Exit 3 where the provider refuses or is away.
    """
    configuration = load_configuration(config)
    if source not in configuration.sources:
        raise click.BadParameter(f"one of {', '.join(configuration.sources)}", param_hint="SOURCE")
    try:
        code = asyncio.run(_wire(configuration, source, check=check, as_json=as_json))
    except wire.WireProblem as problem:
        url = f"{configuration.settings.server.public_url or ''}/hooks/{source}"
        by_hand = (
            f"\n    or by hand, in the provider's console, with the URL {url}: docs/providers"
            if "api_token" in str(problem)
            else ""
        )
        click.echo(f"cannot wire {source}: {problem}{by_hand}", err=True)
        raise SystemExit(2) from None
    except wire.WireRefused as refused:
        needs = wire.BY_PROFILE[configuration.sources[source].profile.name].permission
        address = f", or sources.{source}.api_url is another's" if refused.status == 404 else ""
        hint = f"\n    fix: the API needs {needs}{address}" if refused.status in (401, 403, 404) else ""
        click.echo(f"{refused}{hint}", err=True)
        raise SystemExit(3) from None
    raise SystemExit(code)


async def _wire(configuration: Configuration, name: str, *, check: bool, as_json: bool) -> int:
    if configuration.sources[name].profile.name not in wire.BY_PROFILE:
        return await _explain(configuration, name, check=check, as_json=as_json)
    with waiting(f"asking {configuration.sources[name].profile.title}", quiet=as_json):
        rows = await _look_or_apply(configuration, name, check=check)
    _print(rows, as_json=as_json)
    _hints(configuration, name, rows)
    return (
        int(any(row.state in wire.BAD for row in rows)) if check else int(any(row.state == "drifted" for row in rows))
    )


async def _look_or_apply(configuration: Configuration, name: str, *, check: bool) -> list[wire.Row]:
    async with opened(configuration) as store, open_session() as session:
        wiring, now = wire.wiring_for(configuration, name, session), time.time()
        parts = (wiring.provider, wiring.api, wiring.want)
        async with contextlib.nullcontext() if check else wire.alone(store, name, uuid7()):
            rows = await wire.look(*parts, store, wiring.key, now)
            todo = [row for row in rows if wire.to_do(wiring.provider, row)]
            if todo and not check:
                await audit.record(store, "wire", source=name, scopes=[row.scope for row in todo])
                rows = await wire.apply(*parts, rows, store, wiring.key, now)
    return rows


def _print(rows: list[wire.Row], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"hooks": [row.to_json() for row in rows]}))
        return
    for row in rows:
        ends = f", until {moment(row.expires)}" if row.expires else ""
        click.echo(f"{row.done or MARKS[row.state]:12} {row.scope} {row.id or ''}{ends}".rstrip())
        for difference in row.differences:
            click.echo(f"             {difference.name}: {difference.have!r}, should be {difference.want!r}")


def _hints(configuration: Configuration, name: str, rows: list[wire.Row]) -> None:
    """What the operator has to know beyond the rows."""
    if any(row.state == "surplus" and row.done is None for row in rows):
        click.echo("surplus hooks send here too and are left alone: remove them at the provider", err=True)
    settings = configuration.settings.sources[name]
    beyond = wire.BY_PROFILE[configuration.sources[name].profile.name].beyond
    for field in sorted({d.name for row in rows for d in row.differences if d.name in beyond}):
        click.echo(f"{field}: {beyond[field]}", err=True)
    if not isinstance(settings.secrets, tuple):
        for ident in [row.id for row in rows if row.done in ("created", "replaced")]:
            click.echo(f'add to sources.{name}.secrets: "{ident}" = "{settings.references()[0][1]}"', err=True)


async def _explain(configuration: Configuration, name: str, *, check: bool, as_json: bool) -> int:
    """Console steps; `--check` looks for a genuine delivery, which is all that can be known."""
    source = configuration.sources[name]
    if check:
        async with opened(configuration) as store:
            seen = last_good(await store.flow(name, time.time()))
        row = {"scope": name, "state": "unverifiable" if seen else "missing", "last_delivery": moment(seen)}
        if as_json:
            click.echo(json.dumps({"hooks": [row]}))
        else:
            told = f"last genuine delivery {moment(seen)}" if seen else f"no genuine delivery yet: gateway wire {name}"
            click.echo(f"{source.profile.title} has no API that shows its webhooks; {told}")
        return int(seen is None)
    references = [reference for _, reference, _ in configuration.settings.sources[name].references()]
    steps = wire.instructions(wire.want_for(configuration, name), source, references)
    click.echo(json.dumps({"hooks": [], "instructions": steps}) if as_json else steps, nl=as_json)
    return 0
