"""`gateway dead`: what was given up, with the reason; send it again or discard it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from rich.progress import track

from gateway import audit
from gateway.cli.options import config_option, json_option
from gateway.settings import Configuration, load_configuration
from gateway.storage import opened
from gateway.store import Dispatch, Store

CHUNK = 100
Act = Callable[[Store, str, list[str]], Awaitable[list[str]]]


@click.group()
def dead() -> None:
    """Dead letters: dispatches that were given up, for 30 days."""


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """IDs, or all of a source, or all."""
    command = click.option("--all", "every", is_flag=True, help="Every dead letter of every source.")(command)
    command = click.option("--source", help="Every dead letter of this source.")(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(command)


@dead.command("list", epilog="Example: gateway dead list --source linear-acme --json")
@config_option
@json_option
@click.option("--source", help="Only this source.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most a source.")
def list_(config: Path, source: str | None, limit: int, *, as_json: bool) -> None:
    """List dead letters, newest first."""
    rows = [row(letter) for letter in asyncio.run(_letters(load_configuration(config), source, limit))]
    if as_json:
        click.echo(json.dumps({"dead": rows}))
        return
    for one in rows:
        click.echo(f"{one['id']}  {one['settled_at'] or '-':24}  {one['reason']:24}  {one['source']} {one['trigger']}")
    click.echo(f"{len(rows)} dead letter(s). Again: gateway dead replay ID. Details: gateway dead show ID", err=True)


@dead.command(epilog="Example: gateway dead show 019a2b4c-7d00-7000-8000-000000000001")
@click.argument("ident", metavar="ID")
@config_option
@json_option
def show(ident: str, config: Path, *, as_json: bool) -> None:
    """Show one dead letter and the resources that it is about."""
    found = asyncio.run(_one(load_configuration(config), ident))
    if found is None or found.status != "dead":
        click.echo(f"{ident} is no dead letter; see: gateway dead list", err=True)
        raise SystemExit(1)
    detail = {**row(found), "subscription": found.digest, "urls": urls(found), "deliveries": list(found.deliveries)}
    if as_json:
        click.echo(json.dumps({"dead": [detail]}))
        return
    for name, value in detail.items():
        click.echo(f"{name:14} {' '.join(value) if isinstance(value, list) else value}")


@dead.command(epilog="Example: gateway dead replay --source linear-acme")
@selection
@config_option
@json_option
def replay(ids: tuple[str, ...], source: str | None, config: Path, *, every: bool, as_json: bool) -> None:
    """Queue dead letters again under their own dispatch ids, since GitHub may have taken them; exit 1 where one was none."""

    async def act(store: Store, name: str, chunk: list[str]) -> list[str]:
        return await store.replay_dead(name, chunk, time.time())

    _change(load_configuration(config), "dead-replay", act, ids, source, every=every, as_json=as_json)


@dead.command(epilog="Example: gateway dead discard 019a2b4c-7d00-7000-8000-000000000001")
@selection
@config_option
@json_option
def discard(ids: tuple[str, ...], source: str | None, config: Path, *, every: bool, as_json: bool) -> None:
    """Give dead letters up for good: their events are deleted; exit 1 where one was none."""

    async def act(store: Store, name: str, chunk: list[str]) -> list[str]:
        return await store.discard_dead(name, chunk)

    _change(load_configuration(config), "dead-discard", act, ids, source, every=every, as_json=as_json)


def _change(
    configuration: Configuration,
    action: str,
    act: Act,
    ids: tuple[str, ...],
    source: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    if [bool(ids), source is not None, every].count(True) != 1:
        raise click.UsageError("give ids, or --source S, or --all")
    done, missing = asyncio.run(_apply(configuration, action, act, ids, source, quiet=as_json))
    if as_json:
        click.echo(json.dumps({"dead": done, "missing": missing}))
    else:
        click.echo(f"{len(done)} done" + (f", {len(missing)} no dead letter: {' '.join(missing)}" if missing else ""))
    raise SystemExit(1 if missing else 0)


async def _apply(
    configuration: Configuration, action: str, act: Act, ids: tuple[str, ...], source: str | None, *, quiet: bool
) -> tuple[list[str], list[str]]:
    """Act on each source's letters in chunks; each chunk is in the audit trail before it is acted on."""
    done: list[str] = []
    async with opened(configuration) as store:
        chosen = await _chosen(store, configuration, ids, source)
        chunks = [(name, some[n : n + CHUNK]) for name, some in chosen.items() for n in range(0, len(some), CHUNK)]
        for name, chunk in track(chunks, action, disable=quiet or len(chunks) < 2, transient=True):
            await audit.record(store, action, source=name, dispatches=chunk)
            done += await act(store, name, chunk)
    return done, [ident for ident in ids if ident not in done]


async def _chosen(
    store: Store, configuration: Configuration, ids: tuple[str, ...], source: str | None
) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {}
    if ids:
        for found in await store.dispatches(list(dict.fromkeys(ids))):
            chosen.setdefault(found.source, []).append(found.id)
        return chosen
    for name in await sources(store, configuration, source):
        while page := await store.dead_letters(name, 1000, len(chosen.get(name, ()))):
            chosen.setdefault(name, []).extend(letter.id for letter in page)
    return chosen


async def _letters(configuration: Configuration, source: str | None, limit: int) -> list[Dispatch]:
    async with opened(configuration) as store:
        found = [
            x for name in await sources(store, configuration, source) for x in await store.dead_letters(name, limit)
        ]
    return sorted(found, key=lambda letter: letter.settled_at or 0, reverse=True)


async def _one(configuration: Configuration, ident: str) -> Dispatch | None:
    async with opened(configuration) as store:
        return await store.dispatch(ident)


async def sources(store: Store, configuration: Configuration, source: str | None) -> list[str]:
    """The named source, or all that are configured or have something stored."""
    return [source] if source is not None else sorted({*configuration.sources, *await store.sources()})


def row(letter: Dispatch) -> dict[str, Any]:
    """What a list shows of a dispatch."""
    return {
        "id": letter.id,
        "source": letter.source,
        "trigger": letter.trigger,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "events": len(letter.events),
        "settled_at": moment(letter.settled_at),
    }


def urls(letter: Dispatch) -> list[str]:
    """The canonical URLs of a dispatch's events."""
    return [json.loads(event)["url"] for event in letter.events]


def moment(at: float | None) -> str | None:
    """Unix seconds as RFC 3339 text in UTC."""
    return None if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
