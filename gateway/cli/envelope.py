"""`gateway envelope`: the published schema of what a workflow receives."""

import json
from pathlib import Path
from typing import Any, Final

import click

from gateway import provenance
from gateway.cli.options import content, document
from gateway.envelope import SCHEMA, validate
from gateway.errors import Rejection
from gateway.strict_json import loads
from gateway.subscriptions import load_subscription

EVENT_BYTES: Final = (
    1_048_576  # as the admission action: the event file has the repository and its owner beside the payload
)


@click.group()
def envelope() -> None:
    """The closed version-2 envelope that a workflow receives."""


@envelope.command(epilog="Example: gateway envelope schema > envelope.schema.json")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of the `repository_dispatch` body."""
    click.echo(json.dumps(SCHEMA, indent=2))


@envelope.command(
    epilog="Example: gateway envelope check dispatch.json --subscription subscriptions/enrolled/triage.json"
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--subscription",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A compiled document: the body must be one of it, as the admission action checks.",
)
def check(file: Path, subscription: Path | None) -> None:
    """Validate a `repository_dispatch` body (FILE, or - for standard input); exit 1 where it is not a valid envelope.

    The event file of a workflow run (what `GITHUB_EVENT_PATH` names) is taken as well.
    """
    compiled = None if subscription is None else load_subscription(document(subscription), str(subscription))
    data = content(file, EVENT_BYTES)
    try:
        body = _as_sent(loads(data))
        if compiled is None:
            validate(body)
        else:
            provenance.check(body, compiled)
    except Rejection as error:
        click.echo(f"not an envelope: {error.reason}", err=True)
        raise SystemExit(1) from None
    except ValueError as error:
        click.echo(f"not an envelope: {error}", err=True)
        raise SystemExit(1) from None
    click.echo("a valid envelope" if compiled is None else "a valid envelope of this subscription")


def _as_sent(document: Any) -> Any:
    """Return the body that was dispatched where the document is the event that it became.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository_dispatch
    """
    match document:
        case {"action": action, "client_payload": payload} if "event_type" not in document:
            return {"event_type": action, "client_payload": payload}
    return document
