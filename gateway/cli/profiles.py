"""`gateway profiles`: which providers can be verified, and what a source of each needs."""

import json

import click

from gateway.cli import complete
from gateway.cli.options import json_option
from gateway.environment import data_folder
from gateway.profiles import JwtProof, Profile, load_profiles
from gateway.subscriptions import facts_of

PROOFS = {
    "mac": "an HMAC-SHA256 with a shared secret",
    "ed25519": "an Ed25519 signature, whose public key is the secret",
    "shared-secret": "the secret itself, sent in a header",
    "jwt": "a signed token; the provider publishes its keys",
    "client-state": "the secret itself, in each item of the body",
}


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
    click.echo(f"{profile.title}: {profile.proof.scheme}")
    for label, value in _lines(profile):
        click.echo(f"  {label:9} {value}")
    click.echo("\n" + example(profile))
    for key, pointer in profile.identity.items():
        kind = "optional" if key in profile.identity_optional else "needed"
        where = pointer if pointer.startswith("/") else f"the token's {pointer.removeprefix('@')}"
        click.echo(f"# identity.{key}, {kind}: in a delivery {where}")


def _lines(profile: Profile) -> list[tuple[str, str]]:
    """What an operator and the author of a declaration look up, each with its label."""
    optional = profile.identity_optional
    identity = [
        f"{name} at {part}" + (" (optional)" if name in optional else "") for name, part in profile.identity.items()
    ]
    return [
        ("proof", PROOFS[profile.proof.scheme]),
        ("secret", profile.secret_help or "none"),
        ("identity", ", ".join(identity) or "none: the secret alone binds the sender"),
        ("event", " . ".join(profile.event.parts)),
        ("facts", ", ".join(f"@{name}" for name in sorted(facts_of(profile)))),
        ("retries", profile.retries or "not known"),
        *(("see", url) for url in profile.docs),
    ]


def summary(profile: Profile) -> dict[str, object]:
    """What scripts read of a profile."""
    optional = set(profile.identity_optional)
    return {
        "name": profile.name,
        "title": profile.title,
        "scheme": profile.proof.scheme,
        "identity": [name for name in profile.identity if name not in optional],
        "identity_optional": list(profile.identity_optional),
        "event": list(profile.event.parts),
        "facts": sorted(facts_of(profile)),
        "secrets": not isinstance(profile.proof, JwtProof),
        "docs": list(profile.docs),
    }


def example(profile: Profile) -> str:
    """A source of this profile as TOML, its values left for the operator to fill in."""
    lines = [f"[sources.{profile.name}-acme]", f'profile = "{profile.name}"']
    if not isinstance(profile.proof, JwtProof):
        lines.append(f'secrets = ["env:{profile.name.upper().replace("-", "_")}_WEBHOOK_SECRET"]')
    required = [name for name in profile.identity if name not in profile.identity_optional]
    if required:
        lines.append("identity = { " + ", ".join(f'{name} = ["..."]' for name in required) + " }")
    return "\n".join(lines)
