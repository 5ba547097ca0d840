"""From what is selected to a document's own part: the triggers, grants and filters of one connector.

GitHub's families are a connector that needs no declaration: their selectors are its grants.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway import families
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document
from gateway.lowering import bind, lower_values
from gateway.selections import ROUTE, SELECTORS, Import, Selection, is_texts
from gateway.structs import Value, replace
from gateway.subscriptions import REPOSITORY
from gateway.triggers import Trigger, compile_trigger

_LOGIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})\Z")
_PROJECT: Final = re.compile(r"PVT_[A-Za-z0-9_-]{1,100}\Z")
_SELECTOR_FORMS: Final = {"repos": REPOSITORY, "orgs": _LOGIN, "projects": _PROJECT}
_COLLECTIONS: Final = {"repos": "repositories", "orgs": "organizations", "projects": "projects"}


class Part(Value):
    """One document's own part: its connector's triggers and scope."""

    connector: str
    declaration_digest: str
    triggers: Mapping[str, Any]
    grants: Mapping[str, list[Any]]
    filters: Mapping[str, list[Any]]


def connector_part(consumer: Document, one: Import, selection: Selection) -> Part:
    """Bind and compile what is selected of an imported connector. Raises ConfigError with every problem."""
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
    return Part(connector.id, connector.digest, bound.triggers, bound.grants, filters)


def _other_filter(selected: Mapping[str, Trigger], lacking: Sequence[str]) -> str:
    """Say what to do about a filter that some of the selected triggers do not have."""
    if len(lacking) < len(selected):
        return "select that trigger in a workflow of its own, without the filter"
    common = sorted(set.intersection(*(set(trigger.filters) for trigger in selected.values())))
    granted = "what is granted stands in the import's with"
    return f"use one of {', '.join(common)}; {granted}" if common else f"remove it; {granted}"


def _placed(consumer: Document, one: Import, selection: Selection, problem: Problem) -> Problem:
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


def github_part(consumer: Document, selected: dict[str, Any], origin: str) -> Part:
    """Lower the selected GitHub families under their selectors. Raises ConfigError with every problem."""
    selectors, problems = _selectors(consumer, selected)
    unscoped = not problems  # else a broken selector is the cause
    triggers: dict[str, Any] = {}
    used: set[str] = set()
    for family, item in selected.items():
        if family in SELECTORS:
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
    return Part(families.CONNECTOR, families.digest(), triggers, grants, filters)


def _selectors(consumer: Document, selected: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[Problem]]:
    """Read the shared selectors; `projects` may also stand inside `projects-items`."""
    raw: dict[str, tuple[tuple[str, ...], Any]]
    raw = {name: (("on", ROUTE, name), selected[name]) for name in SELECTORS if name in selected}
    items = selected.get("projects-items")
    if isinstance(items, dict) and "projects" in items:
        raw.setdefault("projects", (("on", ROUTE, "projects-items", "projects"), items["projects"]))
    selectors: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for name, (path, values) in raw.items():
        if not is_texts(values) or not all(_SELECTOR_FORMS[name].match(value) for value in values):
            spelling = {"repos": "owner/name", "orgs": "login", "projects": "PVT_... node id"}[name]
            problems.append(consumer.problem(path, "is no nonempty list of exact values", f"write [{spelling}, ...]"))
        else:
            selectors[name] = values
    return selectors, problems


def _activities(consumer: Document, family: str, item: Any) -> tuple[list[Problem], list[str]]:
    path = ("on", ROUTE, family)
    known = families.FAMILIES[family].activities
    members = {"types", "projects"} if family == "projects-items" else {"types"}
    if not isinstance(item, dict) or set(item) - members or not is_texts(item.get("types")):
        fix = f"write {family}: {{types: [{known[0]}]}}, of {', '.join(known)}"
        return [consumer.problem(path, "is no {types: [activity, ...]}", fix)], []
    unknown = [activity for activity in item["types"] if activity not in known]
    if unknown:
        problem = f"{unknown[0]} is no activity of it"
        return [consumer.problem((*path, "types"), problem, f"use GitHub's spelling: {', '.join(known)}")], []
    return [], item["types"]


def _commands(consumer: Document, item: Any) -> tuple[list[Problem], list[str]]:
    names = item.get("names") if isinstance(item, dict) and set(item) == {"names"} else None
    if isinstance(names, list) and is_texts(names) and all(families.COMMAND.match(name) for name in names):
        return [], names
    path = ("on", ROUTE, families.SLASH_COMMAND)
    return [consumer.problem(path, "is no {names: [name, ...]}", "write names: [NAME], without the slash")], []
