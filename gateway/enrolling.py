"""Enrolling and revoking: what an operator's commands write into the subscriptions folder.

Whatever instant a command is ended at, each entry that a reader finds has its document:

1. Files are replaced whole. A disk that is full leaves the old one.
2. A new document comes before its entry; one that takes the place of an enrolled document leaves that aside, as
   `NAME.replaced.json`, until the entry names the new one. Revoking takes the entry away first.
3. Two commands at once would each write what it read before the other wrote: one waits for the other.

`gateway.toml` is never written.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.items import Array

from gateway.configuration import Base, EnrollmentFile, read_text
from gateway.enrollments import Document, Entry, documents, entries
from gateway.settings import Enrollment
from gateway.structs import Value
from gateway.subscriptions import Enrolled, Subscription, activation_problem

ASIDE: Final = ".replaced.json"
_OPTIONS: Final = ("mode", "url_template", "attested", "repository_id")


class Refused(Exception):  # noqa: N818 (an answer: no)
    """The enrollment is refused; the message says why and what to do."""


class Done(Value):
    """What `enroll` did: the files, and the digest that the new one took the place of."""

    digest: str
    document: Path
    entry: Path
    replaced: str | None
    known: bool  # the digest was enrolled from this source already
    changed: bool  # its entry says something else now
    beside: Path | None = None  # another document that has the name which was asked for


def check(
    base: Base,
    listed: Sequence[Entry],
    subscription: Subscription,
    source: str,
    installation: int,
    options: Mapping[str, Any],
) -> Enrolled:
    """Say what would be enrolled beside the entries `listed`. Raises Refused where it could not be active."""
    elsewhere = [
        entry
        for entry in listed
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


def known_options(listed: Sequence[Entry], digest: str) -> dict[str, Any]:
    """Return the options of the digest's entry, so that enrolling again keeps what is not said anew."""
    for entry in listed:
        if entry.enrollment.subscription == digest:
            return {name: getattr(entry.enrollment, name) for name in _OPTIONS}
    return {}


def write(
    base: Base,
    data: bytes,
    stem: str,
    subscription: Subscription,
    source: str,
    installation: int,
    given: Mapping[str, Any],
    first: Callable[[str | None], object] = lambda _replaced: None,
) -> Done:
    """Put a document's bytes into the folder and its entry beside it; doing so again changes nothing.

    `stem` is the name that it should have there; options that are not `given` stay as they are. `first` is called with the
    digest that is replaced before anything is written; what it raises keeps all as it is. Raises Refused.
    """
    base.folder.mkdir(parents=True, exist_ok=True)
    with _alone(base.folder):
        listed = entries(base)
        options = known_options(listed, subscription.digest)
        options |= {name: value for name, value in given.items() if value is not None}
        check(base, listed, subscription, source, installation, options)
        wanted = Enrollment(
            subscription=subscription.digest,
            source=source,
            installation=installation,
            **{name: value for name, value in options.items() if value is not None},
        )
        return _write(base, listed, data, stem, subscription, wanted, first)


def _write(
    base: Base,
    listed: Sequence[Entry],
    data: bytes,
    stem: str,
    subscription: Subscription,
    wanted: Enrollment,
    first: Callable[[str | None], object],
) -> Done:
    present = [one for one in listed if one.enrollment.subscription == subscription.digest]
    target, replaced = _target(base, [] if present else listed, stem, subscription)
    main = next((one for one in present if one.file == base.file), None)
    if main is not None and main.enrollment != wanted:
        raise Refused(
            f"its entry stands in {base.file} with other values; change it there, or remove it and enroll again"
        )
    named = [one.file for one in listed if one.enrollment.subscription == replaced]
    if base.file in named:
        raise Refused(
            f"{target} holds {replaced}, whose entry stands in {base.file}; remove it there, or give this document "
            "another file name"
        )
    first(replaced)
    before = target.read_bytes() if target.exists() else None
    aside = target.with_name(target.stem + ASIDE)
    if before != data:
        if named and before is not None:
            replace_file(aside, before)
        try:
            replace_file(target, data)
        except OSError:
            aside.unlink(missing_ok=True)  # the target is what it was
            raise
    where = base.file if main is not None else present[0].file if present else target.with_suffix(".toml")
    if main is None:
        replace_file(where, _with_entry(where, wanted, replaced).encode())
    for file in sorted({*named, *(one.file for one in present)} - {where, base.file}):
        _without_entries(file, {subscription.digest, replaced})
    aside.unlink(missing_ok=True)
    changed = any(one.enrollment != wanted for one in present)
    own = base.folder / f"{stem}.json"
    beside = None if present or target == own or not own.exists() else own
    return Done(subscription.digest, target, where, replaced, bool(present), changed, beside)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other command writes into the folder; the system ends the claim of one that is killed."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _target(base: Base, listed: Sequence[Entry], stem: str, subscription: Subscription) -> tuple[Path, str | None]:
    """Choose the document's file, and say which digest it takes the place of there.

    Where its digest stands already; else where an older one of its kind and workflow does; else the first of its names that
    is free. Among `listed` is an entry that was left without its document.
    """
    found = [one for one in documents(base) if not one.file.name.endswith(ASIDE)]
    for one in found:
        if one.subscription is not None and one.subscription.digest == subscription.digest:
            return one.file, _stale_entry(listed, one.file, found)
    held = {one.file: one.subscription for one in found if one.subscription is not None}
    names = [base.folder / f"{name}.json" for name in _names(stem, subscription)]
    for target in names:
        if target in held and _kind(held[target]) == _kind(subscription):
            return target, held[target].digest
    # what does not load and says that it is another repository's is no document that was changed in place
    others = {one.file for one in found if one.repository not in (None, subscription.repository)}
    for target in names:
        if target not in held and target not in others:
            return target, _stale_entry(listed, target, found)
    raise Refused(
        f"{', '.join(one.name for one in names)} in {base.folder} are other documents; give this one another file name"
    )


def _names(stem: str, one: Subscription) -> tuple[str, str, str]:
    """Its own name; with its workflow's hash, beside what it follows in a rollover or beside another's; with all of its kind."""
    kind = hashlib.sha256("\n".join(_kind(one)).encode()).hexdigest()
    return stem, f"{stem}-{one.workflow_hash[7:15]}", f"{stem}-{kind[:8]}"


def _kind(one: Subscription) -> tuple[str, ...]:
    return one.repository, one.workflow, one.connector, one.workflow_hash


def _stale_entry(listed: Sequence[Entry], target: Path, found: Sequence[Document]) -> str | None:
    """Return the digest that the entry beside a document names where it is another: the document was changed in place."""
    beside = target.with_suffix(".toml")
    named = [one.enrollment.subscription for one in listed if one.file == beside]
    held = {one.subscription.digest for one in found if one.subscription is not None}
    return named[0] if len(named) == 1 and named[0] not in held else None


def _with_entry(file: Path, wanted: Enrollment, replaced: str | None) -> str:
    """Return the file's text with the entry set: in place of its own or of the replaced one, else as the last."""
    document = tomlkit.parse(read_text(file) if file.exists() else "")
    if not document.get("enrollments"):
        document["enrollments"] = tomlkit.aot()
    listed: Any = document["enrollments"]
    table = _table(wanted, inline=isinstance(listed, Array))
    named = [n for n, one in enumerate(listed) if one.get("subscription") in {wanted.subscription, replaced}]
    named.sort(key=lambda n: listed[n]["subscription"] != wanted.subscription)
    if not named:
        listed.append(table)
    else:
        own = listed[named[0]]
        for name in [name for name in own if name not in table]:
            del own[name]
        own.update(table)
        for again in sorted(named[1:], reverse=True):
            del listed[again]
    written = tomlkit.dumps(document)
    entries_ = EnrollmentFile.model_validate(tomllib.loads(written)).enrollments
    assert wanted in entries_  # a surprise of the TOML library must not reach the disk
    return written


def _without_entries(file: Path, digests: set[str | None]) -> None:
    """Remove the digests' entries from a file of the folder, and the file with its last one."""
    document = tomlkit.parse(read_text(file))
    listed: Any = document["enrollments"]
    gone = [n for n, one in enumerate(listed) if one["subscription"] in digests]
    if len(gone) == len(listed):
        file.unlink()
        return
    for at in reversed(gone):
        del listed[at]
    replace_file(file, tomlkit.dumps(document).encode())


def _table(wanted: Enrollment, *, inline: bool) -> Any:
    table = tomlkit.inline_table() if inline else tomlkit.table()
    values = wanted.model_dump(exclude_defaults=True)
    for name in Enrollment.model_fields:
        if name in values:
            table[name] = values[name]
    return table


def find(enrolled: Iterable[str], digest: str) -> str:
    """Return the whole digest of the enrolled one that is given whole or by a beginning. Raises Refused."""
    matching = sorted({one for one in enrolled if one.startswith(digest)})
    if not matching:
        raise Refused(f"{digest} is not enrolled; see: gateway subscriptions")
    if len(matching) > 1:
        raise Refused(
            f"{digest} is the beginning of {len(matching)} enrolled digests, write more: {', '.join(matching)}"
        )
    return matching[0]


def revoke(base: Base, digest: str, *, first: Callable[[], None] = lambda: None) -> list[Path]:
    """Remove the digest's entry and the document that stood in the folder for it; return the files touched. Raises Refused.

    `first` is called before anything is removed; what it raises keeps all as it is. It is not where another command was
    faster.
    """
    if any(one.subscription == digest for one in base.settings.enrollments):
        raise Refused(f"its entry stands in {base.file}, which is yours to change: remove it there")
    with _alone(base.folder):
        touched = sorted({entry.file for entry in entries(base) if entry.enrollment.subscription == digest})
        if not touched:
            raise Refused(f"{digest} is not enrolled; see: gateway subscriptions")
        first()
        for file in touched:
            _without_entries(file, {digest})
        for one in documents(base):
            if one.claimed == digest:
                one.file.unlink()
                touched.append(one.file)
    return touched


def replace_file(target: Path, data: bytes) -> None:
    """Write a file whole or not at all, and so that it is still there after a power cut."""
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
        _sync(target.parent)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, and nothing was changed", str(target)) from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
