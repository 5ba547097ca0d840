"""`gateway revoke`: end an enrollment.

It ends in the store first, then in the folder: a process that has not read the folder since knows it from the store. Whatever
instant the command is ended at, it is active as before, or nowhere.
"""

import json
import time
from pathlib import Path

import click

from gateway import audit, enrolling
from gateway.cli.options import Digest, config_option, json_option
from gateway.configuration import load_base
from gateway.enrollments import entries
from gateway.reconcile import forget
from gateway.storage import never_started
from gateway.store import Store
from gateway.suspension import FRESH_S, KEPT_S

UNTOLD = "the store did not answer: processes that run go on with it until they have read the folder, up to 5 seconds"


@click.command(epilog="Example: gateway revoke sha256:0f3c5b81 --config gateway.toml")
@click.argument("digest", type=Digest())
@config_option
@json_option
def revoke(digest: str, config: Path, *, as_json: bool) -> None:
    """Remove the enrollment of DIGEST (whole, or 4 and more hex digits that only it begins with) and its document from the subscriptions folder.

    When it returns, no process matches it or admits a run of it; what is queued for it becomes dead letters. Exit 1 where
    it is not enrolled.
    """
    base = load_base(config)
    told, known_by = False, 0.0

    async def end(store: Store) -> None:
        nonlocal known_by
        known_by = time.monotonic() + (FRESH_S if await forget(store, whole) else 0.0)
        enrolled = {entry.enrollment.subscription for entry in entries(base)}
        await store.forget_revoked(time.time() - KEPT_S, keep=enrolled)

    def first() -> None:
        nonlocal told
        told = audit.note_or_keep(base, "revoke", then=end, subscription=whole)

    try:
        whole = enrolling.find((entry.enrollment.subscription for entry in entries(base)), digest)
        touched = enrolling.revoke(base, whole, first=first)
    except enrolling.Refused as refused:
        click.echo(f"refused: {refused}", err=True)
        raise SystemExit(1) from None
    if not told and not never_started(base):
        click.echo(UNTOLD, err=True)
    time.sleep(max(0.0, known_by - time.monotonic()))  # what receivers read a moment ago serves them so long
    if as_json:
        files = [{"file": str(file), "removed": not file.exists()} for file in touched]
        click.echo(json.dumps({"enrollments": [{"digest": whole, "files": files}]}))
        return
    for file in touched:
        click.echo(f"{file}: {'changed' if file.exists() else 'removed'}", err=True)
    click.echo(f"revoked {whole}")
