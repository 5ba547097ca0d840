"""Options that several commands share."""

from pathlib import Path

import click

from gateway.environment import default_path
from gateway.errors import ConfigError

config_option = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=default_path,
    show_default="gateway.toml, then $GATEWAY_CONFIG",
    help="The configuration file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def show_problems(error: ConfigError) -> None:
    """Print every problem with its fix to standard error."""
    for problem in error.problems:
        place = ": ".join(part for part in (problem.file, problem.key) if part)
        click.echo(f"{place}: {problem.problem}\n    fix: {problem.fix}", err=True)
    click.echo(f"problems: {len(error.problems)}", err=True)
