"""Enrollments: the operator's act that binds a document's digest to a source and an installation, as files.

A document stands as `NAME.json` in the subscriptions folder and its entry as `NAME.toml` beside it; entries may stand in
`gateway.toml` too. `gateway.enrolling` writes them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway import files, strict_json
from gateway.configuration import Base, enrollments, folder_files, read_entries
from gateway.errors import ConfigError, Rejection, printable
from gateway.profiles import Source
from gateway.reach import unreachable
from gateway.settings import Enrollment
from gateway.structs import Value, asdict, replace
from gateway.subscriptions import MAX_BYTES, Enrolled, Subscription, build_index, load_subscription
from gateway.suspension import state_of


class Entry(Value):
    """One `[[enrollments]]` entry and the file that it stands in."""

    file: Path
    enrollment: Enrollment


class Document(Value):
    """One file of the folder: the loaded document, or why it does not load."""

    file: Path
    subscription: Subscription | None
    problem: str | None
    claimed: str | None = None  # the digest that the file says it has
    repository: str | None = None


class Row(Value):
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
    warning: str | None = None  # it is active, and no delivery can match

    def to_json(self) -> dict[str, Any]:
        """The row as scripts read it."""
        return asdict(self)


# ---- reading ----------------------------------------------------------------------------------------------------------


def documents(base: Base) -> list[Document]:
    """Read every document of the folder, what does not load with its problem."""
    return [_document(file) for file in folder_files(base.folder, ".json")]


def _document(file: Path) -> Document:
    try:
        data = files.read(file, MAX_BYTES)
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
    return tuple(printable(one) if isinstance(one, str) else None for one in (digest, repository))  # type: ignore[return-value]


def entries(base: Base) -> list[Entry]:
    """Read the entries of `gateway.toml` and of the folder. Raises ConfigError where a file of the folder is broken."""
    found = [Entry(base.file, one) for one in base.settings.enrollments]
    for file in folder_files(base.folder, ".toml"):
        found += [Entry(file, one) for one in read_entries(file)]
    return found


def rows(base: Base, suspended: Mapping[str, str]) -> list[Row]:
    """List every document and every entry once. `suspended` maps digests to reasons, as the store knows them."""
    found = documents(base)
    by_digest = {one.subscription.digest: one for one in found if one.subscription is not None}
    enrolled, _ = enrollments(base)
    index = build_index(enrolled, base.sources)
    inactive = {one.subscription.digest: reason for one, reason in index.inactive}
    states = {one.subscription.digest: one for one in enrolled}
    listed: list[Row] = []
    seen: dict[str, Enrollment] = {}
    for entry in entries(base):
        digest = entry.enrollment.subscription
        first = seen.setdefault(digest, entry.enrollment)
        if first is not entry.enrollment and first == entry.enrollment:
            continue  # the same entry twice means the same
        source = base.sources.get(entry.enrollment.source)
        row = _row(entry, found, by_digest.get(digest), states.get(digest), source, inactive, suspended)
        if first != entry.enrollment and first.source == entry.enrollment.source:
            reason = f"is enrolled twice with different values, here in {entry.file.name}; keep the one that you mean"
            row = replace(row, state="mismatched", reason=reason)
        listed.append(row)
    named = {row.file for row in listed if row.state == "mismatched"}
    listed += [_unenrolled(one) for one in found if one.claimed not in seen and one.file.name not in named]
    return listed


def _row(
    entry: Entry,
    found: list[Document],
    document: Document | None,
    enrolled: Enrolled | None,
    source: Source | None,
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
        unreachable(enrolled, source) if enrolled is not None and digest not in inactive else None,
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
