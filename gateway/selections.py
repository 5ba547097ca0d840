"""What a consumer selects under `on:`: triggers of imported connectors, and GitHub families.

Only names and forms are judged here; what a selection comes to is `parts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from gateway import families
from gateway.declarations import Connector
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document
from gateway.structs import Value

ROUTE: Final = "gateway-dispatch"
SELECTORS: Final = ("repos", "orgs", "projects")
# Keys of gh-aw's `on:` that start nothing by themselves (https://github.github.com/gh-aw/reference/triggers/).
_MODIFIERS: Final = frozenset(
    {
        "bots", "github-app", "github-token", "lock-for-agent", "manual-approval", "permissions", "reaction", "roles",
        "skip-bots", "skip-if-match", "skip-if-no-match", "skip-roles", "status-comment", "stop-after",
    },
)  # fmt: skip


class Import(Value):
    """An imported connector and the bindings of its `with`."""

    connector: Connector
    bindings: Mapping[str, Any]
    path: tuple[str | int, ...] = ("imports",)  # where the consumer imports it


@dataclass(slots=True)
class Selection:
    """What a consumer selects of one connector."""

    triggers: list[str] = field(default_factory=list)
    filters: dict[str, Any] = field(default_factory=dict)
    path: tuple[str | int, ...] = ()


def read_selections(
    consumer: Document, imports: Mapping[str, Import], *, unread: bool
) -> tuple[dict[str, Selection], dict[str, Any]]:
    """Split `on` into what is selected of each connector, and the members that select GitHub families."""
    on = consumer.value.get("on")
    if not isinstance(on, dict):
        fix = f"write on: {{{ROUTE}: ...}}"
        raise ConfigError([consumer.problem(("on",), f"selects no {ROUTE}", fix)])
    problems: list[Problem] = []
    selections: dict[str, Selection] = {}
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
    selections: dict[str, Selection],
    github: dict[str, Any],
) -> tuple[list[Problem], list[str]]:
    """Sort what is selected into `selections` and `github`; return the problems, and the names that are neither."""
    if not isinstance(value, dict):
        return [consumer.problem(("on", ROUTE), "is no mapping", "write <connector>: [trigger, ...] under it")], []
    problems: list[Problem] = []
    unknown: list[str] = []
    for key, item in value.items():
        path = ("on", ROUTE, key)
        if key in families.FAMILIES or key in SELECTORS or key == families.SLASH_COMMAND:
            github[key] = item
        elif key not in imports:
            unknown.append(key)
        else:
            problems += _select(consumer, path, item, selections.setdefault(key, Selection(path=path)))
    return problems, unknown


def _unknown(consumer: Document, name: str, imports: Mapping[str, Import]) -> Problem:
    """Say of a name that selects nothing what was probably meant."""
    near = get_close_matches(name, [*imports, *families.FAMILIES, families.SLASH_COMMAND, *SELECTORS], 1, 0.8)
    fix = f"write {near[0]}, if that is meant; else " if near else ""
    fix += "import its declaration from .github/ with uses; vendor a remote one first"
    return consumer.problem(("on", ROUTE, name), "is no GitHub family and no imported connector", fix)


def _select(consumer: Document, path: tuple[str | int, ...], item: Any, selection: Selection) -> list[Problem]:
    """Read `[trigger, ...]` or `{triggers: [...], filters: {...}}`."""
    wanted = item if isinstance(item, dict) else {"triggers": item}
    triggers, filters = wanted.get("triggers"), wanted.get("filters", {})
    unknown = sorted(set(wanted) - {"triggers", "filters"})
    if unknown:
        return [consumer.problem((*path, unknown[0]), "is no member of a selection", "write triggers and filters")]
    if not isinstance(triggers, list) or not is_texts(triggers):
        return [consumer.problem(path, "is no nonempty list of distinct triggers", "write [trigger, ...]")]
    if not isinstance(filters, dict):
        return [consumer.problem((*path, "filters"), "is no mapping", "write collection: [value, ...]")]
    selection.triggers += [name for name in triggers if name not in selection.triggers]
    selection.filters |= filters
    return []


def _qualified(
    consumer: Document, imports: Mapping[str, Import], key: str, value: Any, selections: dict[str, Selection]
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
    selection = selections.setdefault(connector_id, Selection(path=path))
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


def is_texts(value: Any) -> bool:
    """Whether a value is a nonempty list of distinct nonempty texts."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) and item for item in value)
        and len(set(value)) == len(value)
    )
