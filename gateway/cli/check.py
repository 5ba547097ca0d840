"""`gateway check`: every problem of the configuration at once, without starting anything."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from gateway.cli.options import config_option, json_option
from gateway.errors import ConfigError
from gateway.settings import load_configuration


@click.command(epilog="Example: gateway check --config /etc/gateway/gateway.toml")
@config_option
@json_option
def check(config: Path, *, as_json: bool) -> None:
    """Check configuration, profiles, subscriptions and secret references; exit 2 with every problem found."""
    try:
        loaded = load_configuration(config)
    except ConfigError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"problems": [asdict(problem) for problem in error.problems]}))
        raise SystemExit(2) from None
    if as_json:
        click.echo(json.dumps({"problems": []}))
    else:
        sources, enrolled = len(loaded.sources), len(loaded.enrolled)
        click.echo(f"{config}: good. {sources} source(s), {enrolled} enrolled subscription(s).")
