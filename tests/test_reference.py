"""The generated reference is what the code says, and every command has an example."""

import importlib.util
from pathlib import Path
from types import ModuleType

import click

from gateway.cli import main

ROOT = Path(__file__).parent.parent


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(command: click.Command, path: str = "gateway") -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        return [leaf for name, one in command.commands.items() for leaf in leaves(one, f"{path} {name}")]
    return [(path, command)]


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs" / "reference.md").read_text("utf-8") == generator().text(), "make docs-reference"


def test_every_command_has_help_and_an_example_of_itself() -> None:
    for path, command in leaves(main):
        assert command.help, path
        assert command.epilog, path
        assert command.epilog.startswith(f"Example: {path}"), path


def test_every_command_that_reads_a_configuration_takes_config() -> None:
    without = {path for path, command in leaves(main) if "config" not in {p.name for p in command.params}}
    offline = ("gateway demo", "gateway envelope", "gateway profiles", "gateway compile", "gateway connectors")
    assert {path for path in without if not path.startswith(offline)} == set()
