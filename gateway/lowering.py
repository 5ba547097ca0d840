"""Lowering: the triggers that an import selects, under its bindings, to plain JSON with exact grants.

`literals` says what an import input stands for where a URL template spells it out: `{workspace: organizations}` a granted
collection, which must then have exactly one value; `{organization: "@installation"}` one value of the source's identity;
`{site: null}` nothing but itself. An undeclared one stands for the first of `resources` unless the template fills that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.declarations import Connector, field_problem
from gateway.errors import ConfigError, Problem
from gateway.inputs import EXPRESSION, bound_inputs, inputs_in, one_of, substitute
from gateway.structs import Value
from gateway.triggers import check_list, check_literals, check_profiles, compile_trigger

MAX_VALUE_CHARACTERS: Final = 1024  # what an envelope's filter value holds
_DECIMAL: Final = re.compile(r"(0|-?[1-9][0-9]{0,18})\Z")
_MAX_SAFE: Final = 2**53 - 1  # RFC 8785 numbers are binary64: a larger integer has no canonical form


class Bound(Value):
    """The selected triggers of a connector, lowered, with the grants that they use."""

    triggers: Mapping[str, Mapping[str, Any]]
    grants: Mapping[str, list[Any]]


def bind(connector: Connector, with_: Mapping[str, Any], selected: Sequence[str], file: str) -> Bound:
    """Lower the selected triggers under the bindings of a consumer's import. Raises ConfigError with every problem."""
    inputs = bound_inputs(connector.import_schema, with_, file, f"imports.{connector.id}.with")
    problems: list[Problem] = []
    lowered: dict[str, Mapping[str, Any]] = {}
    kinds: dict[str, set[str]] = {}
    for name in selected:
        if name not in connector.triggers:
            key = f"on.gateway-dispatch.{connector.id}"
            problems.append(Problem(file, key, f"{name} is no trigger of it", one_of(connector.triggers)))
            continue
        try:
            lowered[name] = lower_trigger(connector.triggers[name], inputs)
            trigger = compile_trigger(name, lowered[name])
        except ValueError as error:
            problems.append(field_problem(connector, name, str(error), "mend the declaration or its with"))
            continue
        for resource, collection in trigger.resources.items():
            kinds.setdefault(collection, set()).update(form.types.get(resource, "string") for form in trigger.forms)
    grants: dict[str, list[Any]] = {}
    for collection, types in kinds.items():
        try:
            grants[collection] = lower_values(substitute(connector.resources[collection], inputs), types)
        except ValueError as error:
            key = f"imports.{connector.id}.with.{collection}"
            problems.append(Problem(file, key, str(error), "grant exact values under with"))
    if not problems:
        problems = [
            Problem(file, f"imports.{connector.id}.with.{literals}", text, "make one subscription each")
            for name, trigger in lowered.items()
            for literals, text in _crowded(trigger, grants)
        ]
    if problems:
        raise ConfigError(problems)
    return Bound(lowered, grants)


def lower_trigger(declared: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Substitute inputs in one declared trigger and bring it into its one lowered spelling. Raises ValueError."""
    declared = dict(declared)
    literals = _bound_literals(declared)
    shapes = {"urlShapes": _given(declared["urlShapes"], inputs)} if "urlShapes" in declared else {}
    rest: dict[str, Any] = substitute({key: value for key, value in declared.items() if key != "urlShapes"}, inputs)
    lowered = rest | shapes
    lowered["verificationProfile"] = check_profiles(lowered.get("verificationProfile"))
    reviewed = declared["resourceOrigins"]
    lowered["resourceOrigins"] = [
        text if isinstance(reviewed, list) and text in reviewed else _based_origin(text)
        for text in check_list(lowered["resourceOrigins"], "resourceOrigins")
    ]
    if literals:
        lowered["literals"] = literals
    for part in [lowered, *lowered.get("variants", [])]:
        _lower_part(part)
    return lowered


def _lower_part(part: dict[str, Any]) -> None:
    """Write `extract` as a list and take the URL out of `normalize`, in a trigger or a variant."""
    if isinstance(part.get("extract"), dict):
        part["extract"] = [part["extract"]]
    normalize = part.get("normalize")
    if isinstance(normalize, dict) and "url" in normalize:
        sent = normalize["url"]
        part["url"] = [{"from": sent}] if isinstance(sent, str) else sent
        part["normalize"] = {key: value for key, value in normalize.items() if key != "url"}


def _given(shapes: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Substitute in `urlShapes`; one that needs an input which is not given is left out."""
    return [substitute(shape, inputs) for shape in check_list(shapes, "urlShapes") if inputs_in(shape) <= set(inputs)]


def _based_origin(text: Any) -> Any:
    """Take the origin of an input that may carry a context path (Jira Data Center, a GitLab relative URL root)."""
    if not isinstance(text, str):
        return text
    parts = urlsplit(text)
    if parts.query or parts.fragment or not parts.scheme:
        raise ValueError("resourceOrigins: an input is no https origin")
    return f"{parts.scheme}://{parts.netloc}"


def _bound_literals(declared: Mapping[str, Any]) -> dict[str, str | None]:
    """Say for every input that the URL template spells out what it stands for (see the module's docstring)."""
    parts = [declared, *declared.get("variants", [])]
    templates = [part["canonicalUrl"] for part in parts if isinstance(part.get("canonicalUrl"), str)]
    known = check_literals(declared.get("literals", {}))
    bound: dict[str, str | None] = dict(known)
    resources = declared.get("resources", {})
    for template in templates:
        for name in sorted(inputs_in(template) - set(known)):
            first = next(iter(resources), None)
            if first is None or re.search(rf"\{{\+?{re.escape(first)}[|}}]", template):
                bound[name] = None
            else:
                bound[name] = resources[first]
    return bound


def _crowded(trigger: Mapping[str, Any], grants: Mapping[str, list[Any]]) -> list[tuple[str, str]]:
    """Find literals that stand for a collection with more than one value: one literal, one tenant."""
    return [
        (collection, f"the URL spells out {name}, which is one of {collection}, but that grants several values")
        for name, collection in trigger.get("literals", {}).items()
        if collection is not None and collection in grants and len(set(map(str, grants[collection]))) != 1
    ]


def lower_values(values: Any, kinds: set[str]) -> list[Any]:
    """Lower the values of a grant or a filter to the declared types, in the order given. Raises ValueError."""
    listed = [values] if isinstance(values, str) else check_list(values, "the grant")
    if not listed:
        raise ValueError("is empty, and an empty grant never matches")
    return [lowered for value in listed for lowered in _lowered(value, kinds)]


def _lowered(value: Any, kinds: set[str]) -> list[Any]:
    if not isinstance(value, str) or not value:
        raise ValueError("holds a value that is no text; quote it")
    if len(value) > MAX_VALUE_CHARACTERS:
        raise ValueError(f"holds a value of more than {MAX_VALUE_CHARACTERS} characters")
    if "*" in value:
        raise ValueError("holds a *; there are no wildcards")
    if EXPRESSION in value:
        raise ValueError("holds an expression, which nobody evaluates here; write the value")
    lowered: list[Any] = []
    for kind in sorted(kinds):
        if kind == "string":
            lowered.append(value)
        elif kind == "integer":
            if not _DECIMAL.match(value) or abs(int(value)) > _MAX_SAFE:
                raise ValueError("holds a value that is no canonical decimal integer, which its type is")
            lowered.append(int(value))
        else:
            raise ValueError(f"its type {kind} cannot be granted; use string or integer")
    return lowered
