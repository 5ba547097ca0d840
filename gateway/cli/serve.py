"""`gateway serve`: receive, dispatch, or both."""

import gc
import logging
from pathlib import Path

import click

from gateway import hangup, log
from gateway.cli.options import config_option


@click.command(epilog="Example: gateway serve --config gateway.toml --role all")
@config_option
@click.option("--role", type=click.Choice(["all", "receive", "dispatch"]), default="all", show_default=True)
@click.option("--admin-bind", help="HOST:PORT of the admin side, instead of server.admin_bind.")
@click.option("--verbose", is_flag=True, help="Log more.")
@click.option("--worker", hidden=True, help="NUMBER:PARENT:COUNT of one of several processes.")
@click.option("--socket", "sockets", hidden=True, multiple=True, help="NAME=DESCRIPTOR of an inherited socket.")
def serve(
    config: Path, role: str, admin_bind: str | None, worker: str | None, sockets: tuple[str, ...], *, verbose: bool
) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain and exit 0. A taken port exits 3, a bad configuration 2.

    With server.workers above 1 this process supervises as many receivers on the same sockets.
    """
    hangup.hold()
    gc.disable()  # what imports make stays: looking for garbage in it, again and again, took a tenth of a start
    from gateway import workers  # noqa: PLC0415 (the other commands start faster without the server)

    gc.freeze()
    gc.enable()

    log.configure(logging.DEBUG if verbose else logging.INFO)
    if worker is None:
        raise SystemExit(workers.run(config, role, admin_bind))
    number, parent, count = map(int, worker.split(":"))
    inherited = {name: int(descriptor) for name, _, descriptor in (one.partition("=") for one in sockets)}
    raise SystemExit(workers.run_worker(config, role, number, parent, count, inherited))
