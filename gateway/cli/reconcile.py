"""`gateway reconcile`: compare opt-in and workflow at the default branch with what is enrolled."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import click

from gateway import audit, enrolling, log
from gateway.cli.options import Digest, config_option, json_option
from gateway.cli.progress import waiting
from gateway.configuration import Configuration, load_configuration
from gateway.reconcile import Reconciler, Row
from gateway.storage import open_store
from gateway.words import settled


@click.command(epilog="Example: gateway reconcile --config /etc/gateway/gateway.toml --json")
@click.argument("digests", nargs=-1, type=Digest(), metavar="[DIGEST]...")
@config_option
@json_option
def reconcile(digests: tuple[str, ...], config: Path, *, as_json: bool) -> None:
    """Read each enrolled repository's opt-in and workflow at its default branch; suspend what does not agree.

    Without DIGEST all enrolled subscriptions; of a DIGEST 4 and more hex digits that only it begins with will do. A digest whose workflow is merged now takes over from the one before it.
    Exit 1 where one of them is suspended afterwards, also one that was before and agrees again: enrolling it resumes it.
    Exit 3 where none is and a default branch could not be read, or the store is away. Else 0, also where one is mismatched:
    it waits for its workflow, or gave way to another.
    """
    configuration = load_configuration(config)
    known = {one.subscription.digest for one in configuration.enrolled}
    try:
        digests = tuple(enrolling.find(known, digest) for digest in digests)
    except enrolling.Refused as refused:
        raise click.BadParameter(str(refused), param_hint="DIGEST") from None
    with waiting("reading default branches", quiet=as_json):
        log.configure(logging.WARNING)  # here, so that a line is written above what shows the progress
        rows = asyncio.run(_run(configuration, digests))
    if as_json:
        click.echo(json.dumps({"subscriptions": [row.to_json() for row in rows]}))
    else:
        for row in rows:
            click.echo(_line(row))
    raise SystemExit(exit_code(rows))


async def _run(configuration: Configuration, digests: tuple[str, ...]) -> list[Row]:
    from gateway.server import destinations  # noqa: PLC0415 (the other commands start faster without it)

    async with AsyncExitStack() as stack:
        store, _ = await open_store(stack, configuration)
        await store.ping()
        await audit.record(store, "reconcile", subscriptions=list(digests) or None)
        found = await stack.enter_async_context(destinations(configuration, store))
        return await Reconciler(store, found, lambda: configuration.enrolled).run(digests or None)


def exit_code(rows: list[Row]) -> int:
    """1 where one is suspended, 3 where a default branch could not be read and nobody vouches for it, 0 otherwise."""
    if any(row.state == "suspended" for row in rows):
        return 1
    unread = [row for row in rows if row.agrees is None and row.reason != "attested"]
    return 3 if unread else 0


def _line(row: Row) -> str:
    why = f" ({row.reason})" if row.reason else ""
    why += f": {settled(row.reason, row.installation)}" if row.state == "suspended" else ""
    unread = ", not read: GitHub did not answer, or the App may not read contents" if row.agrees is None else ""
    return f"{row.digest[:19]}  {row.repository}  {row.source}: {row.state}{why}{'' if row.reason == 'attested' else unread}"
