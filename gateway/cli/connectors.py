"""`gateway connectors`: the shipped trigger declarations, and how a workflow and a source use one."""

import json
from typing import Any

import click

from gateway import families
from gateway.cli.options import json_option
from gateway.cli.profiles import example
from gateway.declarations import Connector, load_connector
from gateway.profiles import load_profiles
from gateway.settings import data_folder


@click.group()
def connectors() -> None:
    """Connector declarations: which native evidence means which trigger."""


@connectors.command("list", epilog="Example: gateway connectors list --json")
@json_option
def list_(*, as_json: bool) -> None:
    """List the shipped connectors and their triggers. GitHub's families need none: see gateway connectors show github."""
    shipped = load_connectors()
    if as_json:
        click.echo(json.dumps({"connectors": [summary(one) for one in shipped.values()]}))
        return
    for one in shipped.values():
        click.echo(f"{one.id:14} {', '.join(one.triggers)}")


@connectors.command(epilog="Example: gateway connectors show linear")
@click.argument("name")
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Show the triggers of connector NAME and what its import wants."""
    if name == families.CONNECTOR and not as_json:
        _families()
        return
    one = _named(name)
    if as_json:
        click.echo(json.dumps({"connectors": [summary(one)]}))
        return
    click.echo(f"{one.id}: {', '.join(profiles_of(one))}")
    for trigger, raw in one.triggers.items():
        filters = ", ".join(raw.get("filters", {}))
        click.echo(f"  {trigger:26} {', '.join(raw['nativeEvents'])}" + (f"  filters: {filters}" if filters else ""))
    click.echo("imports, with:")
    for key, spec in one.import_schema.items():
        kind = "needed" if spec.get("required") or key in one.resources else "optional"
        click.echo(f"  {key:26} {spec.get('type', 'string')}, {kind}. {spec.get('description', '')}".rstrip())


@connectors.command(epilog="Example: gateway connectors config linear > .github/workflows/triage.md")
@click.argument("name")
@click.option(
    "--trigger", "triggers", multiple=True, help="Select this trigger; may be repeated.  [default: the first]"
)
def config(name: str, triggers: tuple[str, ...]) -> None:
    """Print a workflow that selects connector NAME, and the source that its deliveries need."""
    one = _named(name)
    unknown = [trigger for trigger in triggers if trigger not in one.triggers]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(one.triggers)}", param_hint="--trigger")
    click.echo(workflow(one, triggers or (next(iter(one.triggers)),)))


def load_connectors() -> dict[str, Connector]:
    """The shipped connectors by id."""
    files = sorted((data_folder("subscriptions") / "connectors").glob("*.md"))
    return {file.stem: load_connector(file.read_text(encoding="utf-8"), file.name) for file in files}


def _named(name: str) -> Connector:
    shipped = load_connectors()
    if name not in shipped:
        raise click.UsageError(f"unknown connector {name}; see: gateway connectors list")
    return shipped[name]


def summary(one: Connector) -> dict[str, Any]:
    """What scripts read of a connector."""
    return {
        "id": one.id,
        "profiles": profiles_of(one),
        "digest": one.digest,
        "triggers": [
            {"name": name, "events": list(raw["nativeEvents"]), "filters": list(raw.get("filters", {}))}
            for name, raw in one.triggers.items()
        ],
        "grants": list(one.resources),
        "inputs": {name: dict(spec) for name, spec in one.import_schema.items()},
    }


def profiles_of(one: Connector) -> list[str]:
    """The profiles that a source may have for this connector's triggers."""
    named = [raw["verificationProfile"] for raw in one.triggers.values()]
    return sorted({name for entry in named for name in ([entry] if isinstance(entry, str) else entry)})


def _families() -> None:
    click.echo("github: no import; select under on.gateway-dispatch with repos, orgs or projects")
    for name, row in families.FAMILIES.items():
        click.echo(f"  {name:28} {', '.join(row.activities)}")
    click.echo(f"  {families.SLASH_COMMAND:28} names: the commands, without the slash")


def workflow(one: Connector, triggers: tuple[str, ...]) -> str:
    """A consumer's Markdown with the values left to fill in, and the source as a comment of it."""
    needed = {
        name: spec
        for name, spec in one.import_schema.items()
        if spec.get("required") or name in one.resources or "default" not in spec
    }
    width = [
        f"      {name}: {_blank(spec)}  # {spec.get('description', 'exact values')}" for name, spec in needed.items()
    ]
    source = example(load_profiles(data_folder("profiles"))[profiles_of(one)[0]])
    return "\n".join(
        [
            "---",
            "on:",
            "  gateway-dispatch:",
            f"    {one.id}: [{', '.join(triggers)}]",
            "imports:",
            f"  - uses: .github/workflows/connectors/{one.id}.md",
            "    with:",
            *(f"  {line}" for line in width),
            "---",
            "",
            "Say here what to do with every reference in `gateway.events`; each is untrusted evidence.",
            "",
            "<!-- The source, in gateway.toml:",
            "",
            source,
            "",
            "-->",
        ]
    )


def _blank(spec: Any) -> str:
    return '["..."]' if spec.get("type") == "array" else '"..."'
