"""`gateway profiles`: which providers can be verified, and what a source of each needs."""

import json

import click

from gateway.cli import complete
from gateway.cli.options import json_option
from gateway.profiles import JwtProof, Profile, load_profiles
from gateway.settings import data_folder


@click.group()
def profiles() -> None:
    """Verification profiles: how each provider proves a delivery."""


@profiles.command("list", epilog="Example: gateway profiles list --json")
@json_option
def list_(*, as_json: bool) -> None:
    """List the shipped profiles."""
    shipped = load_profiles(data_folder("profiles"))
    if as_json:
        click.echo(json.dumps({"profiles": [summary(profile) for profile in shipped.values()]}))
        return
    for profile in shipped.values():
        click.echo(f"{profile.name:20} {profile.proof.scheme:14} {profile.title}")


@profiles.command(epilog="Example: gateway profiles show linear")
@click.argument("name", shell_complete=complete.profiles)
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Show what a source of profile NAME needs, with an example."""
    shipped = load_profiles(data_folder("profiles"))
    if name not in shipped:
        raise click.UsageError(f"unknown profile {name}; see: gateway profiles list")
    profile = shipped[name]
    if as_json:
        click.echo(json.dumps({"profiles": [summary(profile)]}))
        return
    click.echo(f"{profile.title}: {profile.proof.scheme}\n{profile.secret_help}\n{profile.retries}".strip())
    for url in profile.docs:
        click.echo(f"  {url}")
    click.echo("\n" + example(profile))
    for key, pointer in profile.identity.items():
        kind = "optional" if key in profile.identity_optional else "needed"
        where = pointer if pointer.startswith("/") else f"the token's {pointer.removeprefix('@')}"
        click.echo(f"# identity.{key}, {kind}: in a delivery {where}")


def summary(profile: Profile) -> dict[str, object]:
    """What scripts read of a profile."""
    optional = set(profile.identity_optional)
    return {
        "name": profile.name,
        "title": profile.title,
        "scheme": profile.proof.scheme,
        "identity": [name for name in profile.identity if name not in optional],
        "identity_optional": list(profile.identity_optional),
        "secrets": not isinstance(profile.proof, JwtProof),
        "docs": list(profile.docs),
    }


def example(profile: Profile) -> str:
    """A source of this profile as TOML, its values left for the operator to fill in."""
    lines = [f"[sources.{profile.name}-acme]", f'profile = "{profile.name}"']
    if not isinstance(profile.proof, JwtProof):
        lines.append(f'secrets = ["env:{profile.name.upper().replace("-", "_")}_SECRET"]')
    required = [name for name in profile.identity if name not in profile.identity_optional]
    if required:
        lines.append("identity = { " + ", ".join(f'{name} = ["..."]' for name in required) + " }")
    return "\n".join(lines)
