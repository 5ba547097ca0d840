"""Subscriptions: the frozen document of one workflow and one connector, and the index that finds them for an event.

A document is JSON, at most 65,536 bytes, bound by `digest` = `sha256:` over the RFC 8785 form of all the rest
(https://www.rfc-editor.org/rfc/rfc8785). `gateway.compile` makes documents; here they are loaded and checked again.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gateway import canonical, families, strict_json
from gateway.errors import ConfigError, Problem, Rejection
from gateway.events import Event
from gateway.pointers import MISSING, parse, resolve
from gateway.profiles import JwtProof, Profile, Source
from gateway.structs import Value
from gateway.triggers import FIRST_TOKEN, NAME, Form, Trigger, compile_trigger

VERSION: Final = 2
PROJECTION: Final = "resource-url-types-filters/v2"
PREDICATES: Final = "gh-aw/event-predicates/v1"
MAX_BYTES: Final = 65_536
# the names of managed users have an underscore before their enterprise's short code:
# https://docs.github.com/en/enterprise-cloud@latest/admin/managing-iam/iam-configuration-reference/username-considerations-for-external-authentication
REPOSITORY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38})/(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}\Z")
WORKFLOW: Final = re.compile(r"\.github/workflows/[A-Za-z0-9._-]{1,150}\.ya?ml\Z")
HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")

_tokens: Final = lru_cache(maxsize=4096)(parse)  # pointers stand in declarations: a small fixed set

_REQUIRED: Final = frozenset(
    {
        "version", "projection", "predicates", "repository", "workflow", "workflow_hash", "event_type", "connector",
        "declaration_digest", "triggers", "grants", "filters", "digest",
    },
)  # fmt: skip
_OPTIONAL: Final = frozenset({"repository_id"})


class Subscription(Value):
    """One loaded document with its triggers compiled."""

    document: Mapping[str, Any]
    digest: str
    repository: str
    repository_id: int | None
    workflow: str
    workflow_hash: str
    event_type: str
    connector: str
    triggers: Mapping[str, Trigger]
    grants: Mapping[str, frozenset[Any]]
    filters: Mapping[str, frozenset[Any]]


class Enrolled(Value):
    """An operator's enrollment of a subscription: from which source, through which installation, and how."""

    subscription: Subscription
    source: str
    installation: int
    url_template: str | None = None
    mode: str = "auto"
    attested: bool = False
    repository_id: int | None = None


def event_type_for(repository: str, workflow: str) -> str:
    """Name a workflow's `repository_dispatch` event: from its repository and path alone, at most 100 characters."""
    stem = workflow.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml").removesuffix(".lock")
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "workflow"
    identity = hashlib.sha256(f"{repository}\n{workflow}".encode()).hexdigest()
    return f"gateway-{slug}-{identity[:32]}"


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Add the digest to a document without one. Raises ValueError where it has no canonical form."""
    return {**document, "digest": canonical.digest(dict(document))}


def load_subscription(data: bytes, file: str) -> Subscription:
    """Load one compiled document. Raises ConfigError where it is too large, unknown, altered or wrong."""
    if len(data) > MAX_BYTES:
        raise ConfigError([Problem(file, "", f"is larger than {MAX_BYTES} bytes", "select fewer triggers or grants")])
    try:
        document = strict_json.loads(data)
    except Rejection as error:
        raise ConfigError([Problem(file, "", f"is no strict JSON ({error.reason})", "compile it again")]) from error
    problems = _document_problems(document, file)
    if problems:
        raise ConfigError(problems)
    triggers: dict[str, Trigger] = {}
    for name, lowered in document["triggers"].items():
        try:
            triggers[name] = compile_trigger(name, lowered)
        except ValueError as error:
            problems.append(Problem(file, f"triggers.{name}", str(error), "compile it again"))
    problems = problems or _scope_problems(document, triggers, file)
    if problems:
        raise ConfigError(problems)
    return Subscription(
        document=document,
        digest=document["digest"],
        repository=document["repository"],
        repository_id=document.get("repository_id"),
        workflow=document["workflow"],
        workflow_hash=document["workflow_hash"],
        event_type=document["event_type"],
        connector=document["connector"],
        triggers=triggers,
        grants={name: frozenset(map(value_key, values)) for name, values in document["grants"].items()},
        filters={name: frozenset(map(value_key, values)) for name, values in document["filters"].items()},
    )


def value_key(value: Any) -> tuple[str, Any]:
    """Make a granted or evidenced value comparable with its type: `1` is not `"1"`, `true` is not `1`."""
    return (type(value).__name__, value)


def _document_problems(document: Any, file: str) -> list[Problem]:
    """Check a document's members before anything of it is compiled."""
    fix = "compile it again with this version"
    if not isinstance(document, dict):
        return [Problem(file, "", "is no JSON object", fix)]
    missing = [Problem(file, key, "is missing", fix) for key in sorted(_REQUIRED - set(document))]
    unknown = [Problem(file, key, "is unknown", fix) for key in sorted(set(document) - _REQUIRED - _OPTIONAL)]
    if missing or unknown:
        return missing + unknown
    problems = [
        Problem(file, key, problem, fix)
        for key, good, problem in (
            ("version", document["version"] == VERSION and not isinstance(document["version"], bool), "is not 2"),
            ("projection", document["projection"] == PROJECTION, f"is not {PROJECTION}"),
            ("predicates", document["predicates"] == PREDICATES, f"is not {PREDICATES}"),
            ("repository", _text(document["repository"], REPOSITORY), "is no OWNER/NAME"),
            ("repository_id", _is_id(document.get("repository_id", 1)), "is no positive integer"),
            ("workflow", _text(document["workflow"], WORKFLOW), "is no file of .github/workflows"),
            ("workflow_hash", _text(document["workflow_hash"], HASH), "is no sha256: digest"),
            ("declaration_digest", _text(document["declaration_digest"], HASH), "is no sha256: digest"),
            ("connector", _text(document["connector"], NAME), "is no connector id"),
            ("triggers", isinstance(document["triggers"], dict) and document["triggers"], "is no nonempty object"),
            ("grants", _is_values(document["grants"]), "holds an empty or mistyped grant"),
            ("filters", _is_values(document["filters"]), "holds an empty or mistyped filter"),
        )
        if not good
    ]
    if not problems and document["event_type"] != event_type_for(document["repository"], document["workflow"]):
        problems = [Problem(file, "event_type", "does not belong to this repository and workflow", fix)]
    try:
        digest = canonical.digest({key: value for key, value in document.items() if key != "digest"})
    except ValueError:
        digest = ""
    if document["digest"] != digest:
        problems.append(
            Problem(file, "digest", "does not match the content", "never edit a document; compile it again")
        )
    return problems


def _text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_values(value: Any) -> bool:
    """Check a mapping of collection to a nonempty list of texts and integers."""
    return isinstance(value, dict) and all(
        isinstance(items, list)
        and items
        and all(isinstance(item, (str, int)) and not isinstance(item, bool) and item != "" for item in items)
        for items in value.values()
    )


def _scope_problems(document: Mapping[str, Any], triggers: Mapping[str, Trigger], file: str) -> list[Problem]:
    """Check that every dimension of a trigger is granted and that some trigger has every filter that was set."""
    ungranted = [
        Problem(file, f"triggers.{name}.resources", f"the collection {collection} is not granted", "compile it again")
        for name, trigger in triggers.items()
        for collection in trigger.resources.values()
        if collection not in document["grants"]
    ]
    known = {collection for trigger in triggers.values() for collection in trigger.filters}
    return ungranted + [
        Problem(file, f"filters.{collection}", f"no trigger has the filter {collection}", "compile it again")
        for collection in sorted(set(document["filters"]) - known)
    ]


# ---- activation -------------------------------------------------------------------------------------------------------


def activation_problem(enrolled: Enrolled, source: Source | None) -> str | None:
    """Say why an enrollment cannot be active on its source, None where it is."""
    if source is None:
        return f"no source is named {enrolled.source}"
    subscription = enrolled.subscription
    for name, trigger in subscription.triggers.items():
        if source.profile.name not in trigger.profiles:
            return f"{name} wants the profile {' or '.join(trigger.profiles)}, the source has {source.profile.name}"
        fact = _unknown_fact(trigger, source)
        if fact is not None:
            return f"{name} reads the fact {fact}, which the profile {source.profile.name} does not establish"
        if trigger.needs_url_template and enrolled.url_template is None:
            return f"{name} needs a url_template in its enrollment"
        problem = _literal_problem(trigger, source) or _crowded_template(enrolled, trigger)
        if problem is not None:
            return problem
        if (
            subscription.connector == families.CONNECTOR
            and (source.origin or "https://github.com") not in trigger.origins
        ):
            return f"{name} is compiled for {', '.join(sorted(trigger.origins))}, not for the source's origin"
    needing = [trigger for trigger in subscription.triggers.values() if trigger.needs_url_template]
    if enrolled.url_template is not None and not needing:
        return "url_template: the declaration has its own canonicalUrl"
    try:
        for trigger in needing:
            _with_template(enrolled, trigger)
    except ValueError as error:
        return f"url_template: {error}"
    return None


def facts_of(profile: Profile) -> frozenset[str]:
    """The facts that a profile establishes while verifying."""
    proof = profile.proof
    claimed = {*proof.facts, *proof.picked} if isinstance(proof, JwtProof) else set()
    return frozenset({"event", *profile.facts, *claimed})


def _unknown_fact(trigger: Trigger, source: Source) -> str | None:
    """Find a fact that a trigger reads and that its source's profile never establishes."""
    established = facts_of(source.profile)
    return next((f"@{fact}" for fact in sorted(trigger.facts - established)), None)


def _literal_problem(trigger: Trigger, source: Source) -> str | None:
    """Check literals that stand for an identity of the source: it must have exactly one value."""
    for name, meaning in trigger.literals.items():
        if meaning is not None and meaning.startswith("@") and len(source.identity.get(meaning[1:], ())) != 1:
            return (
                f"the URL spells out {name}, so the source's identity {meaning[1:]} needs exactly one value: "
                "make one subscription each"
            )
    return None


def _crowded_template(enrolled: Enrolled, trigger: Trigger) -> str | None:
    """Check an enrollment's template of a GitHub project: its number and owner are literals, so each is one value."""
    template = enrolled.url_template
    if template is None or not trigger.needs_url_template or enrolled.subscription.connector != families.CONNECTOR:
        return None
    for name, collection in (("project", "projects"), *trigger.resources.items()):
        granted = enrolled.subscription.grants.get(collection, frozenset())
        if re.search(rf"\{{\+?{name}[|}}]", template) is None and len(granted) != 1:
            return f"the url_template spells out one of {collection}, so grant exactly one: make one subscription each"
    return None


def _with_template(enrolled: Enrolled, trigger: Trigger) -> Trigger:
    """Lay the enrollment's template over a trigger that has none of its own."""
    if enrolled.url_template is None or not trigger.needs_url_template:
        return trigger
    return trigger.with_url_template(enrolled.url_template)


# ---- the index --------------------------------------------------------------------------------------------------------

_Candidate = tuple[Enrolled, Trigger]
_References = tuple[tuple[str, str], ...]  # (reference, collection) of every dimension that a body's member tells
_Listed = tuple[Enrolled, Trigger, tuple[_References, ...]]  # a candidate with what its shapes read their scope from


@dataclass(slots=True)
class _Group:
    """Candidates of one native event that read their scope from the same references."""

    references: _References
    by_value: list[dict[Any, list[_Candidate]]]
    all: list[_Candidate] = field(default_factory=list)

    def add(self, candidate: _Candidate) -> None:
        grants = candidate[0].subscription.grants
        self.all.append(candidate)
        for (_, collection), values in zip(self.references, self.by_value, strict=True):
            for key in grants[collection]:
                values.setdefault(key, []).append(candidate)

    def find(self, read: Callable[[str], Any]) -> list[_Candidate]:
        """Return the smallest bucket that the event's values select; a candidate must be in every one."""
        found = self.all
        for (reference, _), values in zip(self.references, self.by_value, strict=True):
            value = read(reference)
            bucket = values.get(value_key(value), []) if isinstance(value, (str, int)) else []
            if len(bucket) < len(found):
                found = bucket
        return found


class Index(Value):
    """Finds what could match: its work follows from how many grant the event's values, not from how many are enrolled.

    Each source has its own slice. `inactive` holds what cannot be active, with the reason.
    """

    _slices: Mapping[str, Mapping[str, Mapping[_References, _Group]]]
    _listed: Mapping[tuple[str, str], Sequence[_Listed]]
    _by_digest: Mapping[str, Enrolled]
    inactive: tuple[tuple[Enrolled, str], ...]

    def wanted(self, source: str) -> AbstractSet[str]:
        """Return the native event names that an active trigger of the source names."""
        return self._slices.get(source, {}).keys()

    def candidates(self, source: str, event: Event) -> Iterable[tuple[Enrolled, Trigger]]:
        """Return the enrolled triggers whose grants hold the event's values, as far as single members tell."""
        groups = self._slices.get(source, {}).get(event.name, {}).values()
        reader = _reader(event)
        if len(groups) == 1:  # within one group nothing is found twice
            (group,) = groups
            return group.find(reader)
        found = {
            (candidate[0].subscription.digest, candidate[1].name): candidate
            for group in groups
            for candidate in group.find(reader)
        }
        return found.values()

    def passed_over(
        self, source: str, event: Event, seen: Container[tuple[str, str]], limit: int
    ) -> Iterator[tuple[Enrolled, Trigger, str]]:
        """Yield up to `limit` triggers that want the event's name and do not grant its values, with the pointer.

        `seen` holds the (digest, trigger) that were considered already.
        """
        reader = _reader(event)
        count = 0
        for enrolled, trigger, shapes in self._listed.get((source, event.name), ()):
            if count >= limit:
                return
            if (enrolled.subscription.digest, trigger.name) in seen:
                continue
            count += 1
            yield enrolled, trigger, _ungranted(enrolled, shapes[0], reader)

    def listed(self, source: str) -> tuple[tuple[Enrolled, Trigger], ...]:
        """Return every active trigger of the source, as it is matched: for explaining, not for the path of a delivery."""
        found = {
            (enrolled.subscription.digest, trigger.name): (enrolled, trigger)
            for (name, _), candidates in self._listed.items()
            if name == source
            for enrolled, trigger, _ in candidates
        }
        return tuple(found.values())

    def by_digest(self, digest: str) -> Enrolled | None:
        """Return the active enrollment of a document."""
        return self._by_digest.get(digest)


def build_index(enrolled: Sequence[Enrolled], sources: Mapping[str, Source]) -> Index:
    """Index what can be active; one digest has one source, a second enrollment is inactive with that reason."""
    slices: dict[str, dict[str, dict[_References, _Group]]] = {}
    listed: dict[tuple[str, str], list[_Listed]] = {}
    by_digest: dict[str, Enrolled] = {}
    inactive: list[tuple[Enrolled, str]] = []
    for one in enrolled:
        problem = activation_problem(one, sources.get(one.source))
        if one.subscription.digest in by_digest:
            problem = f"is enrolled already from the source {by_digest[one.subscription.digest].source}"
        if problem is not None:
            inactive.append((one, problem))
            continue
        by_digest[one.subscription.digest] = one
        for trigger in one.subscription.triggers.values():
            candidate = (one, _with_template(one, trigger))
            shapes = tuple(dict.fromkeys(_references(trigger, form) for form in trigger.forms))
            for name in dict.fromkeys(trigger.native_events):
                listed.setdefault((one.source, name), []).append((*candidate, shapes))
                groups = slices.setdefault(one.source, {}).setdefault(name, {})
                for references in shapes:
                    group = groups.setdefault(references, _Group(references, [{} for _ in references]))
                    group.add(candidate)
    return Index(slices, listed, by_digest, tuple(inactive))


def _references(trigger: Trigger, form: Form) -> _References:
    """Return the dimensions that one pointer or fact tells; what has to be extracted is left to matching."""
    return tuple(
        (form.normalize[resource], collection)
        for resource, collection in trigger.resources.items()
        if resource in form.normalize and not form.normalize[resource].startswith(FIRST_TOKEN)
    )


def _ungranted(enrolled: Enrolled, references: _References, read: Callable[[str], Any]) -> str:
    """Return the first reference whose value is not granted: of a trigger that is no candidate, there is one."""

    def granted(value: Any, collection: str) -> bool:
        return isinstance(value, (str, int)) and value_key(value) in enrolled.subscription.grants[collection]

    return next((reference for reference, collection in references if not granted(read(reference), collection)), "")


def _reader(event: Event) -> Callable[[str], Any]:
    """Read pointers and facts of an event, each once."""
    known: dict[str, Any] = {}

    def read(reference: str) -> Any:
        if reference not in known:
            if reference.startswith("@"):
                known[reference] = event.facts.get(reference[1:], MISSING)
            else:
                known[reference] = resolve(event.body, _tokens(reference))
        return known[reference]

    return read
