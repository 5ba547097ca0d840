"""`gateway dead`: what was given up, with the reason; send it again or discard it."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway import letters
from gateway.cli import complete
from gateway.cli.options import Digest, config_option, json_option
from gateway.cli.progress import waiting
from gateway.configuration import Configuration, load_configuration
from gateway.letters import Wanted, about
from gateway.storage import opened
from gateway.store import Dispatch, Store

CHUNK = 100
PAGE = 500  # letters hold their events


@click.group()
def dead() -> None:
    """Dead letters: dispatches that were given up, for 30 days."""


class Moment(click.ParamType[float]):
    """`2026-11-30`, `2026-11-30T10:00:00Z`, or a time ago: `90m`, `12h`, `3d`. Without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        """Return Unix seconds."""
        if ago := re.fullmatch(r"([0-9]{1,6})([mhd])", value):
            return time.time() - int(ago[1]) * {"m": 60, "h": 3600, "d": 86_400}[ago[2]]
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-11-30T10:00:00Z, 2026-11-30, or 90m, 12h, 3d for a time ago")
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which letters: all that are given have to fit."""
    for option in (
        click.option("--until", type=Moment(), help="Given up before this: a time, or 90m, 12h, 3d ago."),
        click.option("--since", type=Moment(), help="Given up at or after this."),
        click.option(
            "--subscription", type=Digest(), metavar="DIGEST", help="Of this subscription; 4 of its hex digits will do."
        ),
        click.option("--reason", help="With this reason, as `gateway dead list` shows it."),
        click.option("--source", shell_complete=complete.sources, help="Of this source."),
    ):
        command = option(command)
    return command


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """IDs, or filters, or all."""
    command = click.option("--all", "every", is_flag=True, help="Every dead letter of every source.")(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(filters(command))


@dead.command("list", epilog="Example: gateway dead list --source linear-acme --json")
@config_option
@json_option
@filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most a source.")
def list_(config: Path, limit: int, *, as_json: bool, **which: Any) -> None:
    """List dead letters, newest first. Cause `operator`: somebody here decided it; everything else is a fault."""
    rows = [row(letter) for letter in asyncio.run(_letters(load_configuration(config), Wanted(**which), limit))]
    if as_json:
        click.echo(json.dumps({"dead": rows}))
        return
    for one in rows:
        click.echo(
            f"{one['id']}  {one['settled_at'] or '-':24}  {one['reason']:24}  {one['cause']:11}  {one['source']} {one['trigger']}"
        )
    told = ". Again: gateway dead replay ID. Details: gateway dead show ID" if rows else ""
    click.echo(f"{len(rows)} dead letter(s){told}", err=True)


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
    detail = {
        **row(found),
        "fix": about(found.reason).fix,
        "subscription": found.digest,
        "urls": urls(found),
        "deliveries": list(found.deliveries),
    }
    if as_json:
        click.echo(json.dumps({"dead": [detail]}))
        return
    for name, value in detail.items():
        click.echo(f"{name:14} {' '.join(value) if isinstance(value, list) else value}")


@dead.command(epilog="Example: gateway dead replay --reason forbidden --since 3d")
@selection
@config_option
@json_option
def replay(ids: tuple[str, ...], config: Path, *, every: bool, as_json: bool, **which: Any) -> None:
    """Queue dead letters again under their own dispatch ids, since GitHub may have taken them.

    One whose subscription is not enrolled stays: it would be a dead letter again at once. Exit 1 where one of the ids was
    none, or stayed.
    """
    _change(load_configuration(config), letters.REPLAY, ids, Wanted(**which), every=every, as_json=as_json)


@dead.command(epilog="Example: gateway dead discard 019a2b4c-7d00-7000-8000-000000000001")
@selection
@config_option
@json_option
def discard(ids: tuple[str, ...], config: Path, *, every: bool, as_json: bool, **which: Any) -> None:
    """Give dead letters up for good: their events are deleted; exit 1 where one was none."""
    _change(load_configuration(config), letters.DISCARD, ids, Wanted(**which), every=every, as_json=as_json)


def _change(
    configuration: Configuration,
    action: letters.Action,
    ids: tuple[str, ...],
    wanted: Wanted,
    *,
    every: bool,
    as_json: bool,
) -> None:
    if [bool(ids), wanted != Wanted(), every].count(True) != 1:
        raise click.UsageError("give ids, or --source, --reason, --subscription, --since, --until, or --all")
    done, kept = asyncio.run(_apply(configuration, action, ids, wanted, quiet=as_json))
    dead = {*done, *kept}
    missing = [ident for ident in ids if ident not in dead]
    if as_json:
        click.echo(json.dumps({"dead": done, "missing": missing, "kept": kept}))
    else:
        word = {letters.REPLAY: "queued again", letters.DISCARD: "discarded"}[action]
        click.echo(f"{len(done)} {word}" + (f", {len(missing)} no dead letter: {' '.join(missing)}" if missing else ""))
        if kept:
            click.echo(
                f"{len(kept)} stayed: their subscriptions are not enrolled; enroll them first, or discard", err=True
            )
    raise SystemExit(1 if missing or (kept and (ids or not done)) else 0)


async def _apply(
    configuration: Configuration, action: letters.Action, ids: tuple[str, ...], wanted: Wanted, *, quiet: bool
) -> tuple[list[str], list[str]]:
    """Act on each source's letters in chunks; each chunk is in the audit trail before it is acted on.

    Returns those that were dead until now, and those that stay for want of their subscription.
    """
    done: list[str] = []
    kept: list[str] = []
    chosen: dict[str, list[str]] = {}
    async with opened(configuration) as store:
        async for letter in _chosen(store, configuration, ids, wanted):
            if action == letters.REPLAY and configuration.index.by_digest(letter.digest) is None:
                kept.append(letter.id)
            else:
                chosen.setdefault(letter.source, []).append(letter.id)
        chunks = [(name, some[n : n + CHUNK]) for name, some in chosen.items() for n in range(0, len(some), CHUNK)]
        with waiting(action, len(chunks), quiet=quiet) as bar:
            for name, chunk in chunks:
                done += await letters.settle(store, action, None, name, chunk)
                bar.step()
    return done, kept


async def _chosen(
    store: Store, configuration: Configuration, ids: tuple[str, ...], wanted: Wanted
) -> AsyncGenerator[Dispatch, None]:
    if ids:
        for found in await store.dispatches(list(dict.fromkeys(ids))):
            if found.status == "dead":
                yield found
        return
    for name in await sources(store, configuration, wanted.source):
        async for letter in _fitting(store, name, wanted):
            yield letter


async def _fitting(store: Store, source: str, wanted: Wanted) -> AsyncGenerator[Dispatch, None]:
    """Read a source's letters a page at a time, newest first: what is read is not kept."""
    offset = 0
    while page := await store.dead_letters(source, PAGE, offset):
        offset += len(page)
        for letter in page:
            if wanted(letter):
                yield letter


async def _letters(configuration: Configuration, wanted: Wanted, limit: int) -> list[Dispatch]:
    found: list[Dispatch] = []
    async with opened(configuration) as store:
        for name in await sources(store, configuration, wanted.source):
            most = len(found) + limit
            async with aclosing(_fitting(store, name, wanted)) as fitting:
                async for letter in fitting:
                    found.append(letter)
                    if len(found) == most:
                        break
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
        "cause": about(letter.reason).cause,
        "attempts": letter.attempts,
        "events": len(letter.events),
        "first_attempt_at": moment(letter.first_attempt),
        "last_attempt_at": moment(letter.last_sent),
        "settled_at": moment(letter.settled_at),
    }


def urls(letter: Dispatch) -> list[str]:
    """The canonical URLs of a dispatch's events."""
    return [json.loads(event)["url"] for event in letter.events]


def moment(at: float | None) -> str | None:
    """Unix seconds as RFC 3339 text in UTC."""
    return None if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
