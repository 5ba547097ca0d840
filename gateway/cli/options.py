"""Options that several commands share."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from gateway.environment import default_path
from gateway.errors import ConfigError, printable
from gateway.subscriptions import MAX_BYTES

config_option = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=default_path,
    show_default="gateway.toml, then $GATEWAY_CONFIG",
    help="The configuration file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


class Digest(click.ParamType[str]):
    """A subscription's digest, whole or a beginning of it."""

    name = "digest"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return it with `sha256:` before it."""
        text = str(value).removeprefix("sha256:")
        if re.fullmatch("[0-9a-f]{4,64}", text) is None:
            self.fail(
                f"{value!r} is no beginning of a digest: write at least 4 of its hex digits, as gateway subscriptions shows it"
            )
        return f"sha256:{text}"


STDIN = Path("-")
BODY_BYTES = 32 * 1024 * 1024  # more than any profile takes


def head(file: Path, most: int) -> bytes:
    """Read what an operator names, or standard input for `-`, no further than `most` bytes: it may be a device, and endless.

    Raises UsageError where it cannot be read.
    """
    try:
        if file != STDIN:
            with file.open("rb") as opened:
                return opened.read(most)
        if sys.stdin is None:
            raise click.UsageError("standard input is closed")
        return sys.stdin.buffer.read(most)
    except OSError as error:
        raise click.UsageError(f"{printable(str(file))} cannot be read: {error.strerror}") from None


def content(file: Path, most: int) -> bytes:
    """Read all of it. Raises UsageError where it is larger than `most` bytes, or cannot be read."""
    data = head(file, most + 1)
    if len(data) > most:
        raise click.UsageError(f"{printable(str(file))} is larger than {most} bytes")
    return data


def document(file: Path) -> bytes:
    """Read a compiled document; one that is too large is cut off, and refused where it is loaded."""
    return head(file, MAX_BYTES + 1)


def show_problems(error: ConfigError) -> None:
    """Print every problem with its fix to standard error."""
    for problem in error.problems:
        place = ": ".join(part for part in (problem.file, problem.key) if part)
        click.echo(f"{place}: {problem.problem}\n    fix: {problem.fix}", err=True)
    click.echo(f"problems: {len(error.problems)}", err=True)
