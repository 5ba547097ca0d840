# ruff: noqa: TRY301 (a wrong type in a declaration is a wrong value: one exception, reported with its field)
"""Connector declarations: a connector's Markdown, read and checked.

The fields of `connectors.<id>` follow the connector specification of GitHub Agentic Workflows
(https://github.github.com/gh-aw/reference/connectors/, sections 2 and 8). A declaration goes through three forms:

1. `load_connector`, here, reads and checks the Markdown; nothing is chosen yet.
2. `gateway.lowering.bind` takes the import's `with`, substitutes `${{ github.aw.import-inputs.x }}` in the selected triggers
   and lowers them to plain JSON with exact grants.
3. `gateway.triggers` compiles that JSON, here to refuse early and again wherever a subscription is loaded.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway import canonical
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document, load_frontmatter
from gateway.inputs import check_input, inputs_in
from gateway.structs import Value
from gateway.triggers import (
    NAME,
    PRIMITIVES,
    TRIGGER_FIELDS,
    VARIANT_FIELDS,
    check_fields,
    check_list,
    check_names,
)

RESERVED: Final = frozenset(
    {
        "issue", "pull-request", "discussion", "issue-comment", "pull-request-comment", "discussion-comment",
        "commit-comment", "pull-request-review", "pull-request-review-comment", "pull-request-review-thread",
        "projects-items", "dependabot-alert", "code-scanning-alert", "secret-scanning-alert", "slash-command",
        "repos", "orgs", "projects", "github",
    },
)  # fmt: skip

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


# ---- the connector file -----------------------------------------------------------------------------------------------


class Connector(Value):
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
                check_input(spec, spec["default"])
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
        return [field_problem(connector, name, str(error), "mend the declaration")]
    return [
        connector.problem(path, f"names the input {used}, which import-schema does not have", "declare it")
        for used in sorted(inputs_in(trigger) - set(connector.import_schema))
    ]


def field_problem(connector: Connector, name: str, text: str, fix: str) -> Problem:
    """Make a Problem of a trigger whose text begins with the field that it is about, at that field's place."""
    trigger = connector.triggers[name]
    field = text.partition(":")[0].partition(".")[0]
    known = field in TRIGGER_FIELDS or (isinstance(trigger, Mapping) and field in trigger)
    return connector.problem(("triggers", name, field) if known else ("triggers", name), text, fix)
