"""`gateway revoke`: end an enrollment."""

import json
from pathlib import Path

import click

from gateway import audit, enrolling
from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask_if_there
from gateway.configuration import load_base


@click.command(epilog="Example: gateway revoke sha256:0f3c... --config gateway.toml")
@click.argument("digest")
@config_option
@json_option
def revoke(digest: str, config: Path, *, as_json: bool) -> None:
    """Remove the enrollment of DIGEST (whole, or a unique beginning) and its document from the subscriptions folder.

    Running processes notice within 5 seconds. Exit 1 where it is not enrolled.
    """
    base = load_base(config)
    try:
        whole = enrolling.find(base, digest)
        touched = enrolling.revoke(base, whole, first=lambda: audit.note_or_keep(base, "revoke", subscription=whole))
    except enrolling.Refused as refused:
        click.echo(f"refused: {refused}", err=True)
        raise SystemExit(1) from None
    ask_if_there(base, lambda store: store.resume(whole), "a suspension of it stays noted until it is enrolled again")
    if as_json:
        files = [{"file": str(file), "removed": not file.exists()} for file in touched]
        click.echo(json.dumps({"enrollments": [{"digest": whole, "files": files}]}))
        return
    for file in touched:
        click.echo(f"{file}: {'changed' if file.exists() else 'removed'}", err=True)
    click.echo(f"revoked {whole}")
