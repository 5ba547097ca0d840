"""What a process runs on: the settings file with all that it names, loaded and checked together.

Every problem of the file, its profiles, secret references and enrolled documents is collected and raised at once as
ConfigError.
"""

import hashlib
import os
import re
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import (
    ValidationError,
)

from gateway import files
from gateway.environment import data_folder
from gateway.errors import ConfigError, Problem
from gateway.profiles import Profile, Source, load_profiles, profile_names
from gateway.salvage import concerns, place_of, readable
from gateway.settings import (
    MODES,
    NAME,
    Enrollment,
    Model,
    Settings,
)
from gateway.settings_checks import NOTIFYING, place_problems, secret_problems, source_problems, unknown_profile
from gateway.structs import Value, field
from gateway.subscriptions import MAX_BYTES, Enrolled, Index, Subscription, build_index, load_subscription

MAX_TOML_BYTES = 16 * 1024 * 1024  # entries of some hundred thousand subscriptions
READS, WRITTEN_S = 4, 0.05  # a folder that somebody writes while we read it is read so often at most, after so long
# Each file's name, times of change, size and inode. Who sets the one time back, or gives a permission, changes the other.
Stamp = tuple[tuple[str, int, int, int, int], ...]
MOVING: Stamp = (("", 0, 0, 0, 0),)  # as it was read, the folder was at no time


class Base(Value):
    """The settings and sources, without what is enrolled."""

    file: Path
    settings: Settings
    profiles: Mapping[str, Profile]
    sources: Mapping[str, Source]

    @property
    def folder(self) -> Path:
        """The folder of the enrolled documents and of the enrollments beside them."""
        return self.file.parent / self.settings.subscriptions.path


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
    try:
        stamp, documents, enrolled, found = _folder(base, {} if before is None else before.documents)
    except ConfigError as error:
        told = any(problem.key == "subscriptions.path" for problem in problems)
        raise ConfigError(problems if told else [*problems, *error.problems]) from None
    problems += found
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
    _, _, enrolled, problems = _folder(base, {})
    return enrolled, problems


def folder_stamp(folder: Path) -> Stamp:
    """What tells one state of the subscriptions folder from another, without reading a file."""
    found = []
    try:
        with os.scandir(folder) as entries:  # a tenth of a glob's cost
            for entry in entries:
                if entry.name.endswith((".json", ".toml")):
                    with suppress(OSError):  # gone between the two calls: the next look sees it
                        status = entry.stat()
                        times = (status.st_mtime_ns, status.st_ctime_ns)
                        found.append((entry.name, *times, status.st_size, status.st_ino))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:  # a state too; whoever reads the folder says what is wrong
        return ((type(error).__name__, 0, 0, 0, 0),)
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
            problems.append(unknown_profile(path, f"{key}.profile", source.profile, profile_names(shipped)))
            continue
        problems += source_problems(path, key, source, profile)
        sources[name] = Source(
            name,
            profile,
            dict(source.identity),
            frozenset(source.self_),
            source.origin,
            source.freshness_s,
        )
    problems += place_problems(path, settings)
    if secrets:
        problems += secret_problems(path, settings, sources, profiles)
    keys = [problem.key for problem in told]
    return Base(path, settings, profiles, sources), [*told, *(p for p in problems if not concerns(p.key, keys))]


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


def _folder(
    base: Base, known: Mapping[bytes, Subscription]
) -> tuple[Stamp, dict[bytes, Subscription], tuple[Enrolled, ...], list[Problem]]:
    """Read what is enrolled, as the folder was at one time: between two files that we read a command may write both."""
    for left in reversed(range(READS)):
        stamp = folder_stamp(base.folder)
        documents, broken = _documents(base.folder, known)
        enrolled, found = _enrolled(base, documents)
        if folder_stamp(base.folder) == stamp:
            break
        stamp, known = MOVING, documents
        if left:
            time.sleep(WRITTEN_S)
    return stamp, documents, enrolled, broken + found


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
