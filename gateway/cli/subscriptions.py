"""`gateway subscriptions`: what is enrolled, and whether it is active."""

import json
from pathlib import Path

import click

from gateway import enrollments
from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask_if_there
from gateway.configuration import load_base
from gateway.errors import printable
from gateway.words import standing


@click.command(epilog="Example: gateway subscriptions --config gateway.toml --json")
@config_option
@json_option
def subscriptions(config: Path, *, as_json: bool) -> None:
    """List enrolled subscriptions: active, suspended or mismatched, and why.

    A mismatched one never activates: its document has changed or is broken, its source or profile does not fit, or it
    is not enrolled.
    """
    base = load_base(config)
    suspended = ask_if_there(base, lambda store: store.suspended(), "suspensions are not known") or {}
    rows = enrollments.rows(base, suspended)
    if as_json:
        click.echo(json.dumps({"subscriptions": [row.to_json() for row in rows]}))
        return
    for row in rows:
        click.echo(lines(row))
    if not rows:
        click.echo("nothing is enrolled; see: gateway enroll --help", err=True)


def lines(row: enrollments.Row) -> str:
    """One subscription's two lines: whose it is and its state, then its file and why."""
    why = [row.reason, standing(row.reason, row.installation)] if row.reason else []
    vouched = ", attested: nobody reads what runs" if row.attested else ""
    first = f"{row.state:10} {row.digest or '(no digest)'}  {row.source or '-'} > {row.repository or '-'}"
    never = f"\n           warning: {printable(row.warning)}" if row.warning else ""
    return f"{first}\n           " + printable(": ".join([row.file + vouched, *filter(None, why)])) + never
