"""Matching: one event against the enrolled triggers of its source, with the reason for each that did not match.

1. Pure and exact: no folding, no trimming, no coercion. What is missing or ambiguous never matches.
2. Exactly one payload shape of a trigger must apply: its `match`, its `when`, and the declared types of its names.
3. Every scope value must be in its grant and every filter that the consumer set must hold.
4. The canonical URL is built from authenticated names; every URL that the provider sent must agree with it.
5. A reason names a test and a pointer, never a value.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway import canonical
from gateway.envelope import EnvelopeEvent, sendable
from gateway.events import Event
from gateway.evidence import Evidence, exactly, parse_reference
from gateway.pointers import MISSING, resolve
from gateway.predicates import evaluate, explain
from gateway.profiles import Source
from gateway.structs import Value
from gateway.subscriptions import Enrolled, Index, value_key
from gateway.triggers import Form, SentUrl, Trigger

MAX_CONSIDERED: Final = 20
_WHITE_SPACE: Final = " \t\n\r\v\f"


class Considered(Value):
    """What became of one trigger: `test` is the first that was not true and `pointer` where it looked."""

    digest: str
    trigger: str
    matched: bool
    test: str | None = None
    pointer: str | None = None


class Match(Value):
    """One enrolled trigger that an event matches, and the event as its envelope carries it."""

    enrolled: Enrolled
    trigger: str
    event: EnvelopeEvent


class _Nonmatch(Value):
    test: str
    pointer: str | None

    @property
    def stage(self) -> int:
        """How far a shape came: its `match`, its `when`, or the types of its names."""
        return 0 if self.test == "match" else 2 if self.test == "types" else 1


def match(event: Event, source: Source, index: Index) -> tuple[tuple[Match, ...], tuple[Considered, ...]]:
    """Match one event, and say of up to 20 triggers what became of them.

    Where nothing matched and there is room, triggers that the index passed over are among them, with the test `grant`.
    """
    matches: list[Match] = []
    considered: list[Considered] = []
    for enrolled, trigger in index.candidates(source.name, event):
        digest = enrolled.subscription.digest
        result = match_trigger(event, enrolled, trigger)
        if isinstance(result, EnvelopeEvent):
            matches.append(Match(enrolled, trigger.name, result))
            considered.append(Considered(digest, trigger.name, matched=True))
        else:
            considered.append(Considered(digest, trigger.name, False, result.test, result.pointer))
    if not matches:
        seen = frozenset((one.digest, one.trigger) for one in considered)
        room = MAX_CONSIDERED - len(considered)
        considered += [
            Considered(enrolled.subscription.digest, trigger.name, False, "grant", pointer)
            for enrolled, trigger, pointer in index.passed_over(source.name, event, seen, room)
        ]
    return tuple(matches), most_telling(considered)


def most_telling(considered: Iterable[Considered], *tests: str) -> tuple[Considered, ...]:
    """Return at most 20: first what matched, then what failed one of `tests`, then what came as far as its values."""

    def rank(one: Considered) -> int:
        return 0 if one.matched else 1 if one.test in tests else 3 if one.test == "grant" else 2

    listed = tuple(considered)
    return tuple(sorted(listed, key=rank)[:MAX_CONSIDERED]) if len(listed) > 1 else listed


def match_trigger(event: Event, enrolled: Enrolled, trigger: Trigger) -> EnvelopeEvent | _Nonmatch:
    """Match one event against one trigger: choose the shape, then check scope and filters, then build the URL."""
    evidence = Evidence(event.body, event.facts)
    chosen = _choose(evidence, enrolled, trigger)
    if isinstance(chosen, _Nonmatch):
        return chosen
    form, names = chosen
    scope = _scope(enrolled, trigger, form, names)
    if isinstance(scope, _Nonmatch):
        return scope
    url = _url(form, evidence, names)
    if isinstance(url, _Nonmatch):
        return url
    matched = EnvelopeEvent(url, trigger.name, scope)
    return matched if sendable(matched) else _Nonmatch("envelope", None)  # what could never be sent must not be queued


def _choose(evidence: Evidence, enrolled: Enrolled, trigger: Trigger) -> tuple[Form, Mapping[str, Any]] | _Nonmatch:
    """Return the one shape that applies with its names; none or two of them are a nonmatch."""
    applying: list[tuple[Form, Mapping[str, Any]]] = []
    reasons: list[_Nonmatch] = []
    chosen = enrolled.subscription.filters
    filtered = {name for collection, name in trigger.filters.items() if collection in chosen} if chosen else None
    for form, needed in zip(trigger.forms, trigger.needed, strict=True):
        found = _names_where_it_applies(evidence, form, needed | filtered if filtered else needed)
        if isinstance(found, _Nonmatch):
            reasons.append(found)
        else:
            applying.append((form, found))
    if len(applying) == 1:
        return applying[0]
    if applying:
        return _Nonmatch("variants", None)
    return max(reasons, key=lambda reason: reason.stage)  # the shape that came nearest explains; of equals the first


def _names_where_it_applies(evidence: Evidence, form: Form, needed: frozenset[str]) -> dict[str, Any] | _Nonmatch:
    """Return the names of a shape whose `match` and `when` hold and whose names have their types."""
    for pointer, tokens, value in form.match:
        if not exactly(resolve(evidence.document, tokens), value):
            return _Nonmatch("match", pointer)
    names = _read_names(evidence, form)
    if form.when:
        named = evidence.with_names(names) if names else evidence
        for predicate in form.when:
            if evaluate(predicate, named) is not True:
                test, pointer = explain(predicate, named) or ("when", "")
                return _Nonmatch(f"when:{test}", pointer)
    unfit = [name for name in needed if not _has_type(names.get(name, MISSING), form.types.get(name))]
    return _Nonmatch("types", form.reference(min(unfit))) if unfit else names


def _has_type(value: Any, kind: str | None) -> bool:
    """Tell whether a value has its declared type; an undeclared one may be text or an integer."""
    if value is MISSING or value is None or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind == "integer":
        return isinstance(value, int)
    if kind == "number":
        return isinstance(value, (int, float))
    return kind is None and isinstance(value, (str, int))


def _read_names(evidence: Evidence, form: Form) -> dict[str, Any]:
    """Read every normalized and extracted name that resolves."""
    names: dict[str, Any] = {}
    for reference, extraction in form.extracted:
        names |= extraction.apply(reference.get(evidence)) or {}
    for name, reference, first in form.normalized:
        value = reference.get(evidence)
        if first:
            value = _first_token(value)
        if value is not MISSING and value is not None:
            names[name] = value
    return names


def _first_token(text: Any) -> Any:
    """Return `name` where the text, trimmed of ASCII white space, begins with `/name` and white space or its end."""
    if not isinstance(text, str):
        return MISSING
    stripped = text.lstrip(_WHITE_SPACE)
    end = next((at for at, char in enumerate(stripped) if char in _WHITE_SPACE), len(stripped))
    return stripped[1:end] if stripped.startswith("/") and end > 1 else MISSING


def _scope(enrolled: Enrolled, trigger: Trigger, form: Form, names: Mapping[str, Any]) -> dict[str, str] | _Nonmatch:
    """Check grants and filters; return the scope evidence, one text for each collection."""
    scope: dict[str, str] = {}
    subscription = enrolled.subscription
    for name, collection in trigger.resources.items():
        value = names[name]
        if value_key(value) not in subscription.grants.get(collection, frozenset()):
            return _Nonmatch("resources", form.reference(name))
        scope[collection] = str(value)
    for collection, allowed in subscription.filters.items():
        if collection not in trigger.filters:
            continue
        value = names[trigger.filters[collection]]
        if value_key(value) not in allowed:
            return _Nonmatch("filters", form.reference(trigger.filters[collection]))
        scope[collection] = str(value)
    return scope


def _url(form: Form, evidence: Evidence, names: Mapping[str, Any]) -> str | _Nonmatch:
    """Build the canonical URL and hold against it what the provider sent."""
    if form.template is None:
        return _Nonmatch("url:no-template", None)
    built = form.template.fill(names)
    if built is None:
        unfit = form.template.first_unfit(names)
        return _Nonmatch("url:unfit", form.reference(unfit) if unfit else None)
    for sent in form.urls:
        reason = _disagreement(sent, evidence, names, built)
        if reason is not None and sent.template is None and form.shapes:  # it may have another shape of that URL
            shapes = [filled for shape in form.shapes if (filled := shape.fill(names)) is not None]
            reason = _disagreement(sent, evidence, names, built, shapes)
        if reason is not None:
            return _Nonmatch(f"url:{reason.removeprefix('url-')}", sent.reference or _made_of(form, sent))
    return built


def _made_of(form: Form, sent: SentUrl) -> str | None:
    """Return where the names stand that a URL is built of which no provider sent."""
    return ", ".join(map(form.reference, sent.template.names)) if sent.template is not None else None


def _disagreement(
    sent: SentUrl, evidence: Evidence, names: Mapping[str, Any], built: str, shapes: Sequence[str] = ()
) -> str | None:
    """Compare one URL. Without `reference` the entry's own template, where it fills, stands for what was sent."""
    if sent.reference is None:
        assert sent.template is not None
        return canonical.agrees(sent.template.fill(names), built)
    value = _sent_value(sent.reference, evidence)
    if sent.template is None:
        return canonical.agrees(value, built, shapes)
    other = sent.template.fill(names)
    return "unfit" if other is None and value not in (MISSING, None) else canonical.agrees(value, other or built)


def _sent_value(reference: str, evidence: Evidence) -> Any:
    """Read a sent URL as it is: text that cannot be evidence must disagree here, not count as unsent."""
    if reference.startswith("@"):
        return evidence.facts.get(reference[1:], MISSING)
    return resolve(evidence.document, parse_reference(reference).tokens or ())
