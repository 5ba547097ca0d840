# ruff: noqa: TRY004 (a wrong type in a declaration is a wrong value: one exception, reported with its field)
"""`Trigger`: what native evidence means, compiled from its lowered JSON into the form that matching reads.

A subscription is loaded with `compile_trigger`, so it checks everything again and trusts no earlier step. The fields follow
the connector specification of GitHub Agentic Workflows (https://github.github.com/gh-aw/reference/connectors/, section 8);
ours are `extract`, `canonicalUrl`, `urlShapes` and `literals`. Lowered, `normalize.url` stands as `url`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway import canonical, pointers
from gateway.canonical import Extraction, Template
from gateway.evidence import Reference, parse_reference
from gateway.predicates import Predicate, compile_predicate
from gateway.structs import Value, force_setattr, replace

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
PRIMITIVES: Final = ("string", "integer", "number", "boolean")
FIRST_TOKEN: Final = "first-token:"  # noqa: S105 (no secret): normalize reference (GitHub families alone): the `/name` that a comment begins with

VARIANT_FIELDS: Final = frozenset({"match", "when", "extract", "normalize", "types", "canonicalUrl", "urlShapes"})
TRIGGER_FIELDS: Final = VARIANT_FIELDS | {
    "verificationProfile", "nativeEvents", "resources", "filters", "variants", "resourceOrigins", "literals",
}  # fmt: skip
_LOWERED_FIELDS: Final = TRIGGER_FIELDS | {"url"}


class SentUrl(Value):
    """A URL that the provider may send: where it stands and, where it is not the canonical one, its own template.

    Without `reference`, the template built from other evidence must, where it can be filled, give the canonical URL too.
    """

    reference: str | None
    template: Template | None


class Form(Value):
    """One payload shape of a trigger: its base fields with one variant laid over them."""

    match: tuple[tuple[str, tuple[str, ...], Any], ...]
    when: tuple[Predicate, ...]
    extracts: tuple[tuple[str, Extraction], ...]
    normalize: Mapping[str, str]
    urls: tuple[SentUrl, ...]
    types: Mapping[str, str]
    template: Template | None
    shapes: tuple[Template, ...]
    # what matching reads, parsed: (source, pattern), and (name, source, whether its first token is meant)
    extracted: tuple[tuple[Reference, Extraction], ...] = ()
    normalized: tuple[tuple[str, Reference, bool], ...] = ()

    def __post_init__(self) -> None:
        extracted = tuple((parse_reference(source), pattern) for source, pattern in self.extracts)
        normalized = tuple(
            (name, parse_reference(reference.removeprefix(FIRST_TOKEN)), reference.startswith(FIRST_TOKEN))
            for name, reference in self.normalize.items()
        )
        force_setattr(self, "extracted", extracted)
        force_setattr(self, "normalized", normalized)

    def reference(self, name: str) -> str:
        """Return what `name` is read from: a pointer, a fact, or the text that an extraction takes apart."""
        if name in self.normalize:
            return self.normalize[name]
        return next((source for source, pattern in self.extracts if name in pattern.names), name)


class Trigger(Value):
    """One compiled trigger. `forms` holds at least one shape, `needed` for each the names without which it never matches.

    A name that only a filter uses is needed where the consumer set that filter.
    """

    name: str
    profiles: tuple[str, ...]
    native_events: tuple[str, ...]
    forms: tuple[Form, ...]
    resources: Mapping[str, str]
    filters: Mapping[str, str]
    origins: frozenset[str]
    literals: Mapping[str, str | None]
    needed: tuple[frozenset[str], ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "needed", tuple(map(self._needed, self.forms)))

    def _needed(self, form: Form) -> frozenset[str]:
        required = {*self.resources, *(form.template.names if form.template else ())}
        return frozenset((set(form.types) | required) - (set(self.filters.values()) - required))

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
    check_fields(lowered, _LOWERED_FIELDS, "trigger")
    origins = frozenset(_origin(text) for text in _texts(lowered.get("resourceOrigins"), "resourceOrigins"))
    resources = check_names(lowered.get("resources", {}), "resources")
    filters = check_names(lowered.get("filters", {}), "filters")
    if not resources:
        raise ValueError("resources: is empty, so that nothing would scope the trigger; name at least one")
    if len(set(resources.values())) != len(resources):
        raise ValueError("resources: two names share one collection; the envelope has one value for each")
    variants = lowered.get("variants", [{}])
    if not isinstance(variants, list) or not variants:
        raise ValueError("variants: is no list of at least one variant; leave it out or write one")
    forms = []
    for index, variant in enumerate(variants):
        check_fields(variant, VARIANT_FIELDS | {"url"}, f"variants.{index}")
        forms.append(_form(lowered, variant, origins))
    trigger = Trigger(
        name,
        tuple(check_profiles(lowered.get("verificationProfile"))),
        tuple(_texts(lowered.get("nativeEvents"), "nativeEvents")),
        tuple(forms),
        resources,
        filters,
        origins,
        check_literals(lowered.get("literals", {})),
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
    normalize = _laid(base, variant, "normalize")
    for name, reference in normalize.items():
        _name(name, "normalize")
        _reference(reference, f"normalize.{name}")
    types = _laid(base, variant, "types")
    for name, kind in types.items():
        if kind not in PRIMITIVES:
            raise ValueError(f"types.{name}: is none of {', '.join(PRIMITIVES)}")
    url = variant.get("canonicalUrl", base.get("canonicalUrl"))
    shapes = variant.get("urlShapes", [] if "canonicalUrl" in variant else base.get("urlShapes", []))
    sent = [entry for part in (base, variant) for entry in check_list(part.get("url", []), "normalize.url")]
    form = Form(
        match=tuple(entry for part in (base, variant) for entry in _matches(part.get("match", {}))),
        when=tuple(_predicate(part["when"]) for part in (base, variant) if "when" in part),
        extracts=extracts,
        normalize=normalize,
        urls=tuple(_sent_url(entry) for entry in sent),
        types=types,
        template=None if url is None else _template(url, origins),
        shapes=tuple(_parse_template(shape, "urlShapes") for shape in check_list(shapes, "urlShapes")),
    )
    for template in [*form.shapes, *(url.template for url in form.urls if url.template)]:
        _require_names(template.names, form, "urlShapes")
    _require_names(types, form, "types")
    for predicate in form.when:
        _require_names(predicate.names, form, "when")
    return form


def _laid(base: Mapping[str, Any], variant: Mapping[str, Any], field: str) -> dict[str, Any]:
    return check_mapping(base.get(field, {}), field) | check_mapping(variant.get(field, {}), field)


def _require_names(names: Iterable[str], form: Form, field: str) -> None:
    known = set(form.normalize).union(*(pattern.names for _, pattern in form.extracts))
    for name in names:
        if name not in known:
            has = f"; there are {', '.join(sorted(known))}" if known else ""
            raise ValueError(f"{field}: the name {name} is neither normalized nor extracted{has}")


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
    entries = []
    for pointer, value in check_mapping(match, "match").items():
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
    for entry in check_list(listed, "extract"):
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


def check_profiles(value: Any) -> list[str]:
    """Check `verificationProfile`: one name, or a list of alternatives."""
    profiles = [value] if isinstance(value, str) else _texts(value, "verificationProfile")
    if not all(NAME.match(profile) for profile in profiles):
        raise ValueError("verificationProfile: is no profile's name")
    return profiles


def check_literals(value: Any) -> dict[str, str | None]:
    """Check `literals`: what each import input that a URL template spells out stands for."""
    if not isinstance(value, dict) or not all(item is None or isinstance(item, str) for item in value.values()):
        raise ValueError("literals: write {input: collection}, {input: '@identity'} or {input: null}")
    return dict(value)


def check_names(value: Any, field: str) -> dict[str, str]:
    """Check a mapping of name to name."""
    for key, item in check_mapping(value, field).items():
        _name(key, field)
        _name(item, f"{field}.{key}")
    return dict(value)


def check_mapping(value: Any, field: str) -> dict[str, Any]:
    """Refuse what is no mapping."""
    if not isinstance(value, dict):
        raise ValueError(f"{field}: is no mapping")
    return value


def _name(value: Any, field: str) -> None:
    if not isinstance(value, str) or not NAME.match(value):
        raise ValueError(f"{field}: a name must match ^[a-z][a-z0-9-]{{0,62}}$")


def _texts(value: Any, field: str) -> list[str]:
    listed = check_list(value, field)
    if not listed or not all(isinstance(item, str) and item for item in listed) or len(set(listed)) != len(listed):
        raise ValueError(f"{field}: must be a nonempty list of distinct texts")
    return listed


def check_list(value: Any, field: str) -> list[Any]:
    """Refuse what is no list."""
    if not isinstance(value, list):
        raise ValueError(f"{field}: is no list")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def check_fields(value: Any, known: Iterable[str], what: str) -> None:
    """Refuse what is no mapping, and unknown fields."""
    unknown = sorted(set(check_mapping(value, what)) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]}: is an unknown field of a {what}")
