# ruff: noqa: TRY004 (a wrong type in a declaration is a wrong value: one exception, reported with its field)
"""Import inputs: what a consumer binds under `with`, checked against `import-schema`, and put where a declaration names it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.errors import ConfigError, Problem

_INPUT: Final = re.compile(r"\$\{\{\s*github\.aw\.import-inputs\.([A-Za-z][A-Za-z0-9_-]{0,62})(\[0\])?\s*\}\}")
EXPRESSION: Final = "${{"
_PIECE: Final = re.compile(r"[A-Za-z0-9._~-]+\Z")
PLACEHOLDER: Final = "..."  # what `gateway connectors config` and `gateway profiles show` leave to fill in


def inputs_in(value: Any) -> set[str]:
    """Collect the names of the import inputs that a value mentions."""
    if isinstance(value, str):
        return {match.group(1) for match in _INPUT.finditer(value)}
    if isinstance(value, dict):
        return set().union(*map(inputs_in, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(inputs_in, value)) if value else set()
    return set()


def check_input(spec: Mapping[str, Any], value: Any) -> None:
    """Check one binding against its schema. Raises ValueError."""
    kind = spec["type"]
    if kind == "array":
        if not isinstance(value, list):
            raise ValueError("must be a list")
        items = spec.get("items", {"type": "string"})
        for item in value:
            check_input({"type": "string", **items}, item)
        if len({(type(item), item) for item in value}) != len(value):
            raise ValueError("holds one value twice")
    elif not _is_of(value, kind):
        raise ValueError(f"must be of type {kind}" + (": quote it" if kind == "string" else ""))
    elif value == "":
        raise ValueError("is an empty text, which grants nothing")
    elif value == PLACEHOLDER:
        raise ValueError("is still the placeholder ...")
    if "enum" in spec and value not in spec["enum"]:
        raise ValueError("is none of the values that the schema lists")


def _is_of(value: Any, kind: str) -> bool:
    """Tell whether `value` has a declared primitive type; `true` is no integer and 7.0 is none either."""
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, int) if kind == "integer" else isinstance(value, (int, float))


def bound_inputs(schema: Mapping[str, Any], with_: Mapping[str, Any], file: str, key: str) -> dict[str, Any]:
    """Join bindings and defaults; a default may name another input. Raises ConfigError with the consumer's `file` and `key`."""
    problems = [
        Problem(file, f"{key}.{name}", "is no input of the connector", one_of(schema))
        for name in sorted(set(with_) - set(schema))
    ]
    inputs: dict[str, Any] = {}
    for name, spec in schema.items():
        if name not in with_:
            if "default" in spec:
                inputs[name] = spec["default"]
            elif spec.get("required") is True:
                problems.append(Problem(file, f"{key}.{name}", "is required", "bind it under with"))
            continue
        try:
            check_input(spec, with_[name])
        except ValueError as error:
            problems.append(Problem(file, f"{key}.{name}", str(error), "mend the value"))
        inputs[name] = with_[name]
    if problems:
        raise ConfigError(problems)
    for name, value in list(inputs.items()):
        if name not in with_ and isinstance(value, str) and inputs_in(value):
            try:
                inputs[name] = substitute(value, inputs)
            except ValueError:
                del inputs[name]  # the input that the default is made of is not given: neither is this one
    return inputs


def one_of(names: Iterable[str]) -> str:
    """Return the fix for a name that is none of these."""
    return f"use one of {', '.join(sorted(names))}" if names else "remove it"


def substitute(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Replace the import inputs in a value: a whole scalar keeps its type, inside text it must be text."""
    if isinstance(value, dict):
        return {key: substitute(item, inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, inputs) for item in value]
    if not isinstance(value, str):
        return value
    whole = _INPUT.fullmatch(value)
    if whole:
        return _input(whole, inputs)
    if EXPRESSION in _INPUT.sub("", value):
        raise ValueError(f"{value} holds another expression than github.aw.import-inputs.NAME; nothing else is frozen")
    return _INPUT.sub(lambda match: _text_input(match, inputs), value)


def _input(match: re.Match[str], inputs: Mapping[str, Any]) -> Any:
    name, single = match.group(1), match.group(2)
    if name not in inputs:
        raise ValueError(f"the input {name} is not bound; bind it under with")
    value = inputs[name]
    if single:
        if not isinstance(value, list) or len(value) != 1:
            raise ValueError(f"the input {name} must have exactly one value; make one subscription each")
        return value[0]
    return value


def _text_input(match: re.Match[str], inputs: Mapping[str, Any]) -> str:
    value = _input(match, inputs)
    if not isinstance(value, str):
        raise ValueError(f"the input {match.group(1)} stands inside text and is no text")
    if set(value) & set("{}"):
        raise ValueError(f"the input {match.group(1)} holds a brace, which would be read as a name")
    if "/" in match.string[: match.start()] and (_PIECE.match(value) is None or value in {".", ".."}):
        raise ValueError(
            f"the input {match.group(1)} stands for a piece of a URL and may hold letters, digits, . _ ~ and -"
        )
    return value
