"""The `gateway` command: one file a command; thin. Exit codes: 0 done, 1 the answer is no, 2 usage or configuration, 3 outside."""

import contextlib
import io
import os
import sys
from typing import Any

import click

from gateway.cli.asks import answer_, asks
from gateway.cli.audit import audit
from gateway.cli.check import check
from gateway.cli.compile import compile_
from gateway.cli.connectors import connectors
from gateway.cli.dead import dead
from gateway.cli.deliver import deliver
from gateway.cli.deliveries import deliveries
from gateway.cli.demo import demo
from gateway.cli.doctor import doctor
from gateway.cli.enroll import enroll
from gateway.cli.envelope import envelope
from gateway.cli.explain import explain
from gateway.cli.options import show_problems
from gateway.cli.profiles import profiles
from gateway.cli.reconcile import reconcile
from gateway.cli.replay import replay
from gateway.cli.revoke import revoke
from gateway.cli.serve import serve
from gateway.cli.subscriptions import subscriptions
from gateway.cli.wire import wire_
from gateway.errors import ConfigError, Unavailable, printable


class Gateway(click.Group):
    """Translates what commands raise into messages and exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program. A terminal that cannot show a character gets its escape; a disk that is full is one line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            with contextlib.suppress(OSError):
                click.echo(printable(f"failed: {where}{error.strerror or error}"), err=True)
            sys.exit(3)

    def invoke(self, ctx: click.Context) -> object:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            show_problems(error)
            ctx.exit(2)
        except Unavailable as error:
            click.echo(f"unavailable: {error.reason}; try again in {error.retry_after_s} s", err=True)
            ctx.exit(3)
        except BrokenPipeError:  # whoever read our output has gone; what is still buffered would be told at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(3)


@click.group(cls=Gateway, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="webhook-gateway")
def main() -> None:
    """Verify provider webhooks and forward closed envelopes to GitHub workflows.

    Start with `gateway demo`, then `gateway check --config gateway.toml`.
    """


for command in (serve, check, demo, envelope, profiles, compile_, reconcile):
    main.add_command(command)
for command in (connectors, enroll, revoke, subscriptions, explain, deliver, deliveries):
    main.add_command(command)
for command in (asks, answer_, audit, dead, doctor, replay, wire_):
    main.add_command(command)
