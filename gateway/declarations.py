# ruff: noqa: TRY004, TRY301 (a wrong type in a declaration is a wrong value: one exception, reported with its field)
"""Connector declarations: a connector's Markdown, and what of it an import selects, lowered to plain JSON.

The fields of `connectors.<id>` follow the connector specification of GitHub Agentic Workflows
(https://github.github.com/gh-aw/reference/connectors/, sections 2 and 8). A declaration goes through three forms:

1. `load_connector` reads and checks the Markdown; nothing is chosen yet.
2. `bind` takes the import's `with`, substitutes `${{ github.aw.import-inputs.x }}` in the selected triggers and lowers
   them to plain JSON with exact grants.
3. `gateway.triggers` compiles that JSON, here to refuse early and again wherever a subscription is loaded.

`literals` says what an import input stands for where a URL template spells it out: `{workspace: organizations}` a granted
collection, which must then have exactly one value; `{organization: "@installation"}` one value of the source's identity;
`{site: null}` nothing but itself. An undeclared one stands for the first of `resources` unless the template fills that.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gateway import canonical
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document, load_frontmatter
from gateway.triggers import (
    NAME,
    PRIMITIVES,
    TRIGGER_FIELDS,
    VARIANT_FIELDS,
    check_fields,
    check_list,
    check_literals,
    check_names,
    check_profiles,
    compile_trigger,
)

RESERVED: Final = frozenset(
    {
        "issue", "pull-request", "discussion", "issue-comment", "pull-request-comment", "discussion-comment",
        "commit-comment", "pull-request-review", "pull-request-review-comment", "pull-request-review-thread",
        "projects-items", "dependabot-alert", "code-scanning-alert", "secret-scanning-alert", "slash-command",
        "repos", "orgs", "projects", "github",
    },
)  # fmt: skip
MAX_VALUE_CHARACTERS: Final = 1024  # what an envelope's filter value holds

_CONNECTOR_FIELDS: Final = frozenset(
    {
        "experimental",
        "docs",
        "endpoints",
        "credentials",
        "resources",
        "triggers",
        "tools",
        "mcp-servers",
        "safe-outputs",
    },
)
_CAPABILITIES: Final = ("triggers", "tools", "mcp-servers", "safe-outputs")
_INPUT_FIELDS: Final = frozenset({"type", "description", "default", "required", "items", "enum"})
_INPUT: Final = re.compile(r"\$\{\{\s*github\.aw\.import-inputs\.([A-Za-z][A-Za-z0-9_-]{0,62})(\[0\])?\s*\}\}")
_EXPRESSION: Final = "${{"
_PIECE: Final = re.compile(r"[A-Za-z0-9._~-]+\Z")
_DECIMAL: Final = re.compile(r"(0|-?[1-9][0-9]{0,18})\Z")
PLACEHOLDER: Final = "..."  # what `gateway connectors config` and `gateway profiles show` leave to fill in
_MAX_SAFE: Final = 2**53 - 1  # RFC 8785 numbers are binary64: a larger integer has no canonical form


# ---- the connector file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector as declared: `triggers` and `resources` still hold `${{ ... }}`; `digest` covers what they say."""

    id: str
    file: str
    triggers: Mapping[str, Any]
    resources: Mapping[str, Any]
    import_schema: Mapping[str, Any]
    digest: str
    document: Document
    experimental: bool

    def problem(self, path: tuple[str | int, ...], problem: str, fix: str) -> Problem:
        """Make a Problem for a key under `connectors.<id>`."""
        return self.document.problem(("connectors", self.id, *path), problem, fix)


@dataclass(frozen=True, slots=True)
class Bound:
    """The selected triggers of a connector, lowered, with the grants that they use."""

    triggers: Mapping[str, Mapping[str, Any]]
    grants: Mapping[str, list[Any]]


def load_connector(text: str | bytes, file: str) -> Connector:
    """Read a connector's Markdown. Raises ConfigError with every problem found."""
    return connector_from(load_frontmatter(text, file))


def connector_from(document: Document) -> Connector:
    """Take the one connector out of a decoded frontmatter. Raises ConfigError with every problem found."""
    connectors = document.value.get("connectors")
    if not isinstance(connectors, dict) or len(connectors) != 1:
        raise ConfigError(
            [document.problem(("connectors",), "is no mapping with one connector", "declare exactly one")]
        )
    [(connector_id, declaration)] = connectors.items()
    path = ("connectors", connector_id)
    problems: list[Problem] = []
    if not NAME.match(connector_id):
        problems.append(document.problem(path, "an id matches ^[a-z][a-z0-9-]{0,62}$", "rename the connector"))
    if connector_id in RESERVED:
        problems.append(document.problem(path, "is a reserved name of the gateway", "rename the connector"))
    if not isinstance(declaration, dict):
        raise ConfigError([*problems, document.problem(path, "is no mapping", "declare its fields")])
    problems += [
        document.problem((*path, key), "is an unknown field", f"use one of {', '.join(sorted(_CONNECTOR_FIELDS))}")
        for key in sorted(set(declaration) - _CONNECTOR_FIELDS)
    ]
    schema = document.value.get("import-schema", {})
    triggers = declaration.get("triggers", {})
    resources = declaration.get("resources", {})
    problems += _schema_problems(document, schema)
    problems += _section_problems(document, path, declaration)
    if problems:
        raise ConfigError(problems)
    digest, experimental = _digest(document, connector_id), declaration.get("experimental", False)
    connector = Connector(connector_id, document.file, triggers, resources, schema, digest, document, experimental)
    problems = [problem for name in triggers for problem in _trigger_problems(connector, name)]
    if problems:
        raise ConfigError(problems)
    return connector


def _digest(document: Document, connector_id: str) -> str:
    try:
        return canonical.digest(
            {"connectors": document.value["connectors"], "import-schema": document.value.get("import-schema", {})},
        )
    except ValueError as error:
        raise ConfigError(
            [
                document.problem(
                    ("connectors", connector_id), f"has no canonical form: {error}", "use numbers up to 2^53"
                )
            ],
        ) from error


def _section_problems(document: Document, path: tuple[str, ...], declaration: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for field in ("resources", *_CAPABILITIES):
        section = declaration.get(field, {})
        if not isinstance(section, dict):
            return [document.problem((*path, field), "is no mapping", "write name: value")]
        problems += [
            document.problem((*path, field, key), "a name matches ^[a-z][a-z0-9-]{0,62}$", "rename it")
            for key in section
            if not NAME.match(key)
        ]
    if not any(declaration.get(field) for field in _CAPABILITIES):
        problems.append(document.problem(path, "declares nothing", f"declare one of {', '.join(_CAPABILITIES)}"))
    if not isinstance(declaration.get("experimental", False), bool):
        problems.append(document.problem((*path, "experimental"), "is no boolean", "write true or false"))
    docs = declaration.get("docs", [])
    if not isinstance(docs, list) or not all(map(_is_address, docs)) or len(set(docs)) != len(docs):
        fix = "list each address once, without user information or expressions"
        problems.append(document.problem((*path, "docs"), "is no list of https addresses", fix))
    return problems


def _is_address(value: Any) -> bool:
    """Tell whether a value names public documentation: never fetched, it says where the declaration comes from."""
    return isinstance(value, str) and re.fullmatch(r"https://[^/?#@\s{}]+([/?#][^\s{}]*)?", value) is not None


def _schema_problems(document: Document, schema: Any) -> list[Problem]:
    """Check `import-schema`: which types there are and that defaults have them."""
    if not isinstance(schema, dict):
        return [document.problem(("import-schema",), "is no mapping", "write name: {type: ...}")]
    problems = []
    for name, spec in schema.items():
        path = ("import-schema", name)
        try:
            check_fields(spec, _INPUT_FIELDS, "input")
            if spec.get("type") not in (*PRIMITIVES, "array"):
                raise ValueError(f"type: is none of array, {', '.join(PRIMITIVES)}")
            items = spec.get("items", {"type": "string"})
            check_fields(items, {"type", "description", "enum"}, "items")
            if items.get("type", "string") not in PRIMITIVES:
                raise ValueError("items.type: is no primitive type")
            for listed in (spec, items):
                check_list(listed.get("enum", []), "enum")
            if "default" in spec:
                _check_input(spec, spec["default"])
        except ValueError as error:
            problems.append(document.problem(path, str(error), "see the connector reference on import-schema"))
    return problems


def _trigger_problems(connector: Connector, name: str) -> list[Problem]:
    """Check what needs no inputs: the fields, and that every input which is named is declared."""
    trigger = connector.triggers[name]
    path = ("triggers", name)
    try:
        check_fields(trigger, TRIGGER_FIELDS, "trigger")
        for field in ("verificationProfile", "nativeEvents", "resourceOrigins"):
            if not trigger.get(field):
                raise ValueError(f"{field}: is missing or empty")
        for variant in check_list(trigger.get("variants", []), "variants"):
            check_fields(variant, VARIANT_FIELDS, "variant")
        for collection in check_names(trigger.get("resources", {}), "resources").values():
            if collection not in connector.resources:
                raise ValueError(f"resources: {collection} is no collection under the connector's resources")
    except ValueError as error:
        return [_field_problem(connector, name, str(error), "mend the declaration")]
    return [
        connector.problem(path, f"names the input {used}, which import-schema does not have", "declare it")
        for used in sorted(_inputs_in(trigger) - set(connector.import_schema))
    ]


def _field_problem(connector: Connector, name: str, text: str, fix: str) -> Problem:
    """Make a Problem of a trigger whose text begins with the field that it is about, at that field's place."""
    trigger = connector.triggers[name]
    field = text.partition(":")[0].partition(".")[0]
    known = field in TRIGGER_FIELDS or (isinstance(trigger, Mapping) and field in trigger)
    return connector.problem(("triggers", name, field) if known else ("triggers", name), text, fix)


def _inputs_in(value: Any) -> set[str]:
    """Collect the names of the import inputs that a value mentions."""
    if isinstance(value, str):
        return {match.group(1) for match in _INPUT.finditer(value)}
    if isinstance(value, dict):
        return set().union(*map(_inputs_in, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_inputs_in, value)) if value else set()
    return set()


# ---- inputs -----------------------------------------------------------------------------------------------------------


def _check_input(spec: Mapping[str, Any], value: Any) -> None:
    """Check one binding against its schema. Raises ValueError."""
    kind = spec["type"]
    if kind == "array":
        if not isinstance(value, list):
            raise ValueError("must be a list")
        items = spec.get("items", {"type": "string"})
        for item in value:
            _check_input({"type": "string", **items}, item)
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


def _inputs(connector: Connector, with_: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Join bindings and defaults; a default may name another input. Raises ConfigError naming the consumer's file."""
    schema = connector.import_schema
    problems = [
        Problem(file, f"imports.{connector.id}.with.{name}", "is no input of the connector", _known(schema))
        for name in sorted(set(with_) - set(schema))
    ]
    inputs: dict[str, Any] = {}
    for name, spec in schema.items():
        key = f"imports.{connector.id}.with.{name}"
        if name not in with_:
            if "default" in spec:
                inputs[name] = spec["default"]
            elif spec.get("required") is True:
                problems.append(Problem(file, key, "is required", "bind it under with"))
            continue
        try:
            _check_input(spec, with_[name])
        except ValueError as error:
            problems.append(Problem(file, key, str(error), "mend the value"))
        inputs[name] = with_[name]
    if problems:
        raise ConfigError(problems)
    for name, value in list(inputs.items()):
        if name not in with_ and isinstance(value, str) and _inputs_in(value):
            try:
                inputs[name] = _substitute(value, inputs)
            except ValueError:
                del inputs[name]  # the input that the default is made of is not given: neither is this one
    return inputs


def _known(names: Iterable[str]) -> str:
    return f"use one of {', '.join(sorted(names))}" if names else "remove it"


def _substitute(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Replace the import inputs in a value: a whole scalar keeps its type, inside text it must be text."""
    if isinstance(value, dict):
        return {key: _substitute(item, inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, inputs) for item in value]
    if not isinstance(value, str):
        return value
    whole = _INPUT.fullmatch(value)
    if whole:
        return _input(whole, inputs)
    if _EXPRESSION in _INPUT.sub("", value):
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


# ---- lowering ---------------------------------------------------------------------------------------------------------


def bind(connector: Connector, with_: Mapping[str, Any], selected: Sequence[str], file: str) -> Bound:
    """Lower the selected triggers under the bindings of a consumer's import. Raises ConfigError with every problem."""
    inputs = _inputs(connector, with_, file)
    problems: list[Problem] = []
    lowered: dict[str, Mapping[str, Any]] = {}
    kinds: dict[str, set[str]] = {}
    for name in selected:
        if name not in connector.triggers:
            key = f"on.gateway-dispatch.{connector.id}"
            problems.append(Problem(file, key, f"{name} is no trigger of it", _known(connector.triggers)))
            continue
        try:
            lowered[name] = lower_trigger(connector.triggers[name], inputs)
            trigger = compile_trigger(name, lowered[name])
        except ValueError as error:
            problems.append(_field_problem(connector, name, str(error), "mend the declaration or its with"))
            continue
        for resource, collection in trigger.resources.items():
            kinds.setdefault(collection, set()).update(form.types.get(resource, "string") for form in trigger.forms)
    grants: dict[str, list[Any]] = {}
    for collection, types in kinds.items():
        try:
            grants[collection] = lower_values(_substitute(connector.resources[collection], inputs), types)
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
    rest: dict[str, Any] = _substitute({key: value for key, value in declared.items() if key != "urlShapes"}, inputs)
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
    return [_substitute(shape, inputs) for shape in check_list(shapes, "urlShapes") if _inputs_in(shape) <= set(inputs)]


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
        for name in sorted(_inputs_in(template) - set(known)):
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
    if _EXPRESSION in value:
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
