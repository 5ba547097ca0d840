"""`gateway serve`: receive, dispatch, or both."""

import logging
from pathlib import Path

import click

from gateway import log
from gateway.cli.options import config_option


@click.command(epilog="Example: gateway serve --config gateway.toml --role all")
@config_option
@click.option("--role", type=click.Choice(["all", "receive", "dispatch"]), default="all", show_default=True)
@click.option("--admin-bind", help="HOST:PORT of the admin side, instead of server.admin_bind.")
@click.option("--verbose", is_flag=True, help="Log more.")
def serve(config: Path, role: str, admin_bind: str | None, *, verbose: bool) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain and exit 0. A taken port exits 3, a bad configuration 2."""
    from gateway.server import run  # noqa: PLC0415 (the other commands start faster without the server)

    log.configure(logging.DEBUG if verbose else logging.INFO)
    raise SystemExit(run(config, role, admin_bind))
