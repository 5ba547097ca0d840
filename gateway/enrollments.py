"""Enrollments: the operator's act that binds a document's digest to a source and an installation, as files.

A document stands as `NAME.json` in the subscriptions folder and its entry as `NAME.toml` beside it; entries may stand in
`gateway.toml` too, which is never written here. Files are replaced whole, the document before its entry, so that a
reader sees the old or the new one.
"""

import contextlib
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
from tomlkit.items import AoT

from gateway import strict_json
from gateway.errors import ConfigError, Problem, Rejection
from gateway.settings import Base, Enrollment, EnrollmentFile, enrollments
from gateway.subscriptions import Enrolled, Subscription, activation_problem, build_index, load_subscription
from gateway.suspension import state_of

Noting = Callable[[str | None], None]
_OPTIONS = ("mode", "url_template", "attested", "repository_id")


class Refused(Exception):  # noqa: N818 (an answer: no)
    """The enrollment is refused; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One `[[enrollments]]` entry and the file that it stands in."""

    file: Path
    enrollment: Enrollment


@dataclass(frozen=True, slots=True)
class Document:
    """One file of the folder: the loaded document, or why it does not load."""

    file: Path
    subscription: Subscription | None
    problem: str | None
    claimed: str | None = None  # the digest that the file says it has
    repository: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What `gateway subscriptions` says of one digest: `active`, `suspended` or `mismatched`, and why."""

    digest: str | None
    source: str | None
    repository: str | None
    state: str
    reason: str | None
    file: str
    connector: str | None = None
    workflow: str | None = None
    installation: int | None = None
    attested: bool = False

    def to_json(self) -> dict[str, Any]:
        """The row as scripts read it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Done:
    """What `enroll` did: the files, and the digest that the new one took the place of."""

    digest: str
    document: Path
    entry: Path
    replaced: str | None
    known: bool  # the digest was enrolled from this source already


# ---- reading ----------------------------------------------------------------------------------------------------------


def documents(base: Base) -> list[Document]:
    """Read every document of the folder, what does not load with its problem."""
    return [_document(file) for file in sorted(base.folder.glob("*.json"))]


def _document(file: Path) -> Document:
    try:
        data = file.read_bytes()
    except OSError as error:
        return Document(file, None, f"cannot be read: {error.strerror}")
    try:
        subscription = load_subscription(data, str(file))
    except ConfigError as error:
        reason = "; ".join(f"{problem.key or 'document'} {problem.problem}" for problem in error.problems)
        return Document(file, None, reason, *_claims(data))
    return Document(file, subscription, None, subscription.digest, subscription.repository)


def _claims(data: bytes) -> tuple[str | None, str | None]:
    """Return digest and repository as a broken document states them, for the listing alone."""
    try:
        stated = strict_json.loads(data)
    except Rejection:
        return None, None
    if not isinstance(stated, dict):
        return None, None
    digest, repository = stated.get("digest"), stated.get("repository")
    return (digest if isinstance(digest, str) else None), (repository if isinstance(repository, str) else None)


def entries(base: Base) -> list[Entry]:
    """Read the entries of `gateway.toml` and of the folder. Raises ConfigError where a file of the folder is broken."""
    found = [Entry(base.file, one) for one in base.settings.enrollments]
    for file in sorted(base.folder.glob("*.toml")):
        found += [Entry(file, one) for one in _entries_of(file)]
    return found


def _entries_of(file: Path) -> tuple[Enrollment, ...]:
    try:
        return EnrollmentFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).enrollments
    except (OSError, ValueError) as error:  # broken UTF-8, broken TOML and wrong members are ValueErrors
        fix = "repair the file, or remove it and enroll again"
        raise ConfigError([Problem(str(file), "", f"holds no enrollments: {error}", fix)]) from error


def rows(base: Base, suspended: Mapping[str, str]) -> list[Row]:
    """List every document and every entry once. `suspended` maps digests to reasons, as the store knows them."""
    found = documents(base)
    by_digest = {one.subscription.digest: one for one in found if one.subscription is not None}
    enrolled, _ = enrollments(base)
    index = build_index(enrolled, base.sources)
    inactive = {one.subscription.digest: reason for one, reason in index.inactive}
    states = {one.subscription.digest: one for one in enrolled}
    listed: list[Row] = []
    seen: set[str] = set()
    for entry in entries(base):
        digest = entry.enrollment.subscription
        if digest in seen and digest in states and states[digest].source == entry.enrollment.source:
            continue  # the same entry twice means the same
        seen.add(digest)
        listed.append(_row(entry, found, by_digest.get(digest), states.get(digest), inactive, suspended))
    named = {row.file for row in listed if row.state == "mismatched"}
    listed += [_unenrolled(one) for one in found if one.claimed not in seen and one.file.name not in named]
    return listed


def _row(
    entry: Entry,
    found: list[Document],
    document: Document | None,
    enrolled: Enrolled | None,
    inactive: Mapping[str, str],
    suspended: Mapping[str, str],
) -> Row:
    one = entry.enrollment
    if document is None or document.subscription is None:
        beside = next((d for d in found if one.subscription == d.claimed), None)
        beside = beside or next((d for d in found if d.file.stem == entry.file.stem), None)
        return Row(
            one.subscription,
            one.source,
            beside.repository if beside else None,
            "mismatched",
            _missing(beside),
            beside.file.name if beside else entry.file.name,
            installation=one.installation,
        )
    subscription, digest = document.subscription, one.subscription
    if enrolled is None:
        state, reason = "mismatched", f"no source is named {one.source}"
    elif enrolled.source != one.source:
        state, reason = "mismatched", f"is enrolled already from the source {enrolled.source}"
    elif digest in inactive:
        state, reason = "mismatched", inactive[digest]
    elif digest in suspended:
        state, reason = state_of(suspended[digest]), suspended[digest]
    else:
        state, reason = "active", None
    return Row(
        digest,
        one.source,
        subscription.repository,
        state,
        reason,
        document.file.name,
        subscription.connector,
        subscription.workflow,
        one.installation,
        one.attested,
    )


def _missing(beside: Document | None) -> str:
    if beside is None:
        return "no document has this digest"
    if beside.problem is not None:
        return f"{beside.file.name}: {beside.problem}"
    return f"{beside.file.name} has changed and is {beside.claimed} now; enroll it to accept that"


def _unenrolled(one: Document) -> Row:
    reason = one.problem or "is not enrolled"
    connector = one.subscription.connector if one.subscription else None
    workflow = one.subscription.workflow if one.subscription else None
    return Row(one.claimed, None, one.repository, "mismatched", reason, one.file.name, connector, workflow)


# ---- writing ----------------------------------------------------------------------------------------------------------


def check(
    base: Base, subscription: Subscription, source: str, installation: int, options: Mapping[str, Any]
) -> Enrolled:
    """Say what would be enrolled. Raises Refused where it could not be active."""
    elsewhere = [
        entry
        for entry in entries(base)
        if entry.enrollment.subscription == subscription.digest and entry.enrollment.source != source
    ]
    if elsewhere:
        other = elsewhere[0]
        raise Refused(
            f"{subscription.digest} is enrolled from the source {other.enrollment.source} in {other.file}, and one digest "
            f"has one source. Revoke it there first: gateway revoke {subscription.digest}"
        )
    enrolled = Enrolled(subscription, source, installation, options.get("url_template"))
    problem = activation_problem(enrolled, base.sources[source])
    if problem is not None:
        raise Refused(f"it could not be active: {problem}")
    return enrolled


def known_options(base: Base, digest: str) -> dict[str, Any]:
    """Return the options of the digest's entry, so that enrolling again keeps what is not said anew."""
    for entry in entries(base):
        if entry.enrollment.subscription == digest:
            return {name: getattr(entry.enrollment, name) for name in _OPTIONS}
    return {}


def write(
    base: Base,
    file: Path,
    subscription: Subscription,
    source: str,
    installation: int,
    options: Mapping[str, Any],
    *,
    first: Noting = lambda _replaced: None,
) -> Done:
    """Put the document into the folder and its entry beside it; doing so again changes nothing. Raises Refused.

    `first` is called with the digest that is replaced before anything is written; what it raises keeps all as it is.
    """
    base.folder.mkdir(parents=True, exist_ok=True)
    target, replaced = _target(base, file, subscription)
    wanted = Enrollment(
        subscription=subscription.digest,
        source=source,
        installation=installation,
        **{name: value for name, value in options.items() if value is not None},
    )
    present = [one for one in entries(base) if one.enrollment.subscription == subscription.digest]
    main = next((one for one in present if one.file == base.file), None)
    if main is not None and main.enrollment != wanted:
        raise Refused(
            f"its entry stands in {base.file} with other values; change it there, or remove it and enroll again"
        )
    first(replaced)
    if file.resolve() != target.resolve() and not _same(file, target):
        _replace(target, file.read_bytes())
    where = base.file if main is not None else present[0].file if present else target.with_suffix(".toml")
    if main is None:
        _replace(where, _with_entry(where, wanted, replaced).encode())
    return Done(subscription.digest, target, where, replaced, bool(present))


def _target(base: Base, file: Path, subscription: Subscription) -> tuple[Path, str | None]:
    """Choose the document's file: where its digest stands already, else its own name, which may hold an older one of its kind."""
    found = documents(base)
    for one in found:
        if one.subscription is not None and one.subscription.digest == subscription.digest:
            return one.file, _stale_entry(base, one.file, subscription.digest)
    target = base.folder / (file.stem + ".json")
    older = next((one for one in found if one.file == target), None)
    if older is None or older.subscription is None:
        return target, _stale_entry(base, target, subscription.digest)
    before = older.subscription
    if (before.repository, before.workflow, before.connector) != (
        subscription.repository,
        subscription.workflow,
        subscription.connector,
    ):
        raise Refused(
            f"{target} is the document of {before.connector} for {before.workflow} of {before.repository}; "
            "give this one another file name"
        )
    if (
        before.workflow_hash != subscription.workflow_hash
    ):  # a rollover: the old one goes on until the workflow is merged
        return base.folder / f"{file.stem}-{subscription.workflow_hash[7:15]}.json", None
    return target, before.digest


def _stale_entry(base: Base, target: Path, digest: str) -> str | None:
    """Return the digest that the entry beside a document names where it is another: the document was changed in place."""
    beside = target.with_suffix(".toml")
    others = [one.enrollment.subscription for one in entries(base) if one.file == beside]
    held = {one.subscription.digest for one in documents(base) if one.subscription is not None}
    return next((other for other in others if other != digest and other not in held), None)


def _same(file: Path, target: Path) -> bool:
    return target.exists() and target.read_bytes() == file.read_bytes()


def _with_entry(file: Path, wanted: Enrollment, replaced: str | None) -> str:
    """Return the file's text with the entry set: in place of its own or of the replaced one, else as the last."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    document = tomlkit.parse(text)
    table = _table(wanted)
    listed = document.get("enrollments")
    if not isinstance(listed, AoT) or not listed:
        listed = tomlkit.aot()
        listed.append(table)
        document["enrollments"] = listed
    else:
        at = next(
            (n for n, one in enumerate(listed) if one.get("subscription") in {wanted.subscription, replaced}), None
        )
        if at is None:
            listed.append(table)
        else:
            for name in [name for name in listed[at] if name not in table]:
                del listed[at][name]
            listed[at].update(table)
    written = tomlkit.dumps(document)
    again = EnrollmentFile.model_validate(tomllib.loads(written))
    assert wanted in again.enrollments  # a surprise of the TOML library must not reach the disk
    return written


def _table(wanted: Enrollment) -> Any:
    table = tomlkit.table()
    values = wanted.model_dump(exclude_defaults=True)
    for name in Enrollment.model_fields:
        if name in values:
            table[name] = values[name]
    return table


def find(base: Base, digest: str) -> str:
    """Return the whole digest for one that is given whole or by a beginning that is unique. Raises Refused."""
    text = digest if digest.startswith("sha256:") else f"sha256:{digest}"
    known = {entry.enrollment.subscription for entry in entries(base)}
    matching = sorted(one for one in known if one.startswith(text))
    if len(matching) != 1 or len(text) < len("sha256:") + 8:
        raise Refused(
            f"{digest} is {'not enrolled' if len(matching) != 1 else 'too short'}; see: gateway subscriptions"
        )
    return matching[0]


def revoke(base: Base, digest: str, *, first: Callable[[], None] = lambda: None) -> list[Path]:
    """Remove the digest's entry and the document that stood in the folder for it; return the files touched. Raises Refused.

    `first` is called before anything is removed; what it raises keeps all as it is.
    """
    if any(one.subscription == digest for one in base.settings.enrollments):
        raise Refused(f"its entry stands in {base.file}, which is yours to change: remove it there")
    first()
    touched: list[Path] = []
    for file in sorted({entry.file for entry in entries(base) if entry.enrollment.subscription == digest}):
        document = tomlkit.parse(file.read_text(encoding="utf-8"))
        listed = document["enrollments"]
        assert isinstance(listed, list)
        kept = [one for one in listed if one["subscription"] != digest]
        if kept:
            for at in reversed([n for n, one in enumerate(listed) if one["subscription"] == digest]):
                del listed[at]
            _replace(file, tomlkit.dumps(document).encode())
        else:
            file.unlink()
        touched.append(file)
    for one in documents(base):
        if one.claimed == digest:
            one.file.unlink()
            touched.append(one.file)
    return touched


def _replace(target: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with _temporary(target) as (handle, name):
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[int, str]]:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=target.parent)
    try:
        yield handle, name
    finally:
        Path(name).unlink(missing_ok=True)
