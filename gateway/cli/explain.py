"""`gateway explain`: why a delivery would be, or was, refused, ignored or forwarded; never with a value of it."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway import strict_json
from gateway.cli import complete
from gateway.cli.dead import moment
from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask
from gateway.deliveries import one_delivery
from gateway.delivery import RawDelivery
from gateway.errors import Rejection, printable
from gateway.explain import Explanation
from gateway.explain import explain as explain_delivery
from gateway.settings import enrollments, load_base
from gateway.subscriptions import build_index

NEXT = {
    "asked": "gateway asks; gateway answer {0} yes|no",
    "dead": "gateway dead show {0}; gateway dead replay {0}",
}


@click.command(epilog="Example: gateway explain --source linear-acme --file delivery.json --headers headers.json")
@click.argument("delivery", required=False)
@click.option("--source", shell_complete=complete.sources, help="The source that the saved delivery came to.")
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The saved body, as it came."
)
@click.option(
    "--headers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Its headers: a JSON object, or a list of [name, value] pairs. Without them what only a header says is supplied.",
)
@config_option
@json_option
def explain(
    delivery: str | None, source: str | None, file: Path | None, headers: Path | None, config: Path, *, as_json: bool
) -> None:
    """Explain the DELIVERY with this id from its record, or a saved one with --source and --file.

    For a saved one nothing is asked of anybody: proof and age are taken as good, and every enrolled trigger of the
    source is shown as matched, or with the first test that was not true and where it looked. Exit 1 where no record has
    the id.
    """
    if delivery is not None and source is None and file is None:
        _recorded(config, delivery, as_json=as_json)
    elif delivery is None and source is not None and file is not None:
        _saved(config, source, file, headers, as_json=as_json)
    else:
        raise click.UsageError("give a delivery's id, or --source and --file")


def _saved(config: Path, source: str, file: Path, headers: Path | None, *, as_json: bool) -> None:
    base = load_base(config)
    if source not in base.sources:
        raise click.BadParameter(f"{source} is none of {', '.join(base.sources)}", param_hint="--source")
    enrolled, problems = enrollments(base)
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)
    raw = RawDelivery("explain", source, time.time(), read_headers(headers), b"", file.read_bytes())
    found = explain_delivery(raw, base.sources[source], build_index(enrolled, base.sources))
    if as_json:
        click.echo(json.dumps({"outcome": found.outcome, "reason": found.reason, "explanations": found.to_json()}))
        return
    _show(found)


def read_headers(file: Path | None) -> tuple[tuple[bytes, bytes], ...]:
    """Read headers as an object or as pairs. Raises BadParameter."""
    if file is None:
        return ()
    try:
        document = strict_json.loads(file.read_bytes())
    except Rejection:
        raise click.BadParameter("is no JSON", param_hint="--headers") from None
    pairs = list(document.items()) if isinstance(document, dict) else document
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(one, str) and one.isprintable() for one in pair)
        for pair in pairs
    ):
        raise click.BadParameter("is no object of texts and no list of pairs", param_hint="--headers")
    try:
        return tuple((name.lower().encode(), value.encode()) for name, value in pairs)
    except UnicodeEncodeError:
        raise click.BadParameter("has a lone surrogate, which no header can hold", param_hint="--headers") from None


def _show(found: Explanation) -> None:
    click.echo(f"{found.outcome}" + (f": {found.reason}" if found.reason else ""))
    if found.supplied:
        click.echo(f"supplied, since it was not saved: {', '.join(found.supplied)}")
    items = {item for item, _ in found.considered}
    for item, one in found.considered:
        prefix = f"item {item}  " if len(items) > 1 else ""
        click.echo(
            prefix + line(one.digest, one.trigger, {"matched": one.matched, "test": one.test, "pointer": one.pointer})
        )
    for digest, reason in (found.inactive or {}).items():
        click.echo(f"{digest[:19]}  not active: {reason}")
    if not found.considered and not found.inactive:
        click.echo("no subscription of this source was looked at")


def line(digest: str, trigger: str, row: Mapping[str, Any]) -> str:
    """One trigger's line."""
    if row["matched"]:
        return f"{digest[:19]}  {trigger}: matched"
    where = f" at {row['pointer']}" if row["pointer"] else ""
    return printable(f"{digest[:19]}  {trigger}: not true: {row['test']}{where}")


def _recorded(config: Path, delivery: str, *, as_json: bool) -> None:
    from gateway.console import words  # noqa: PLC0415 (the other commands start faster without the console)

    record = ask(load_base(config), lambda store: one_delivery(store, delivery))
    if record is None:
        click.echo(f"no record has the id {delivery}; see: gateway deliveries", err=True)
        raise SystemExit(1)
    rows = record["subscriptions"]
    if as_json:
        body = {"outcome": record["outcome"], "reason": record["reason"], "explanations": rows}
        click.echo(json.dumps(body | {"source": record["source"], "dispatches": record["dispatches"]}))
        return
    reason = f": {record['reason']}" if record["reason"] else ""
    click.echo(f"{record['source']} {record['outcome']}{reason}")
    if (told := words.REASONS.get(record["reason"] or "")) is not None:
        click.echo(f"    {told.why} {told.fix}".rstrip())
    if record.get("first"):
        click.echo(f"first delivery {record['first']}")
    for row in rows:
        click.echo(line(row["digest"], row["trigger"], row))
    for item in record.get("items", ()):
        click.echo(f"item {item['index']}  rejected: {item['reason']}")
    for one in record["dispatches"]:
        reason = f" ({one['reason']})" if one["reason"] else ""
        admitted = f"run admitted {moment(one['admitted_at'])}" if one["admitted"] else "no run admitted"
        tries = f"{one['attempts']} attempt{'s' if one['attempts'] != 1 else ''}"
        click.echo(f"dispatch {one['id']}  {one['status']}{reason}, {tries}, {admitted}")
        if one["reason"] in words.SETTLED:
            click.echo(f"    {words.SETTLED[one['reason']]}")
        if one["status"] in NEXT:
            click.echo(f"    next: {NEXT[one['status']].format(one['id'])}")
