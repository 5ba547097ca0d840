"""The compiler: a consumer workflow and its imports become frozen, digest-bound subscription documents.

A consumer is a Markdown file whose frontmatter selects under `on.gateway-dispatch`
(https://github.github.com/gh-aw/reference/connectors/): imported connectors' triggers, or GitHub families. The same input
gives the same bytes. Nothing is fetched: a remote import has to be vendored first.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.checkout import opt_in_problems, read, read_imports, root_of
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document, load_frontmatter
from gateway.parts import Part, connector_part, github_part
from gateway.selections import Import, read_selections
from gateway.structs import Value
from gateway.subscriptions import (
    HASH,
    MAX_BYTES,
    PREDICATES,
    PROJECTION,
    REPOSITORY,
    VERSION,
    WORKFLOW,
    event_type_for,
    load_subscription,
    seal,
)


class Target(Value):
    """What a document is bound to: the repository, the workflow file and the hash of its bytes."""

    repository: str
    workflow: str
    workflow_hash: str
    repository_id: int | None = None
    origin: str = "https://github.com"


def encode(document: Mapping[str, Any]) -> bytes:
    """Write a document as the file that is enrolled: indented, keys sorted, one final line end."""
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def compile_file(
    consumer: Path,
    repository: str,
    *,
    repository_id: int | None = None,
    workflow: str | None = None,
    workflow_hash: str | None = None,
    origin: str = "https://github.com",
    warn: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], ...]:
    """Compile a consumer of a checked-out repository: one document a connector. Raises ConfigError, every problem at once.

    `warn` is told what is no problem and should be known.
    """
    root = root_of(consumer)
    document = load_frontmatter(read(consumer), str(consumer))
    problems = opt_in_problems(root)
    relative = workflow
    if relative is None:
        lock = consumer.resolve().with_suffix(".lock.yml")
        relative = lock.relative_to(root).as_posix()
    if workflow_hash is None:
        try:
            content = read(root / relative, inside=root)
            workflow_hash = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if not content.strip():
                problems.append(Problem(str(consumer), "workflow", f"{relative} is empty", "write what is to run"))
        except ConfigError as error:
            text = f"{relative} {error.problems[0].problem}"
            problems.append(Problem(str(consumer), "workflow", text, "compile it, or name one with --workflow"))
            workflow_hash = f"sha256:{'0' * 64}"
    imports, found = read_imports(document, root)
    problems += found
    target = Target(repository, relative, workflow_hash, repository_id, origin)
    try:
        documents = compile_documents(document, imports, target, unread=bool(found))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    if problems:
        raise ConfigError(problems)
    for one in imports:
        if one.connector.experimental and any(document["connector"] == one.connector.id for document in documents):
            warn(f"{one.connector.file}: {one.connector.id} is experimental; its triggers may change")
    return documents


def compile_documents(
    consumer: Document, imports: Sequence[Import], target: Target, *, unread: bool = False
) -> tuple[dict[str, Any], ...]:
    """Compile a decoded consumer with its decoded imports; pure. Raises ConfigError with every problem found.

    `unread`: an import could not be read, so that an unknown connector is no problem of its own.
    """
    problems = _target_problems(consumer.file, target)
    by_id = {one.connector.id: one for one in imports}
    parts: list[Part] = []
    try:
        selections, github = read_selections(consumer, by_id, unread=unread)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    for connector_id, selection in sorted(selections.items()):
        try:
            parts.append(connector_part(consumer, by_id[connector_id], selection))
        except ConfigError as error:
            problems += error.problems
    if github:
        try:
            parts.append(github_part(consumer, github, target.origin))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(_document(part, target, consumer.file) for part in parts)


def _document(part: Part, target: Target, file: str) -> dict[str, Any]:
    """Freeze one part, and load it again: what is compiled is what will be accepted."""
    content: dict[str, Any] = {
        "version": VERSION,
        "projection": PROJECTION,
        "predicates": PREDICATES,
        "repository": target.repository,
        "workflow": target.workflow,
        "workflow_hash": target.workflow_hash,
        "event_type": event_type_for(target.repository, target.workflow),
        "connector": part.connector,
        "declaration_digest": part.declaration_digest,
        "triggers": part.triggers,
        "grants": part.grants,
        "filters": part.filters,
    }
    if target.repository_id is not None:
        content["repository_id"] = target.repository_id
    try:
        document = seal(content)
    except ValueError as error:
        fix = "use integers up to 2^53 and texts without lone surrogates"
        raise ConfigError([Problem(file, part.connector, f"has no canonical form: {error}", fix)]) from error
    if len(encode(document)) > MAX_BYTES:
        fix = "select fewer triggers or grants"
        raise ConfigError([Problem(file, part.connector, f"compiles to more than {MAX_BYTES} bytes", fix)])
    load_subscription(encode(document), f"{file} ({part.connector})")
    return document


def _target_problems(file: str, target: Target) -> list[Problem]:
    checks = (
        ("--repo", REPOSITORY.match(target.repository), "is no OWNER/NAME", "write it as on GitHub"),
        ("--workflow", WORKFLOW.match(target.workflow), "is no file of .github/workflows", "name a .yml file there"),
        ("--workflow-hash", HASH.match(target.workflow_hash), "is no digest", "write sha256: and 64 hex digits"),
        (
            "--repository-id",
            target.repository_id is None or target.repository_id > 0,
            "is no positive integer",
            "read it with gh api repos/OWNER/NAME --jq .id",
        ),
        (
            "--origin",
            re.fullmatch(r"https://[a-z0-9.-]{1,253}(:[0-9]{1,5})?", target.origin),
            "is no https origin",
            "write https:// and the host in lower case",
        ),
    )
    return [Problem(file, key, problem, fix) for key, good, problem, fix in checks if not good]
