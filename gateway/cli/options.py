"""Options that several commands share."""

from pathlib import Path

import click

from gateway.settings import default_path

config_option = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=default_path,
    show_default="gateway.toml, then $GATEWAY_CONFIG",
    help="The configuration file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
