"""`gateway connectors`: the shipped trigger declarations, what each needs, and a source and a workflow that use one."""

import json
import re
from pathlib import Path
from typing import Any

import click

from gateway import families, scaffold
from gateway.cli import complete
from gateway.cli.options import json_option
from gateway.declarations import Connector, load_connector
from gateway.environment import check_reference, data_folder
from gateway.errors import ConfigError, Problem
from gateway.profiles import JwtProof, Profile, load_profiles
from gateway.settings import NAME


@click.group()
def connectors() -> None:
    """Connector declarations: which native evidence means which trigger."""


@connectors.command("list", epilog="Example: gateway connectors list --json")
@json_option
def list_(*, as_json: bool) -> None:
    """List the shipped connectors and their triggers, and GitHub's own families, which need no connector."""
    shipped = load_connectors()
    if as_json:
        click.echo(json.dumps({"connectors": [summary(one) for one in shipped.values()]}))
        return
    for one in shipped.values():
        click.echo(f"{one.id:14} {', '.join(one.triggers)}")
    click.echo(f"{families.CONNECTOR:14} {', '.join([*families.FAMILIES, families.SLASH_COMMAND])}")


@connectors.command(
    epilog="Example: gateway connectors show linear --markdown > .github/workflows/connectors/linear.md"
)
@click.argument("name", shell_complete=complete.connectors)
@click.option("--markdown", is_flag=True, help="Print the declaration itself, for a workflow to import.")
@json_option
def show(name: str, *, markdown: bool, as_json: bool) -> None:
    """Show the triggers of connector NAME and what its import wants; of one of your own by its FILE.md."""
    if name == families.CONNECTOR:
        if as_json or markdown:
            raise click.UsageError("GitHub's families have no declaration; see: gateway connectors show github")
        _families()
        return
    one = _named(name)
    if markdown:
        click.echo((Path(name) if _is_file(name) else _folder() / f"{name}.md").read_text(encoding="utf-8"), nl=False)
        return
    if as_json:
        click.echo(json.dumps({"connectors": [summary(one)]}))
        return
    click.echo(f"{one.id}: for sources of the profile {' or '.join(profiles_of(one))}")
    for trigger, raw in one.triggers.items():
        filters = ", ".join(raw.get("filters", {}))
        click.echo(f"  {trigger:26} {', '.join(raw['nativeEvents'])}" + (f"  filters: {filters}" if filters else ""))
    shipped = load_profiles(data_folder("profiles"))
    known = next((shipped[profile] for profile in profiles_of(one) if profile in shipped), None)
    if known is None:
        raise click.UsageError(
            f"{name}: no profile is named {' or '.join(profiles_of(one))}; see: gateway profiles list"
        )
    unbound = scaffold.needed(one, known)
    click.echo("bindings, as imports of a workflow:")
    for key, spec in one.import_schema.items():
        kind = "unbound" if key in unbound else "optional"
        click.echo(f"  {key:26} {spec.get('type', 'string')}, {kind}. {spec.get('description', '')}".rstrip())
    rest = [key for key in unbound if key not in one.import_schema]
    if rest:
        click.echo("bindings, as identity of a source:")
    for key in rest:
        click.echo(f"  {key:26} string, unbound")
    words = " ".join(f"--bind {key}=VALUE" for key in unbound)
    if not _is_file(name):
        click.echo(f"bind them: gateway connectors config {one.id} {words}")


@connectors.command(
    epilog="Example: gateway connectors config linear --bind workspace=acme --bind organizations=ORG --bind teams=TEAM"
    " >> gateway.toml"
)
@click.argument("name", shell_complete=complete.connectors)
@click.option("--bind", "bound", multiple=True, metavar="NAME=VALUE", help="A grant or an identity; repeat for more.")
@click.option("--source", help="The source's name.  [default: NAME-acme]")
@click.option("--profile", help="Where several can prove it.  [default: the first that connectors show names]")
@click.option(
    "--secret", "secrets", multiple=True, metavar="REF", help="env:NAME or file:/path.  [default: env:SOURCE_SECRET]"
)
@click.option("--workflow", "as_workflow", is_flag=True, help="Print a workflow with the same bindings instead.")
@click.option("--trigger", "triggers", multiple=True, help="For the workflow; repeat for more.  [default: the first]")
@json_option
def config(
    name: str,
    bound: tuple[str, ...],
    source: str | None,
    profile: str | None,
    secrets: tuple[str, ...],
    triggers: tuple[str, ...],
    *,
    as_workflow: bool,
    as_json: bool,
) -> None:
    """Print the source that connector NAME needs, ready for gateway.toml; with --workflow, a workflow that selects it.

    Exit 2 with every binding that is still missing: what it prints loads and compiles as it is.
    """
    one = None if name == families.CONNECTOR else _named(name)
    bindings = _bindings(bound)
    source = source or f"{name}-acme"
    if not re.fullmatch(NAME, source):
        raise click.BadParameter("use a-z, 0-9 and -, at most 63", param_hint="--source")
    for reference in secrets:
        try:
            check_reference(reference)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--secret") from None
    chosen = _profile(one, profile)
    given = secrets or (
        () if isinstance(chosen.proof, JwtProof) else (f"env:{source.upper().replace('-', '_')}_SECRET",)
    )
    selected = triggers or ("issue-opened" if one is None else next(iter(one.triggers)),)
    table, made = "", ""
    problems: list[Problem] = []
    try:
        table = scaffold.source(chosen, source, given, bindings, one)
    except ConfigError as error:
        problems += error.problems
    try:
        if one is not None:
            made = scaffold.workflow(one, selected, bindings)
        elif as_workflow or as_json:
            made = scaffold.github_workflow(selected, bindings)
    except ConfigError as error:
        problems += [problem for problem in error.problems if problem.key not in {told.key for told in problems}]
    if problems:
        raise ConfigError(problems)
    if as_json:
        click.echo(json.dumps({"connectors": [{"id": name, "source": table, "workflow": made}]}))
    else:
        click.echo(made if as_workflow else table, nl=False)


def _bindings(bound: tuple[str, ...]) -> dict[str, list[str]]:
    bindings: dict[str, list[str]] = {}
    for one in bound:
        key, equals, value = one.partition("=")
        if not equals or not value:
            raise click.BadParameter(f"{one} is not NAME=VALUE", param_hint="--bind")
        bindings.setdefault(key, []).append(value)
    return bindings


def _profile(one: Connector | None, name: str | None) -> Profile:
    possible = [families.PROFILE] if one is None else profiles_of(one)
    if name is not None and name not in possible:
        raise click.BadParameter(f"{name} is none of {', '.join(possible)}", param_hint="--profile")
    return load_profiles(data_folder("profiles"))[name or possible[0]]


def load_connectors() -> dict[str, Connector]:
    """The shipped connectors by id."""
    files = sorted(_folder().glob("*.md"))
    return {file.stem: load_connector(file.read_bytes(), file.name) for file in files}


def _folder() -> Path:
    return data_folder("subscriptions") / "connectors"


def _is_file(name: str) -> bool:
    return name.endswith(".md")


def _named(name: str) -> Connector:
    """Load a shipped connector by its name, or one's own by its file. Raises ConfigError for a file that is wrong."""
    if _is_file(name):
        try:
            return load_connector(Path(name).read_bytes(), name)
        except OSError as error:
            raise click.UsageError(f"{name} cannot be read: {error}") from None
    shipped = load_connectors()
    if name not in shipped:
        raise click.UsageError(
            f"unknown connector {name}: give the FILE.md of your own, or one of {', '.join(shipped)}"
        )
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
        "unbound": scaffold.needed(one, load_profiles(data_folder("profiles"))[profiles_of(one)[0]]),
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
    click.echo("a workflow: gateway connectors config github --bind repos=OWNER/NAME --workflow --trigger issue-opened")
    click.echo(f"    or with: --trigger {families.SLASH_COMMAND} --bind {scaffold.NAMES}=fix")
