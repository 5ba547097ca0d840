# ruff: noqa: TRY004, TRY301 (a wrong type in a declaration is a wrong value: one exception, reported with its field)
"""Connector declarations: what native evidence means, read from Markdown and frozen into compiled triggers.

The fields of `connectors.<id>` and of a trigger follow the connector specification of GitHub Agentic Workflows
(https://github.github.com/gh-aw/reference/connectors/, sections 2 and 8). Ours are `extract`, `canonicalUrl`, `urlShapes` and
`literals`. A declaration goes through three forms:

1. `load_connector` reads and checks the Markdown; nothing is chosen yet.
2. `bind` takes the import's `with`, substitutes `${{ github.aw.import-inputs.x }}` in the selected triggers and lowers
   them to plain JSON with exact grants.
3. `compile_trigger` turns one lowered trigger into the form that matching reads. It is what a subscription is loaded
   with, so it checks everything again and trusts no earlier step.

`literals` says what an import input stands for where a URL template spells it out: `{workspace: organizations}` a granted
collection, which must then have exactly one value; `{organization: "@installation"}` one value of the source's identity;
`{site: null}` nothing but itself. An undeclared one stands for the first of `resources` unless the template fills that.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from gateway import canonical, pointers
from gateway.canonical import Extraction, Template
from gateway.errors import ConfigError, Problem
from gateway.frontmatter import Document, load_frontmatter
from gateway.predicates import Predicate, compile_predicate

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
RESERVED: Final = frozenset(
    {
        "issue", "pull-request", "discussion", "issue-comment", "pull-request-comment", "discussion-comment",
        "commit-comment", "pull-request-review", "pull-request-review-comment", "pull-request-review-thread",
        "projects-items", "dependabot-alert", "code-scanning-alert", "secret-scanning-alert", "slash-command",
        "repos", "orgs", "projects", "github",
    },
)  # fmt: skip
MAX_VALUE_CHARACTERS: Final = 1024  # what an envelope's filter value holds
PRIMITIVES: Final = ("string", "integer", "number", "boolean")
FIRST_TOKEN: Final = "first-token:"  # noqa: S105 (no secret): normalize reference (GitHub families alone): the `/name` that a comment begins with

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
_VARIANT_FIELDS: Final = frozenset({"match", "when", "extract", "normalize", "types", "canonicalUrl", "urlShapes"})
_TRIGGER_FIELDS: Final = _VARIANT_FIELDS | {
    "verificationProfile", "nativeEvents", "resources", "filters", "variants", "resourceOrigins", "literals",
}  # fmt: skip
_LOWERED_FIELDS: Final = _TRIGGER_FIELDS | {"url"}
_INPUT_FIELDS: Final = frozenset({"type", "description", "default", "required", "items", "enum"})
_INPUT: Final = re.compile(r"\$\{\{\s*github\.aw\.import-inputs\.([A-Za-z][A-Za-z0-9_-]{0,62})(\[0\])?\s*\}\}")
_DECIMAL: Final = re.compile(r"(0|-?[1-9][0-9]{0,18})\Z")
_MAX_SAFE: Final = 2**53 - 1  # RFC 8785 numbers are binary64: a larger integer has no canonical form


# ---- the compiled form ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentUrl:
    """A URL that the provider may send: where it stands and, where it is not the canonical one, its own template.

    Without `reference`, the template built from other evidence must, where it can be filled, give the canonical URL too.
    """

    reference: str | None
    template: Template | None


@dataclass(frozen=True, slots=True)
class Form:
    """One payload shape of a trigger: its base fields with one variant laid over them."""

    match: tuple[tuple[str, tuple[str, ...], Any], ...]
    when: tuple[Predicate, ...]
    extracts: tuple[tuple[str, Extraction], ...]
    normalize: Mapping[str, str]
    urls: tuple[SentUrl, ...]
    types: Mapping[str, str]
    template: Template | None
    shapes: tuple[Template, ...]

    def reference(self, name: str) -> str:
        """Return what `name` is read from: a pointer, a fact, or the text that an extraction takes apart."""
        if name in self.normalize:
            return self.normalize[name]
        return next((source for source, pattern in self.extracts if name in pattern.names), name)


@dataclass(frozen=True, slots=True)
class Trigger:
    """One compiled trigger. `needed` holds the names without which it never matches, `forms` at least one shape."""

    name: str
    profiles: tuple[str, ...]
    native_events: tuple[str, ...]
    forms: tuple[Form, ...]
    resources: Mapping[str, str]
    filters: Mapping[str, str]
    origins: frozenset[str]
    literals: Mapping[str, str | None]

    @property
    def facts(self) -> frozenset[str]:
        """The facts, without `@`, that any form reads; a profile that does not establish them all cannot carry it."""
        references = {
            reference
            for form in self.forms
            for reference in (
                *form.normalize.values(),
                *(sent.reference for sent in form.urls if sent.reference is not None),
                *(source for source, _ in form.extracts),
            )
        }
        named = {reference[1:] for reference in references if reference.startswith("@")}
        return frozenset(named.union(*(predicate.facts for form in self.forms for predicate in form.when)))

    @property
    def needs_url_template(self) -> bool:
        """True where the canonical URL needs an enrollment's `url_template`."""
        return any(form.template is None for form in self.forms)

    def with_url_template(self, text: str) -> "Trigger":
        """Lay an enrollment's reviewed template over every form. Raises ValueError where it does not fit."""
        if any(form.template is not None for form in self.forms):
            raise ValueError("the declaration has its own canonicalUrl")
        template = _template(text, self.origins)
        for form in self.forms:
            _require_names(template.names, form, "url_template")
        return replace(self, forms=tuple(replace(form, template=template) for form in self.forms))


def compile_trigger(name: str, lowered: Mapping[str, Any]) -> Trigger:
    """Compile one lowered trigger. Raises ValueError that says which field is wrong and how."""
    if not NAME.match(name):
        raise ValueError("the trigger's name does not match ^[a-z][a-z0-9-]{0,62}$")
    _only(lowered, _LOWERED_FIELDS, "trigger")
    origins = frozenset(_origin(text) for text in _texts(lowered.get("resourceOrigins"), "resourceOrigins"))
    resources = _names(lowered.get("resources", {}), "resources")
    filters = _names(lowered.get("filters", {}), "filters")
    if not resources:
        raise ValueError("resources: is empty, so that nothing would scope the trigger; name at least one")
    if len(set(resources.values())) != len(resources):
        raise ValueError("resources: two names share one collection; the envelope has one value for each")
    variants = lowered.get("variants", [{}])
    if not isinstance(variants, list) or not variants:
        raise ValueError("variants: is no list of at least one variant; leave it out or write one")
    forms = []
    for index, variant in enumerate(variants):
        _only(variant, _VARIANT_FIELDS | {"url"}, f"variants.{index}")
        forms.append(_form(lowered, variant, origins))
    trigger = Trigger(
        name,
        tuple(_profiles(lowered.get("verificationProfile"))),
        tuple(_texts(lowered.get("nativeEvents"), "nativeEvents")),
        tuple(forms),
        resources,
        filters,
        origins,
        _literals(lowered.get("literals", {})),
    )
    for form in forms:
        _require_names([*resources, *filters.values()], form, "resources and filters")
        if form.template is not None:
            _require_names(form.template.names, form, "canonicalUrl")
    return trigger


def _form(base: Mapping[str, Any], variant: Mapping[str, Any], origins: frozenset[str]) -> Form:
    """Lay one variant over the base: conditions add up, names and the URL replace."""
    extracts = tuple(
        (entry["from"], canonical.parse_extract(entry["pattern"]))
        for part in (base, variant)
        for entry in _extracts(part.get("extract", []))
    )
    normalize = dict(base.get("normalize", {})) | dict(variant.get("normalize", {}))
    for name, reference in normalize.items():
        _name(name, "normalize")
        _reference(reference, f"normalize.{name}")
    types = dict(base.get("types", {})) | dict(variant.get("types", {}))
    for name, kind in types.items():
        if kind not in PRIMITIVES:
            raise ValueError(f"types.{name}: is none of {', '.join(PRIMITIVES)}")
    url = variant.get("canonicalUrl", base.get("canonicalUrl"))
    shapes = variant.get("urlShapes", [] if "canonicalUrl" in variant else base.get("urlShapes", []))
    sent = [*base.get("url", []), *variant.get("url", [])]
    form = Form(
        match=tuple(entry for part in (base, variant) for entry in _matches(part.get("match", {}))),
        when=tuple(_predicate(part["when"]) for part in (base, variant) if "when" in part),
        extracts=extracts,
        normalize=normalize,
        urls=tuple(_sent_url(entry) for entry in sent),
        types=types,
        template=None if url is None else _template(url, origins),
        shapes=tuple(_parse_template(shape, "urlShapes") for shape in _list(shapes, "urlShapes")),
    )
    for template in [*form.shapes, *(url.template for url in form.urls if url.template)]:
        _require_names(template.names, form, "urlShapes")
    _require_names(types, form, "types")
    for predicate in form.when:
        _require_names(predicate.names, form, "when")
    return form


def _require_names(names: Iterable[str], form: Form, field: str) -> None:
    known = set(form.normalize).union(*(pattern.names for _, pattern in form.extracts))
    for name in names:
        if name not in known:
            raise ValueError(f"{field}: the name {name} is neither normalized nor extracted")


def _sent_url(entry: Any) -> SentUrl:
    if not isinstance(entry, dict) or not entry or not set(entry) <= {"from", "template"}:
        raise ValueError("normalize.url: write a pointer or a list of {from, template}")
    if "from" in entry:
        _reference(entry["from"], "normalize.url")
    template = _parse_template(entry["template"], "normalize.url") if "template" in entry else None
    return SentUrl(entry.get("from"), template)


def _template(text: Any, origins: frozenset[str]) -> Template:
    template = _parse_template(text, "canonicalUrl")
    if template.origin not in origins:
        raise ValueError(f"canonicalUrl: its origin {template.origin} is not among resourceOrigins")
    return template


def _parse_template(text: Any, field: str) -> Template:
    if not isinstance(text, str):
        raise ValueError(f"{field}: a template is text")
    try:
        return canonical.parse_template(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def _predicate(spec: Any) -> Predicate:
    try:
        return compile_predicate(spec)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("when") else f"when: {text}") from error


def _matches(match: Any) -> list[tuple[str, tuple[str, ...], Any]]:
    if not isinstance(match, dict):
        raise ValueError("match: is no mapping of JSON Pointer to value")
    entries = []
    for pointer, value in match.items():
        if not pointer.startswith("/"):
            raise ValueError(f"match: {pointer} is no JSON Pointer")
        try:
            entries.append((pointer, pointers.parse(pointer), value))
        except ValueError as error:
            raise ValueError(f"match: {pointer}: {error}") from error
    return entries


def _extracts(entries: Any) -> list[dict[str, str]]:
    """Check `extract`: one `{from, pattern}` or a list of them."""
    listed = [entries] if isinstance(entries, dict) else entries
    for entry in _list(listed, "extract"):
        if not isinstance(entry, dict) or set(entry) != {"from", "pattern"} or not all(map(_is_text, entry.values())):
            raise ValueError("extract: write {from: pointer, pattern: text}")
        _reference(entry["from"], "extract.from")
    return list(listed)


def _reference(reference: Any, field: str) -> None:
    """Check a reference: a JSON Pointer, `@fact`, or (families) `first-token:POINTER`."""
    if not isinstance(reference, str):
        raise ValueError(f"{field}: is no JSON Pointer and no @fact")
    if reference.startswith("@"):
        if not NAME.match(reference[1:]):
            raise ValueError(f"{field}: {reference} names no fact")
        return
    pointer = reference.removeprefix(FIRST_TOKEN)
    if len(pointer.encode()) > 256:
        raise ValueError(f"{field}: the pointer is longer than 256 bytes")
    try:
        tokens = pointers.parse(pointer)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    if not tokens:
        raise ValueError(f"{field}: points at the whole document; name a member")


def _origin(text: str) -> str:
    try:
        return canonical.parse_origin(text)
    except ValueError as error:
        raise ValueError(f"resourceOrigins: {error}") from error


def _profiles(value: Any) -> list[str]:
    profiles = [value] if isinstance(value, str) else _texts(value, "verificationProfile")
    if not all(NAME.match(profile) for profile in profiles):
        raise ValueError("verificationProfile: is no profile's name")
    return profiles


def _literals(value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict) or not all(item is None or isinstance(item, str) for item in value.values()):
        raise ValueError("literals: write {input: collection}, {input: '@identity'} or {input: null}")
    return dict(value)


def _names(value: Any, field: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{field}: is no mapping")
    for key, item in value.items():
        _name(key, field)
        _name(item, f"{field}.{key}")
    return dict(value)


def _name(value: Any, field: str) -> None:
    if not isinstance(value, str) or not NAME.match(value):
        raise ValueError(f"{field}: a name must match ^[a-z][a-z0-9-]{{0,62}}$")


def _texts(value: Any, field: str) -> list[str]:
    listed = _list(value, field)
    if not listed or not all(isinstance(item, str) and item for item in listed) or len(set(listed)) != len(listed):
        raise ValueError(f"{field}: must be a nonempty list of distinct texts")
    return listed


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{field}: is no list")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _only(value: Any, known: Iterable[str], what: str) -> None:
    """Refuse what is no mapping, and unknown fields."""
    if not isinstance(value, dict):
        raise ValueError(f"{what}: is no mapping")
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]}: is an unknown field of a {what}")


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

    def problem(self, path: tuple[str | int, ...], problem: str, fix: str) -> Problem:
        """Make a Problem for a key under `connectors.<id>`."""
        return self.document.problem(("connectors", self.id, *path), problem, fix)


@dataclass(frozen=True, slots=True)
class Bound:
    """The selected triggers of a connector, lowered, with the grants that they use."""

    triggers: Mapping[str, Mapping[str, Any]]
    grants: Mapping[str, list[Any]]


def load_connector(text: str, file: str) -> Connector:
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
    problems += _section_problems(document, path, triggers, resources)
    if problems:
        raise ConfigError(problems)
    connector = Connector(
        connector_id, document.file, triggers, resources, schema, _digest(document, connector_id), document
    )
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


def _section_problems(document: Document, path: tuple[str, ...], triggers: Any, resources: Any) -> list[Problem]:
    problems = []
    for field, section in (("triggers", triggers), ("resources", resources)):
        if not isinstance(section, dict):
            return [document.problem((*path, field), "is no mapping", "write name: value")]
        problems += [
            document.problem((*path, field, key), "a name matches ^[a-z][a-z0-9-]{0,62}$", "rename it")
            for key in section
            if not NAME.match(key)
        ]
    return problems


def _schema_problems(document: Document, schema: Any) -> list[Problem]:
    """Check `import-schema`: which types there are and that defaults have them."""
    if not isinstance(schema, dict):
        return [document.problem(("import-schema",), "is no mapping", "write name: {type: ...}")]
    problems = []
    for name, spec in schema.items():
        path = ("import-schema", name)
        try:
            _only(spec, _INPUT_FIELDS, "input")
            if spec.get("type") not in (*PRIMITIVES, "array"):
                raise ValueError(f"type: is none of array, {', '.join(PRIMITIVES)}")
            items = spec.get("items", {"type": "string"})
            _only(items, {"type", "description", "enum"}, "items")
            if items.get("type", "string") not in PRIMITIVES:
                raise ValueError("items.type: is no primitive type")
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
        _only(trigger, _TRIGGER_FIELDS, "trigger")
        for field in ("verificationProfile", "nativeEvents", "resourceOrigins"):
            if not trigger.get(field):
                raise ValueError(f"{field}: is missing or empty")
        for variant in trigger.get("variants", []):
            _only(variant, _VARIANT_FIELDS, "variant")
        for collection in _names(trigger.get("resources", {}), "resources").values():
            if collection not in connector.resources:
                raise ValueError(f"resources: {collection} is no collection under the connector's resources")
    except ValueError as error:
        field = str(error).partition(":")[0]
        return [connector.problem((*path, field) if field in trigger else path, str(error), "mend the declaration")]
    return [
        connector.problem(path, f"names the input {used}, which import-schema does not have", "declare it")
        for used in sorted(_inputs_in(trigger) - set(connector.import_schema))
    ]


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
            problems.append(connector.problem(("triggers", name), str(error), "mend the declaration or its with"))
            continue
        for resource, collection in trigger.resources.items():
            kinds.setdefault(collection, set()).update(form.types.get(resource, "string") for form in trigger.forms)
    grants: dict[str, list[Any]] = {}
    for collection, types in kinds.items():
        try:
            grants[collection] = _grant(_substitute(connector.resources[collection], inputs), types)
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
    lowered["verificationProfile"] = _profiles(lowered.get("verificationProfile"))
    lowered["resourceOrigins"] = [
        _based_origin(text, declared_text)
        for text, declared_text in zip(
            _list(lowered["resourceOrigins"], "resourceOrigins"), declared["resourceOrigins"], strict=True
        )
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
    return [_substitute(shape, inputs) for shape in _list(shapes, "urlShapes") if _inputs_in(shape) <= set(inputs)]


def _based_origin(text: Any, declared: Any) -> Any:
    """Take the origin of an input that may carry a context path (Jira Data Center, a GitLab relative URL root)."""
    if not isinstance(text, str) or text == declared:
        return text
    parts = urlsplit(text)
    if parts.query or parts.fragment or not parts.scheme:
        raise ValueError("resourceOrigins: an input is no https origin")
    return f"{parts.scheme}://{parts.netloc}"


def _bound_literals(declared: Mapping[str, Any]) -> dict[str, str | None]:
    """Say for every input that the URL template spells out what it stands for (see the module's docstring)."""
    templates = [part["canonicalUrl"] for part in [declared, *declared.get("variants", [])] if "canonicalUrl" in part]
    known = _literals(declared.get("literals", {}))
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


def _grant(values: Any, kinds: set[str]) -> list[Any]:
    """Lower a grant to the declared types, in the order given. Raises ValueError."""
    listed = [values] if isinstance(values, str) else _list(values, "the grant")
    if not listed:
        raise ValueError("is empty, and an empty grant never matches")
    return [lowered for value in listed for lowered in _lower_values(value, kinds)]


def lower_values(values: Any, kinds: set[str]) -> list[Any]:
    """Lower a consumer's filter values to the declared types. Raises ValueError."""
    return _grant(values, kinds)


def _lower_values(value: Any, kinds: set[str]) -> list[Any]:
    if not isinstance(value, str) or not value:
        raise ValueError("holds a value that is no text; quote it")
    if len(value) > MAX_VALUE_CHARACTERS:
        raise ValueError(f"holds a value of more than {MAX_VALUE_CHARACTERS} characters")
    if "*" in value:
        raise ValueError("holds a *; there are no wildcards")
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
