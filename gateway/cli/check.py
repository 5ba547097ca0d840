"""`gateway check`: every problem of the configuration at once, without starting anything."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask
from gateway.configuration import Configuration, load_configuration
from gateway.credentials import load_key
from gateway.doctor import unenrolled
from gateway.doctor.secrets import secrets
from gateway.environment import data_folder, resolve
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.profiles import load_profiles
from gateway.structs import asdict


@click.command(epilog="Example: gateway check --config /etc/gateway/gateway.toml")
@config_option
@json_option
def check(config: Path, *, as_json: bool) -> None:
    """Check configuration, profiles, subscriptions, secret references and what the store survives; exit 2 with every problem.

    An embedded store is not started for it. One that does not answer is no problem of the configuration: standard error
    says that it was not looked at.
    """
    try:
        loaded = load_configuration(config)
        problems: Sequence[Problem] = [*further_problems(loaded), *store_problems(loaded)]
    except ConfigError as error:
        problems = error.problems
    if as_json:
        click.echo(json.dumps({"problems": [asdict(problem) for problem in problems]}))
        raise SystemExit(2 if problems else 0)
    if problems:
        raise ConfigError(problems)
    for finding in [*secrets(loaded), *unenrolled(loaded)]:
        if finding.state == "warn" and finding.check in ("secrets", "never matches"):
            click.echo(f"warning: {finding.detail}\n    fix: {finding.fix}", err=True)
    click.echo(f"{config}: good. Sources: {len(loaded.sources)}, enrolled subscriptions: {len(loaded.enrolled)}.")
    for name in loaded.sources if loaded.settings.server.public_url else ():
        click.echo(f"  {name}: {loaded.settings.server.public_url}/hooks/{name}")


def store_problems(loaded: Configuration) -> Sequence[Problem]:
    """What makes the store unfit: no append-only file, eviction of any key, a version or a schema that is not ours."""
    if loaded.settings.store.url is None:
        return ()
    try:
        ask(loaded, lambda store: store.ping())
    except ConfigError as error:
        return error.problems
    except Unavailable as error:
        click.echo(f"the store is away ({error.reason}): what it survives was not checked", err=True)
    return ()


def further_problems(loaded: Configuration) -> list[Problem]:
    """What a start would refuse or leave inactive although the file itself can be read."""
    file, server = str(loaded.file), loaded.settings.server
    problems: list[Problem] = []
    try:
        load_profiles(data_folder("profiles"))  # those that no source has yet, too
    except ConfigError as error:
        problems += error.problems
    problems += [
        Problem(file, f"enrollments ({one.subscription.digest})", f"cannot be active: {reason}", "correct or remove it")
        for one, reason in loaded.index.inactive
    ]
    try:
        load_key(resolve(loaded.settings.github.private_key))
    except ConfigError as error:
        problems += error.at(file).problems
    if server.bind.rpartition(":")[2] == server.admin_bind.rpartition(":")[2] != "0":
        problems.append(Problem(file, "server.admin_bind", "has the port of server.bind", "give it another port"))
    return problems
