"""What is wrong with settings that can be read: each a Problem with file, key and fix, and never a secret's value."""

import difflib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from gateway.environment import resolve, text_problem
from gateway.errors import Problem
from gateway.profiles import JwtProof, Profile, Source
from gateway.settings import Settings, SourceSettings, references
from gateway.verify import secret_problem

NOTIFYING = "standard-webhooks"  # the profile that notifications are signed by
LEAST_TOKEN = 16  # bytes of an operator's token


def place_problems(path: Path, settings: Settings) -> list[Problem]:
    """Folders and files that the settings name, where they stand and are of the wrong kind."""
    folder = path.parent / settings.subscriptions.path
    problems = []
    try:
        list(os.scandir(folder))
    except FileNotFoundError:
        pass  # the first enrollment makes it
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"{folder} cannot be listed: {getattr(error, 'strerror', None) or error}"
        problems.append(Problem(str(path), "subscriptions.path", why, "make it a folder that this user may read"))
    embedded = settings.store.embedded
    if embedded is not None:
        try:
            stat_ = (path.parent / embedded).stat()
        except FileNotFoundError:
            stat_ = None
        except (OSError, ValueError) as error:
            why = f"cannot be opened: {getattr(error, 'strerror', None) or error}"
            problems.append(Problem(str(path), "store.embedded", why, "make it a folder that this user may write"))
            return problems
        if stat_ is not None and not stat.S_ISDIR(stat_.st_mode):
            fix = "make it a folder that this user may write"
            problems.append(Problem(str(path), "store.embedded", "is no folder", fix))
    elif settings.store.url is not None:
        problems += [
            Problem(str(path), "store.url", f"ssl_ca_certs: {ca} is no file", "name the CA's PEM")
            for ca in parse_qs(urlsplit(settings.store.url).query).get("ssl_ca_certs", ())
            if not Path(ca).is_file()
        ]
    return problems


def _resolved(settings: Settings) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read each secret once: its value by reference, and why a reference has none. A file may change between two reads."""
    values: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for reference in dict.fromkeys(reference for _, reference in references(settings)):
        try:
            values[reference] = resolve(reference)
        except ValueError as error:
            missing[reference] = str(error)
    return values, missing


def secret_problems(
    path: Path, settings: Settings, sources: Mapping[str, Source], profiles: Mapping[str, Profile]
) -> list[Problem]:
    """References without a value, values that are no text of one line, and secrets that no provider of the profile gives."""
    values, missing = _resolved(settings)
    problems = [
        Problem(str(path), key, missing[reference], "set it, or correct the reference")
        for key, reference in references(settings)
        if reference in missing
    ]
    fix = "write the secret alone, on one line"
    problems += [
        Problem(str(path), key, f"{reference} {error}", fix)
        for key, reference in references(settings)
        if key != "github.private_key"
        and reference in values
        and (error := text_problem(values[reference])) is not None
    ]
    odd = {problem.key for problem in problems}
    problems += [
        Problem(str(path), key, error, f"{reference} must hold the provider's own secret")
        for name, source in sources.items()
        for label, reference, _ in settings.sources[name].references()
        if (key := f"sources.{name}.secrets.{label}") not in odd
        and (error := secret_problem(source.profile.proof, values[reference]))
    ]
    return problems + _operator_problems(path, settings, profiles, values)


def _operator_problems(
    path: Path, settings: Settings, profiles: Mapping[str, Profile], values: Mapping[str, bytes]
) -> list[Problem]:
    """What an operator's own secrets must be: a token long enough to withstand guessing, a Standard Webhooks secret."""
    fix = "use 16 or more random characters, such as the output of: openssl rand -base64 24"
    problems = [
        Problem(str(path), f"server.operator_tokens.{place}", f"{reference} is shorter than {LEAST_TOKEN} bytes", fix)
        for place, reference in enumerate(settings.server.operator_tokens)
        if reference in values and len(values[reference]) < LEAST_TOKEN
    ]
    notifications = settings.notifications
    if notifications is not None and notifications.secret in values:
        secret = values[notifications.secret]
        error = secret_problem(profiles[NOTIFYING].proof, secret)
        if error is None and secret.startswith(b"whpk_"):
            error = "is a public key, which cannot sign"
        if error is not None:
            problems.append(Problem(str(path), "notifications.secret", error, "give the secret that your receiver has"))
    return problems


def unknown_profile(path: Path, key: str, name: str, profiles: Iterable[str]) -> Problem:
    """A source's profile that is not shipped, with the nearest one's name."""
    close = difflib.get_close_matches(name, list(profiles), 1)
    fix = f"did you mean {close[0]}?" if close else "see: gateway profiles list"
    return Problem(str(path), key, f"{name} is no profile", fix)


def source_problems(path: Path, key: str, source: SourceSettings, profile: Profile) -> list[Problem]:
    """What a source lacks for its profile, has too much, or left as a placeholder."""
    problems = []
    if isinstance(profile.proof, JwtProof):
        if source.secrets:
            fix = "remove it: the provider's published keys prove its tokens"
            problems.append(Problem(str(path), f"{key}.secrets", f"profile {profile.name} takes no secrets", fix))
    elif not source.secrets:
        fix = f'give at least one reference, such as ["env:SECRET"]. {profile.secret_help}'.strip()
        problems.append(Problem(str(path), f"{key}.secrets", "is missing or empty", fix))
    if isinstance(source.secrets, Mapping) and profile.proof.scheme != "client-state":
        problems.append(Problem(str(path), f"{key}.secrets", "a table is for Graph sources alone", "give a list"))
    for name in sorted(source.identity.keys() - profile.identity.keys()):
        known = ", ".join(profile.identity) or "none"
        problems.append(
            Problem(str(path), f"{key}.identity.{name}", "is not an identity of the profile", f"one of: {known}")
        )
    for name in profile.identity:
        if name not in profile.identity_optional and not source.identity.get(name):
            fix = f'add identity = {{ {name} = ["..."] }}: deliveries of another {name} are refused by it'
            problems.append(Problem(str(path), f"{key}.identity.{name}", "is missing or empty", fix))
    for name, values in source.identity.items():
        if "..." in values:
            fix = "write the value; gateway profiles show says where it stands in a delivery"
            problems.append(Problem(str(path), f"{key}.identity.{name}", "is still the placeholder ...", fix))
    return problems
