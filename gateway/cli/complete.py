"""What a shell may complete: names of the configuration and of what is shipped. Whatever is wrong, it offers nothing."""

from pathlib import Path

import click

from gateway.configuration import load_base
from gateway.environment import data_folder, default_path
from gateway.errors import ConfigError


def sources(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The sources of the configuration that the line names, or of the one that would be used."""
    try:
        base = load_base(Path(ctx.params.get("config") or default_path()))
    except (ConfigError, OSError, ValueError):
        return []
    return [name for name in base.sources if name.startswith(incomplete)]


def profiles(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The shipped profiles."""
    return sorted(file.stem for file in data_folder("profiles").glob(f"{_literal(incomplete)}*.yaml"))


def connectors(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The shipped connectors."""
    folder = data_folder("subscriptions") / "connectors"
    return sorted(file.stem for file in folder.glob(f"{_literal(incomplete)}*.md"))


def _literal(text: str) -> str:
    """A typed beginning without what a pattern would expand."""
    return "".join(one for one in text if one.isalnum() or one in "-_")
