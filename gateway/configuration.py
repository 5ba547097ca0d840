"""What a process runs on: the settings file with all that it names, loaded and checked together.

Every problem of the file, its profiles, secret references and enrolled documents is collected and raised at once as
ConfigError.
"""

import difflib
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    ValidationError,
)

from gateway import files
from gateway.environment import data_folder, resolve, text_problem
from gateway.errors import ConfigError, Problem
from gateway.profiles import JwtProof, Profile, Source, load_profiles, profile_names
from gateway.salvage import concerns, place_of, readable
from gateway.settings import (
    MODES,
    NAME,
    Enrollment,
    Model,
    Settings,
    SourceSettings,
    references,
)
from gateway.subscriptions import MAX_BYTES, Enrolled, Index, Subscription, build_index, load_subscription
from gateway.verify import secret_problem

MAX_TOML_BYTES = 16 * 1024 * 1024  # entries of some hundred thousand subscriptions
NOTIFYING = "standard-webhooks"  # the profile that notifications are signed by
LEAST_TOKEN = 16  # bytes of an operator's token
Stamp = tuple[tuple[str, int, int, int], ...]  # name, time of change, size and inode of each file


@dataclass(frozen=True, slots=True)
class Base:
    """The settings and sources, without what is enrolled."""

    file: Path
    settings: Settings
    profiles: Mapping[str, Profile]
    sources: Mapping[str, Source]

    @property
    def folder(self) -> Path:
        """The folder of the enrolled documents and of the enrollments beside them."""
        return self.file.parent / self.settings.subscriptions.path


@dataclass(frozen=True, slots=True)
class Configuration(Base):
    """What a process runs on: the settings and all that they name, loaded and checked together."""

    enrolled: tuple[Enrolled, ...]
    index: Index
    documents: Mapping[bytes, Subscription] = field(default_factory=dict)  # by the SHA-256 of their bytes
    stamp: Stamp = ()


def load_configuration(path: Path, before: Configuration | None = None) -> Configuration:
    """Read the file and everything it names. Raises ConfigError with every problem found.

    Documents that are unchanged since `before` are not compiled again: a change among ten thousand is taken in a second.
    """
    base, problems = _load_base(path, secrets=True)
    stamp = folder_stamp(base.folder)  # before reading: what changes while we read is seen at the next look
    try:
        documents, broken = _documents(base.folder, {} if before is None else before.documents)
        enrolled, found = _enrolled(base, documents)
    except ConfigError as error:
        told = any(problem.key == "subscriptions.path" for problem in problems)
        raise ConfigError(problems if told else [*problems, *error.problems]) from None
    problems += broken + found
    if before is not None and before.documents and not base.folder.exists():
        fix = "put it back, as it was or empty: that it is gone revokes nothing"
        problems.append(Problem(str(path), "subscriptions.path", f"{base.folder} is gone", fix))
    if problems:
        raise ConfigError(problems)
    index = build_index(enrolled, base.sources)
    return Configuration(path, base.settings, base.profiles, base.sources, enrolled, index, documents, stamp)


def look(path: Path) -> tuple[Configuration | None, list[Problem]]:
    """Read what can be read, and every problem: for looking at the rest of a deployment; nothing may run on it.

    None where there is nothing to look at.
    """
    try:
        base, problems = _load_base(path, secrets=True)
    except ConfigError as error:
        return None, list(error.problems)
    enrolled: tuple[Enrolled, ...] = ()
    try:
        enrolled, found = enrollments(base)
        problems += found
    except ConfigError as error:
        problems += [] if any(problem.key == "subscriptions.path" for problem in problems) else error.problems
    index = build_index(enrolled, base.sources)
    return Configuration(path, base.settings, base.profiles, base.sources, enrolled, index), problems


def load_base(path: Path) -> Base:
    """Read the file without the enrolled documents and without a secret's value, for a command that needs neither.

    Raises ConfigError with every problem found.
    """
    base, problems = _load_base(path, secrets=False)
    if problems:
        raise ConfigError(problems)
    return base


def enrollments(base: Base) -> tuple[tuple[Enrolled, ...], list[Problem]]:
    """Read what is enrolled, with the problems instead of an error: what is broken is left out and told."""
    documents, broken = _documents(base.folder, {})
    enrolled, problems = _enrolled(base, documents)
    return enrolled, broken + problems


def folder_stamp(folder: Path) -> Stamp:
    """What tells one state of the subscriptions folder from another, without reading a file."""
    found = []
    try:
        with os.scandir(folder) as entries:  # a tenth of a glob's cost, and every second
            for entry in entries:
                if entry.name.endswith((".json", ".toml")):
                    with suppress(OSError):  # gone between the two calls: the next look sees it
                        status = entry.stat()
                        found.append((entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:  # a state too; whoever reads the folder says what is wrong
        return ((type(error).__name__, 0, 0, 0),)
    return tuple(sorted(found))


def folder_files(folder: Path, suffix: str) -> list[Path]:
    """List the subscriptions folder's files that end so. Raises ConfigError where it cannot be listed."""
    try:
        return files.listed(folder, suffix)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"cannot be listed: {getattr(error, 'strerror', None) or error}"
        fix = "make it a folder that can be read; what is enrolled stands in it"
        raise ConfigError([Problem(str(folder), "", why, fix)]) from None


def read_text(file: Path) -> str:
    """Read a TOML file. Raises ConfigError."""
    try:
        return files.read(file, MAX_TOML_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError([Problem(str(file), "", f"cannot be read: {error.strerror}", "name a TOML file")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(file), "", f"is no UTF-8: {error.reason}", "save it as UTF-8")]) from None


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(file), "", f"is not readable TOML: {error}", "repair the syntax")]) from None


def read_entries(file: Path) -> tuple[Enrollment, ...]:
    """Read a TOML file beside the documents. Raises ConfigError, never with a value of it."""
    try:
        return EnrollmentFile.model_validate(_toml(file)).enrollments
    except ValidationError as error:
        raise ConfigError(model_problems(str(file), error)) from None


def _load_base(path: Path, *, secrets: bool) -> tuple[Base, list[Problem]]:
    settings, told = _parse(path)
    problems: list[Problem] = []
    shipped = data_folder("profiles")
    wanted = {source.profile for source in settings.sources.values()}
    profiles = load_profiles(shipped, wanted | ({NOTIFYING} if settings.notifications else set()))
    sources: dict[str, Source] = {}
    for name, source in settings.sources.items():
        profile = profiles.get(source.profile)
        key = f"sources.{name}"
        if not re.fullmatch(NAME, name):
            problems.append(Problem(str(path), key, "is no source name", "use a-z, 0-9 and -, at most 63"))
        if profile is None:
            problems.append(_unknown_profile(path, f"{key}.profile", source.profile, profile_names(shipped)))
            continue
        problems += _source_problems(path, key, source, profile)
        sources[name] = Source(
            name,
            profile,
            dict(source.identity),
            frozenset(source.self_),
            source.origin,
            source.freshness_s,
        )
    problems += _place_problems(path, settings)
    if secrets:
        problems += _secret_problems(path, settings, sources, profiles)
    keys = [problem.key for problem in told]
    return Base(path, settings, profiles, sources), [*told, *(p for p in problems if not concerns(p.key, keys))]


def _place_problems(path: Path, settings: Settings) -> list[Problem]:
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


def _secret_problems(
    path: Path, settings: Settings, sources: Mapping[str, Source], profiles: Mapping[str, Profile]
) -> list[Problem]:
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


def _parse(path: Path) -> tuple[Settings, list[Problem]]:
    """Return the settings and what is wrong with them; with problems they are what can be read of the rest."""
    try:
        document = _toml(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        fix = "give --config FILE, set GATEWAY_CONFIG, or see docs/quickstart.md"
        raise ConfigError([Problem(str(path), "", "does not exist", fix)]) from None
    try:
        return Settings.model_validate(document), []
    except ValidationError as error:
        problems = model_problems(str(path), error)
        faults = [place_of(entry["loc"]) for entry in error.errors(include_input=False, include_url=False)]
    try:
        return Settings.model_validate(readable(document, faults)), problems
    except ValidationError as error:
        told = [problem.key for problem in problems]
        more = [problem for problem in model_problems(str(path), error) if not concerns(problem.key, told)]
        raise ConfigError([*problems, *more]) from None


def model_problems(file: str, error: ValidationError) -> list[Problem]:
    """What a model refused, in an operator's words: never the value, which may be a secret in the wrong place."""
    problems = []
    for entry in error.errors(include_input=False, include_url=False, include_context=False):
        key = ".".join(str(part) for part in entry["loc"] if "[" not in str(part))
        text, fix = {
            "extra_forbidden": ("is no key that is known here", "remove it or correct its name"),
            "missing": ("is missing", "add it; docs/configuration.md shows every key"),
            "tuple_type": ("is not a list", 'write ["..."]'),
            "model_type": ("is not a table", f"write [{key}]"),
            "dict_type": ("is not a table", f"write [{key}]"),
            "mapping_type": ("is not a table", f"write [{key}]"),
            "string_type": ("is not text", 'write it in quotes: "..."'),
            "string_too_short": ("is empty", "give a value, or remove it"),
            "int_type": ("is not a whole number", "write the number without quotes"),
            "float_type": ("is not a number", "write the number without quotes"),
            "bool_type": ("is neither true nor false", "write true or false, without quotes"),
        }.get(entry["type"], (entry["msg"].removeprefix("Value error, "), "correct the value"))
        problems.append(Problem(file, key, text, fix))
    return problems


def _unknown_profile(path: Path, key: str, name: str, profiles: Iterable[str]) -> Problem:
    close = difflib.get_close_matches(name, list(profiles), 1)
    fix = f"did you mean {close[0]}?" if close else "see: gateway profiles list"
    return Problem(str(path), key, f"{name} is no profile", fix)


def _source_problems(path: Path, key: str, source: SourceSettings, profile: Profile) -> list[Problem]:
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


def _documents(folder: Path, known: Mapping[bytes, Subscription]) -> tuple[dict[bytes, Subscription], list[Problem]]:
    """Load the folder's documents by the SHA-256 of their bytes; one that is known is taken as it is."""
    problems: list[Problem] = []
    documents: dict[bytes, Subscription] = {}
    for file in folder_files(folder, ".json"):
        try:
            data = files.read(file, MAX_BYTES)
            key = hashlib.sha256(data).digest()
            documents[key] = known[key] if key in known else load_subscription(data, str(file))
        except OSError as error:
            problems.append(
                Problem(str(file), "", f"cannot be read: {error.strerror}", "make it readable, or remove it")
            )
        except ConfigError as error:
            problems += error.problems
    return documents, problems


def _enrolled(base: Base, loaded: Mapping[bytes, Subscription]) -> tuple[tuple[Enrolled, ...], list[Problem]]:
    path, settings, sources, folder = base.file, base.settings, base.sources, base.folder
    problems: list[Problem] = []
    documents = {subscription.digest: subscription for subscription in loaded.values()}
    entries = [(path, f"enrollments.{n}", entry) for n, entry in enumerate(settings.enrollments)]
    for file in folder_files(folder, ".toml"):
        try:
            entries += [(file, f"enrollments.{n}", entry) for n, entry in enumerate(read_entries(file))]
        except ConfigError as error:
            problems += error.problems
    enrolled: dict[str, Enrolled] = {}
    first: dict[str, Enrollment] = {}
    for file, key, entry in entries:
        known = enrolled.get(entry.subscription)
        subscription_or_none = documents.get(entry.subscription)
        if entry.source not in sources:
            if entry.source not in settings.sources:
                problems.append(
                    Problem(str(file), f"{key}.source", f"{entry.source} is no source", "name one of [sources]")
                )
        elif subscription_or_none is None:
            fix = f"enroll what gateway compile wrote, put the document into {folder}, or remove the entry"
            problems.append(Problem(str(file), f"{key}.subscription", f"{entry.subscription} has no document", fix))
        elif known is not None and known.source != entry.source:
            fix = f"one digest has one source: remove one of {known.source} and {entry.source}"
            problems.append(Problem(str(file), f"{key}.subscription", "is enrolled for two sources", fix))
        elif known is not None and entry != first[entry.subscription]:
            fix = "keep the one that you mean; of two, neither is taken for right"
            problems.append(Problem(str(file), f"{key}.subscription", "is enrolled twice with different values", fix))
        elif known is None:
            first[entry.subscription] = entry
            mode = max(entry.mode, settings.sources[entry.source].mode, key=MODES.index)  # the stricter wins
            enrolled[entry.subscription] = Enrolled(
                subscription_or_none,
                entry.source,
                entry.installation,
                entry.url_template,
                mode,
                entry.attested,
                entry.repository_id,
            )
    return tuple(enrolled.values()), problems


class EnrollmentFile(Model):
    """A TOML file beside an enrolled document."""

    enrollments: tuple[Enrollment, ...] = ()
