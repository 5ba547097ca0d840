"""The `gateway` command: one file a command; thin. Exit codes: 0 done, 1 the answer is no, 2 usage or configuration, 3 outside.

A command's module is imported when that command is asked for: what it needs (an HTTP client, cryptography, a YAML reader)
would cost the others, and `--help`, a second.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, Final

import click

from gateway.errors import ConfigError, Unavailable, printable

COMMANDS: Final = {  # name: where it stands, and the first sentence of its help
    "answer": ("asks:answer_", "Release a dispatch with yes, or make it a dead letter with no."),
    "asks": ("asks:asks", "List the dispatches that wait for a yes or a no, the one that ends first on top."),
    "audit": ("audit:audit", "List operators' actions, newest first."),
    "check": (
        "check:check",
        "Check configuration, profiles, subscriptions, secret references and what the store survives; exit 2 with every problem.",
    ),
    "compile": (
        "compile:compile_",
        "Compile CONSUMER.md into subscription documents, one a connector; print them, or write them with -o.",
    ),
    "connectors": (
        "connectors:connectors",
        "Connector declarations: which native evidence means which trigger.",
    ),
    "dead": ("dead:dead", "Dead letters: dispatches that were given up, for 30 days."),
    "deliver": ("deliver:deliver", "Sign a delivery with SOURCE's first secret and send it to /hooks/SOURCE."),
    "deliveries": ("deliveries:deliveries", "List delivery records, newest first."),
    "demo": (
        "demo:demo",
        "Start a receiver, an embedded store and a GitHub double, send signed samples, and show what became of each.",
    ),
    "doctor": (
        "doctor:doctor",
        "Check public address, clock, store, GitHub App, keys, secrets and admitted runs of a deployment; print what to mend.",
    ),
    "enroll": ("enroll:enroll", "Copy the document FILE into the subscriptions folder and write its entry beside it."),
    "envelope": ("envelope:envelope", "The closed version-2 envelope that a workflow receives."),
    "explain": (
        "explain:explain",
        "Explain the DELIVERY with this id from its record, or a saved one with --source and --file.",
    ),
    "profiles": ("profiles:profiles", "Verification profiles: how each provider proves a delivery."),
    "reconcile": (
        "reconcile:reconcile",
        "Read each enrolled repository's opt-in and workflow at its default branch; suspend what does not agree.",
    ),
    "replay": (
        "replay:replay",
        "Queue the events that DELIVERY forwarded again, as a new delivery with new dispatches.",
    ),
    "revoke": (
        "revoke:revoke",
        "Remove the enrollment of DIGEST (whole, or 4 and more hex digits that only it begins with) and its document from the subscriptions folder.",
    ),
    "serve": ("serve:serve", "Serve until SIGTERM or Ctrl-C, then drain and exit 0."),
    "subscriptions": (
        "subscriptions:subscriptions",
        "List enrolled subscriptions: active, suspended or mismatched, and why.",
    ),
    "wire": ("wire:wire_", "Register or update SOURCE's webhook at its provider; a second run changes nothing."),
}


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported at the first look."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, attribute = COMMANDS[name][0].split(":")
            self._loaded[name] = getattr(import_module(f"gateway.cli.{module}"), attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _open_standard() -> None:
    """Open what we were started without of the standard streams: a socket would take its number, and get what is written."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets `number`, the lowest that is free
            if number:  # who reads says that there is no input; nothing would look like an empty one
                setattr(sys, name, os.fdopen(number, "w", closefd=False))


class Gateway(click.Group):
    """Translates what commands raise into messages and exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program. A terminal that cannot show a character gets its escape; a disk that is full is one line."""
        _open_standard()
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
            from gateway.cli.options import show_problems  # noqa: PLC0415 (it imports the settings)

            show_problems(error)
            ctx.exit(2)
        except Unavailable as error:
            click.echo(f"unavailable: {error.reason}; try again in {error.retry_after_s} s", err=True)
            ctx.exit(3)
        except BrokenPipeError:  # whoever read our output has gone; what is still buffered would be told at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(3)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Gateway, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="webhook-gateway")
def main() -> None:
    """Verify provider webhooks and forward closed envelopes to GitHub workflows.

    Start with `gateway demo`, then `gateway check --config gateway.toml`.
    """
