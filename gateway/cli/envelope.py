"""`gateway envelope`: the published schema of what a workflow receives."""

import json
from typing import BinaryIO

import click

from gateway.envelope import SCHEMA, validate
from gateway.errors import Rejection
from gateway.strict_json import loads


@click.group()
def envelope() -> None:
    """The closed version-2 envelope that a workflow receives."""


@envelope.command(epilog="Example: gateway envelope schema > envelope.schema.json")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of the `repository_dispatch` body."""
    click.echo(json.dumps(SCHEMA, indent=2))


@envelope.command(epilog="Example: gateway envelope check dispatch.json")
@click.argument("file", type=click.File("rb"))
def check(file: BinaryIO) -> None:
    """Validate a `repository_dispatch` body (FILE, or - for standard input); exit 1 where it is not a valid envelope."""
    try:
        validate(loads(file.read()))
    except Rejection as error:
        click.echo(f"not an envelope: {error.reason}", err=True)
        raise SystemExit(1) from None
    except ValueError as error:
        click.echo(f"not an envelope: {error}", err=True)
        raise SystemExit(1) from None
    click.echo("a valid envelope")
