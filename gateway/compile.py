"""The compiler: a consumer workflow and its imports become frozen, digest-bound subscription documents.

A consumer is a Markdown file whose frontmatter selects under `on.gateway-dispatch`
(https://github.github.com/gh-aw/reference/connectors/): imported connectors' triggers, or GitHub families. The same input
gives the same bytes. Nothing is fetched: a remote import has to be vendored first.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gateway import families, files, strict_json
from gateway.declarations import Connector, bind, connector_from, lower_values
from gateway.errors import ConfigError, Problem, Rejection
from gateway.frontmatter import Document, load_frontmatter
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
from gateway.triggers import Trigger, compile_trigger

ROUTE: Final = "gateway-dispatch"
OPT_IN: Final = ".github/workflows/aw.json"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024  # a compiled workflow is a few hundred kilobytes
_SELECTORS: Final = ("repos", "orgs", "projects")
# Keys of gh-aw's `on:` that start nothing by themselves (https://github.github.com/gh-aw/reference/triggers/).
_MODIFIERS: Final = frozenset(
    {
        "bots", "github-app", "github-token", "lock-for-agent", "manual-approval", "permissions", "reaction", "roles",
        "skip-bots", "skip-if-match", "skip-if-no-match", "skip-roles", "status-comment", "stop-after",
    },
)  # fmt: skip
_LOGIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})\Z")
_PROJECT: Final = re.compile(r"PVT_[A-Za-z0-9_-]{1,100}\Z")
_COMMAND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
_SELECTOR_FORMS: Final = {"repos": REPOSITORY, "orgs": _LOGIN, "projects": _PROJECT}
_COLLECTIONS: Final = {"repos": "repositories", "orgs": "organizations", "projects": "projects"}


@dataclass(frozen=True, slots=True)
class Import:
    """An imported connector and the bindings of its `with`."""

    connector: Connector
    bindings: Mapping[str, Any]
    path: tuple[str | int, ...] = ("imports",)  # where the consumer imports it


@dataclass(frozen=True, slots=True)
class Target:
    """What a document is bound to: the repository, the workflow file and the hash of its bytes."""

    repository: str
    workflow: str
    workflow_hash: str
    repository_id: int | None = None
    origin: str = "https://github.com"


@dataclass(slots=True)
class _Selection:
    """What a consumer selects of one connector."""

    triggers: list[str] = field(default_factory=list)
    filters: dict[str, Any] = field(default_factory=dict)
    path: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """One document's own part: its connector's triggers and scope."""

    connector: str
    declaration_digest: str
    triggers: Mapping[str, Any]
    grants: Mapping[str, list[Any]]
    filters: Mapping[str, list[Any]]


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
    document = load_frontmatter(_read(consumer), str(consumer))
    problems = _opt_in_problems(root)
    relative = workflow
    if relative is None:
        lock = consumer.resolve().with_suffix(".lock.yml")
        relative = lock.relative_to(root).as_posix()
    if workflow_hash is None:
        try:
            content = _read(root / relative, inside=root)
            workflow_hash = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if not content.strip():
                problems.append(Problem(str(consumer), "workflow", f"{relative} is empty", "write what is to run"))
        except ConfigError as error:
            text = f"{relative} {error.problems[0].problem}"
            problems.append(Problem(str(consumer), "workflow", text, "compile it, or name one with --workflow"))
            workflow_hash = f"sha256:{'0' * 64}"
    imports, found = _imports(document, root)
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
    parts: list[_Part] = []
    try:
        selections, github = _selections(consumer, by_id, unread=unread)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    for connector_id, selection in sorted(selections.items()):
        try:
            parts.append(_connector_part(consumer, by_id[connector_id], selection))
        except ConfigError as error:
            problems += error.problems
    if github:
        try:
            parts.append(_github_part(consumer, github, target.origin))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(_document(part, target, consumer.file) for part in parts)


def _document(part: _Part, target: Target, file: str) -> dict[str, Any]:
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


# ---- the checked-out repository ---------------------------------------------------------------------------------------


def root_of(consumer: Path) -> Path:
    """Return the repository's root, above the consumer. Raises ConfigError."""
    for folder in consumer.resolve().parents:
        if (folder / ".github").is_dir():
            return folder
    fix = "keep the consumer under a repository's .github/workflows"
    raise ConfigError([Problem(str(consumer), "", "stands in no repository: no folder above it has .github", fix)])


def _read(path: Path, inside: Path | None = None) -> bytes:
    """Read a plain file that stands, links followed, below `inside`. Raises ConfigError."""
    problem = "cannot be read: No such file"
    try:
        if inside is None or path.resolve().is_relative_to(inside.resolve()):
            return files.read(path, MAX_FILE_BYTES)
        problem = "leads out of the repository"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (RuntimeError, ValueError):  # a loop of links, a character that no path can hold
        pass
    raise ConfigError([Problem(str(path), "", problem, "name a readable file")])


def _opt_in_problems(root: Path) -> list[Problem]:
    """Check the repository's opt-in; whoever may write this file consents to dispatches."""
    path = root / OPT_IN
    try:
        settings = strict_json.loads(_read(path, inside=root))
    except ConfigError:
        settings = None
    except Rejection as error:
        return [Problem(str(path), "", f"is no strict JSON ({error.reason})", 'write {"gateway-dispatch": true} in it')]
    return opt_in_problems(settings, str(path))


def opt_in_problems(settings: Any, file: str) -> list[Problem]:
    """Check decoded opt-in settings: `gateway-dispatch` must be exactly true."""
    if isinstance(settings, dict) and settings.get(ROUTE) is True:
        return []
    return [Problem(file, ROUTE, "the repository has not opted in", 'write {"gateway-dispatch": true} in it')]


def _imports(consumer: Document, root: Path) -> tuple[list[Import], list[Problem]]:
    """Load the imports that declare connectors; others are none of the gateway's business."""
    listed = consumer.value.get("imports", [])
    if not isinstance(listed, list):
        return [], [consumer.problem(("imports",), "is no list", "write - uses: PATH entries")]
    imports: list[Import] = []
    problems: list[Problem] = []
    for index, entry in enumerate(listed):
        path = ("imports", index)
        entry_map = {"uses": entry} if isinstance(entry, str) else entry
        if not isinstance(entry_map, dict) or not isinstance(entry_map.get("uses"), str):
            problems.append(consumer.problem(path, "has no uses", "write uses: PATH"))
            continue
        bindings = {} if entry_map.get("with") is None else entry_map["with"]
        if not isinstance(bindings, dict) or set(entry_map) - {"uses", "with"}:
            problems.append(consumer.problem(path, "is no {uses, with}", "write uses: PATH and with: {name: value}"))
            continue
        try:
            document = _imported(consumer, path, entry_map["uses"], root)
            if document is not None and "connectors" in document.value:
                imports.append(Import(connector_from(document), bindings, path))
        except ConfigError as error:
            problems += error.problems
    ids = [one.connector.id for one in imports]
    problems += [
        consumer.problem(("imports",), f"the connector {twice} is imported twice", "keep one of them")
        for twice in sorted({name for name in ids if ids.count(name) > 1})
    ]
    return imports, problems


def _imported(consumer: Document, path: tuple[str | int, ...], uses: str, root: Path) -> Document | None:
    """Read one import from inside `.github/`; None for a remote one, whose connector is then reported as missing."""
    if "@" in uses:
        return None
    inside = (root / ".github").resolve()
    try:
        file = (root / uses).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a character that no path can hold
        file = root
    if not uses.startswith(".github/") or not file.is_relative_to(inside):
        fix = "import a file under .github/ of the same repository"
        raise ConfigError([consumer.problem((*path, "uses"), f"{uses} is not inside .github/", fix)])
    return load_frontmatter(_read(file), str(file))


# ---- the consumer -----------------------------------------------------------------------------------------------------


def _selections(
    consumer: Document, imports: Mapping[str, Import], *, unread: bool
) -> tuple[dict[str, _Selection], dict[str, Any]]:
    """Split `on` into what is selected of each connector, and the members that select GitHub families."""
    on = consumer.value.get("on")
    if not isinstance(on, dict):
        fix = f"write on: {{{ROUTE}: ...}}"
        raise ConfigError([consumer.problem(("on",), f"selects no {ROUTE}", fix)])
    problems: list[Problem] = []
    selections: dict[str, _Selection] = {}
    github: dict[str, Any] = {}
    for key, value in on.items():
        if key == ROUTE:
            found, unknown = _route(consumer, imports, value, selections, github)
            problems += found
            if not unread:
                problems += [_unknown(consumer, name, imports) for name in unknown]
        elif key not in _MODIFIERS or _selectable(imports, key):
            problems += _qualified(consumer, imports, key, value, selections)
    if not selections and not github and not problems and not unread:
        fix = "select a connector's triggers or a GitHub family"
        problems.append(consumer.problem(("on", ROUTE), "selects nothing", fix))
    if problems:
        raise ConfigError(problems)
    return selections, github


def _route(
    consumer: Document,
    imports: Mapping[str, Import],
    value: Any,
    selections: dict[str, _Selection],
    github: dict[str, Any],
) -> tuple[list[Problem], list[str]]:
    """Sort what is selected into `selections` and `github`; return the problems, and the names that are neither."""
    if not isinstance(value, dict):
        return [consumer.problem(("on", ROUTE), "is no mapping", "write <connector>: [trigger, ...] under it")], []
    problems: list[Problem] = []
    unknown: list[str] = []
    for key, item in value.items():
        path = ("on", ROUTE, key)
        if key in families.FAMILIES or key in _SELECTORS or key == families.SLASH_COMMAND:
            github[key] = item
        elif key not in imports:
            unknown.append(key)
        else:
            problems += _select(consumer, path, item, selections.setdefault(key, _Selection(path=path)))
    return problems, unknown


def _unknown(consumer: Document, name: str, imports: Mapping[str, Import]) -> Problem:
    """Say of a name that selects nothing what was probably meant."""
    near = get_close_matches(name, [*imports, *families.FAMILIES, families.SLASH_COMMAND, *_SELECTORS], 1, 0.8)
    fix = f"write {near[0]}, if that is meant; else " if near else ""
    fix += "import its declaration from .github/ with uses; vendor a remote one first"
    return consumer.problem(("on", ROUTE, name), "is no GitHub family and no imported connector", fix)


def _select(consumer: Document, path: tuple[str | int, ...], item: Any, selection: _Selection) -> list[Problem]:
    """Read `[trigger, ...]` or `{triggers: [...], filters: {...}}`."""
    wanted = item if isinstance(item, dict) else {"triggers": item}
    triggers, filters = wanted.get("triggers"), wanted.get("filters", {})
    unknown = sorted(set(wanted) - {"triggers", "filters"})
    if unknown:
        return [consumer.problem((*path, unknown[0]), "is no member of a selection", "write triggers and filters")]
    if not isinstance(triggers, list) or not _is_texts(triggers):
        return [consumer.problem(path, "is no nonempty list of distinct triggers", "write [trigger, ...]")]
    if not isinstance(filters, dict):
        return [consumer.problem((*path, "filters"), "is no mapping", "write collection: [value, ...]")]
    selection.triggers += [name for name in triggers if name not in selection.triggers]
    selection.filters |= filters
    return []


def _qualified(
    consumer: Document, imports: Mapping[str, Import], key: str, value: Any, selections: dict[str, _Selection]
) -> list[Problem]:
    """Read `on.<id>-<trigger>`, which selects the same route; every other trigger excludes the gateway's."""
    path = ("on", key)
    matches = _selectable(imports, key)
    if key in _MODIFIERS:
        fix = f"select it under {ROUTE}, or rename the connector"
        return [consumer.problem(path, "is a key of on: and a trigger of an imported connector", fix)]
    if not matches:
        fix = f"keep {ROUTE} alone, and other triggers in a workflow of their own"
        return [consumer.problem(path, f"is another trigger beside {ROUTE}, which excludes all others", fix)]
    if len(matches) > 1:
        return [consumer.problem(path, "is ambiguous between two connectors", f"select it under {ROUTE}")]
    if value not in (None, {}):
        return [consumer.problem(path, "has options", f"set filters under {ROUTE}.{matches[0][0]}")]
    [(connector_id, trigger)] = matches
    selection = selections.setdefault(connector_id, _Selection(path=path))
    if trigger not in selection.triggers:
        selection.triggers.append(trigger)
    return []


def _selectable(imports: Mapping[str, Import], key: str) -> list[tuple[str, str]]:
    """Return every (connector, trigger) whose qualified name is `key`."""
    return [
        (connector_id, trigger)
        for connector_id, one in imports.items()
        for trigger in one.connector.triggers
        if key == f"{connector_id}-{trigger}"
    ]


def _connector_part(consumer: Document, one: Import, selection: _Selection) -> _Part:
    connector = one.connector
    try:
        bound = bind(connector, one.bindings, selection.triggers, consumer.file)
    except ConfigError as error:
        raise ConfigError([_placed(consumer, one, selection, problem) for problem in error.problems]) from error
    compiled = {name: compile_trigger(name, lowered) for name, lowered in bound.triggers.items()}
    filters: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for collection, values in selection.filters.items():
        path = (*selection.path, "filters", collection)
        lacking = sorted(name for name, trigger in compiled.items() if collection not in trigger.filters)
        if lacking:
            problems.append(
                consumer.problem(path, f"{lacking[0]} has no such filter", _other_filter(compiled, lacking))
            )
            continue
        kinds = {
            form.types.get(trigger.filters[collection], "string")
            for trigger in compiled.values()
            for form in trigger.forms
        }
        try:
            filters[collection] = _filter(values, kinds, bound.grants.get(collection))
        except ValueError as error:
            problems.append(consumer.problem(path, str(error), "filter for exact values within the grant"))
    if problems:
        raise ConfigError(problems)
    return _Part(connector.id, connector.digest, bound.triggers, bound.grants, filters)


def _other_filter(selected: Mapping[str, Trigger], lacking: Sequence[str]) -> str:
    """Say what to do about a filter that some of the selected triggers do not have."""
    if len(lacking) < len(selected):
        return "select that trigger in a workflow of its own, without the filter"
    common = sorted(set.intersection(*(set(trigger.filters) for trigger in selected.values())))
    granted = "what is granted stands in the import's with"
    return f"use one of {', '.join(common)}; {granted}" if common else f"remove it; {granted}"


def _placed(consumer: Document, one: Import, selection: _Selection, problem: Problem) -> Problem:
    """Add the consumer's line to a problem of what it binds or selects."""
    before = f"imports.{one.connector.id}.with."
    if problem.file != consumer.file:
        return problem
    bound = problem.key.startswith(before)
    path = (*one.path, "with", problem.key.removeprefix(before)) if bound else selection.path
    return replace(problem, problem=consumer.problem(path, problem.problem, problem.fix).problem)


def _filter(values: Any, kinds: set[str], grant: list[Any] | None) -> list[Any]:
    """Lower a filter; where its collection is granted too, it can only narrow the grant."""
    lowered = lower_values(values, kinds)
    if grant is not None and not {(type(value), value) for value in lowered} <= {
        (type(value), value) for value in grant
    }:
        raise ValueError("holds a value outside the grant, and filters only narrow")
    return lowered


# ---- GitHub families --------------------------------------------------------------------------------------------------


def _github_part(consumer: Document, selected: dict[str, Any], origin: str) -> _Part:
    selectors, problems = _selectors(consumer, selected)
    unscoped = not problems  # else a broken selector is the cause
    triggers: dict[str, Any] = {}
    used: set[str] = set()
    for family, item in selected.items():
        if family in _SELECTORS:
            continue
        path = ("on", ROUTE, family)
        dimensions = families.scope(family, selectors)
        used.update(dimensions.values())
        if not dimensions and unscoped:
            own = "projects or orgs" if family == "projects-items" else "repos or orgs"
            problems.append(consumer.problem(path, "has no scope", f"set {own} under {ROUTE}"))
        elif not dimensions:
            continue
        elif family == families.SLASH_COMMAND:
            triggers[family] = families.lower_slash_command(selectors, origin)
        else:
            found, activities = _activities(consumer, family, item)
            problems += found
            for activity in activities:
                triggers[families.trigger_name(family, activity)] = families.lower(family, activity, selectors, origin)
    filters: dict[str, list[Any]] = {}
    if families.SLASH_COMMAND in selected:
        found, names = _commands(consumer, selected[families.SLASH_COMMAND])
        problems += found
        filters["commands"] = names
    for selector in selectors:
        if _COLLECTIONS[selector] not in used:
            problems.append(consumer.problem(("on", ROUTE, selector), "scopes no selected family", "remove it"))
    owners = {name.lower() for name in selectors.get("orgs", [])}
    strays = [name for name in selectors.get("repos", []) if owners and name.partition("/")[0].lower() not in owners]
    if strays:
        fix = "grant its owner in orgs too, or leave orgs out: both must hold"
        problems.append(consumer.problem(("on", ROUTE, "repos"), f"{strays[0]} is in none of orgs", fix))
    if problems:
        raise ConfigError(problems)
    grants = {_COLLECTIONS[selector]: values for selector, values in selectors.items()}
    return _Part(families.CONNECTOR, families.digest(), triggers, grants, filters)


def _selectors(consumer: Document, selected: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[Problem]]:
    """Read the shared selectors; `projects` may also stand inside `projects-items`."""
    raw: dict[str, tuple[tuple[str, ...], Any]]
    raw = {name: (("on", ROUTE, name), selected[name]) for name in _SELECTORS if name in selected}
    items = selected.get("projects-items")
    if isinstance(items, dict) and "projects" in items:
        raw.setdefault("projects", (("on", ROUTE, "projects-items", "projects"), items["projects"]))
    selectors: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for name, (path, values) in raw.items():
        if not _is_texts(values) or not all(_SELECTOR_FORMS[name].match(value) for value in values):
            spelling = {"repos": "owner/name", "orgs": "login", "projects": "PVT_... node id"}[name]
            problems.append(consumer.problem(path, "is no nonempty list of exact values", f"write [{spelling}, ...]"))
        else:
            selectors[name] = values
    return selectors, problems


def _activities(consumer: Document, family: str, item: Any) -> tuple[list[Problem], list[str]]:
    path = ("on", ROUTE, family)
    known = families.FAMILIES[family].activities
    members = {"types", "projects"} if family == "projects-items" else {"types"}
    if not isinstance(item, dict) or set(item) - members or not _is_texts(item.get("types")):
        fix = f"write {family}: {{types: [{known[0]}]}}, of {', '.join(known)}"
        return [consumer.problem(path, "is no {types: [activity, ...]}", fix)], []
    unknown = [activity for activity in item["types"] if activity not in known]
    if unknown:
        problem = f"{unknown[0]} is no activity of it"
        return [consumer.problem((*path, "types"), problem, f"use GitHub's spelling: {', '.join(known)}")], []
    return [], item["types"]


def _commands(consumer: Document, item: Any) -> tuple[list[Problem], list[str]]:
    names = item.get("names") if isinstance(item, dict) and set(item) == {"names"} else None
    if isinstance(names, list) and _is_texts(names) and all(_COMMAND.match(name) for name in names):
        return [], names
    path = ("on", ROUTE, families.SLASH_COMMAND)
    return [consumer.problem(path, "is no {names: [name, ...]}", "write names: [NAME], without the slash")], []


def _is_texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) and item for item in value)
        and len(set(value)) == len(value)
    )


__all__ = ["Import", "Target", "compile_documents", "compile_file", "encode", "opt_in_problems", "root_of"]
