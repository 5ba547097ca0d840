"""`Predicate`: bounded three-valued tests over authenticated evidence. No regular expression, no fetch, no code.

The rules every test obeys:

1. The truth values are True, False and None (*unknown*). Only True matches; `not` unknown is unknown.
2. Evidence is never coerced, folded or trimmed. Two values are equal only if they are of one kind (text, boolean,
   integer, number, null, array, object) and equal: `1`, `"1"`, `true` and `1.0` are four different values.
3. A value test is unknown where a value is missing, null, or of a kind the test did not ask for. `present` and `null`
   test structure and may say False.
4. Text with a lone surrogate is unknown as evidence, for every test.
5. `evaluate` and `explain` never raise, whatever the document holds, and cost at most (nodes x size of the document).
   Hashed keys are text, which Python hashes under a random seed: integers made to collide cannot slow them.

A *reference* is a JSON Pointer (https://www.rfc-editor.org/rfc/rfc6901), `@fact`, or, in `agree` and `differ` alone,
the name of an extracted or normalized value.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from gateway.pointers import MISSING, parse, resolve
from gateway.strict_json import has_surrogate

Truth: TypeAlias = bool | None
"""True, False, or None for unknown."""
TRUE: Final = True
FALSE: Final = False
UNKNOWN: Final = None

MAX_NODES: Final = 64
MAX_DEPTH: Final = 8
MAX_POINTER_BYTES: Final = 256
MAX_LITERAL_BYTES: Final = 4096

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
"""How extracted and normalized names, and facts after their `@`, are written."""
_WHITE_SPACE: Final = " \t\n\r\v\f"  # ASCII only: what a mention or a slash command is delimited by


class _Unusable:
    """The type of `_UNUSABLE`: text that is there and may not be used as evidence (a lone surrogate)."""


_UNUSABLE: Final = _Unusable()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def usable_text(text: str) -> bool:
    """Whether `text` can be written as UTF-8, that is, holds no lone surrogate."""
    return text.isascii() or not has_surrogate(text)


def _screen(value: Any) -> Any:
    return _UNUSABLE if isinstance(value, str) and not usable_text(value) else value


def _screened(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _screen(value) for name, value in values.items()}


class Evidence:
    """What one verified event offers: its decoded `document`, the profile's `facts`, and `names` derived from both."""

    __slots__ = ("_facts", "_names", "document", "facts", "names")

    def __init__(self, document: Any, facts: Mapping[str, str] = _NOTHING, names: Mapping[str, Any] = _NOTHING) -> None:
        self.document, self.facts, self.names = document, facts, names
        # Screened once, when first asked: inside `one` a name is read once an element, and scanning long text there
        # would be quadratic.
        self._facts: Mapping[str, Any] | None = None
        self._names: Mapping[str, Any] | None = None

    def get(self, reference: str) -> Any:
        """Return the value at a pointer, of an `@fact` or of a name: None for null, `MISSING` where there is none to use.

        Raises ValueError for a malformed pointer, which a declaration cannot hold.
        """
        return parse_reference(reference).get(self)

    def fact(self, name: str) -> Any:
        """Return the fact, `_UNUSABLE` or `MISSING`."""
        if self._facts is None:
            self._facts = _screened(self.facts)
        return self._facts.get(name, MISSING)

    def name(self, name: str) -> Any:
        """Return the value of a name, `_UNUSABLE` or `MISSING`."""
        if self._names is None:
            self._names = _screened(self.names)
        return self._names.get(name, MISSING)

    def with_names(self, names: Mapping[str, Any]) -> "Evidence":
        """Return the same evidence with other `names`."""
        return Evidence(self.document, self.facts, names)


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference: `tokens` of a pointer, None for a fact or a name."""

    text: str
    tokens: tuple[str, ...] | None

    def read(self, evidence: Evidence, here: Any) -> Any:
        """Return the value, None, `MISSING` or `_UNUSABLE`; a pointer is relative to `here`."""
        if self.tokens is not None:
            return _screen(resolve(here, self.tokens))
        if self.text.startswith("@"):
            return evidence.fact(self.text[1:])
        return evidence.name(self.text)

    def get(self, evidence: Evidence) -> Any:
        """Return the value of the whole document, None for null, `MISSING` where there is none to use."""
        found = self.read(evidence, evidence.document)
        return MISSING if found is _UNUSABLE else found


@lru_cache(maxsize=4096)
def parse_reference(text: str) -> Reference:
    """Parse a pointer, `@fact` or name. Raises ValueError for a malformed pointer."""
    return Reference(text, parse(text) if text == "" or text.startswith("/") else None)


def _kind(value: Any) -> str | None:
    """Return the kind of a usable scalar, else None: null, containers, missing and unusable values are no scalars."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) and math.isfinite(value) else None


def _same(left: Any, right: Any) -> bool:
    return _kind(left) == _kind(right) and bool(left == right)


def exactly(found: Any, wanted: Any) -> bool:
    """Whether two JSON values are equal and of the same kinds throughout (`1` is not `1.0`, `true` is not `1`)."""
    if isinstance(found, str) and isinstance(wanted, str):
        return found == wanted
    pending = [(found, wanted)]
    while pending:
        left, right = pending.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pending.extend((left[key], right[key]) for key in right)
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pending.extend(zip(left, right, strict=True))
        elif (left is not None or right is not None) and (_kind(left) is None or not _same(left, right)):
            return False
    return True


# --- tests: each knows its value and, where that is not True, what to show an operator -------------------------------

Why: TypeAlias = tuple[str, str]
"""A test's name and its pointer (two, joined by a comma, where a test compares two). Never a value."""


class _Node(Protocol):
    def value(self, evidence: Evidence, here: Any) -> Truth: ...

    def why(self, evidence: Evidence, here: Any) -> Why:
        """Return the first test that was not true; asked only where `value` is not True."""

    def mark(self) -> Why:
        """Return the name and pointer of the first test, whatever its value."""


def _both(left: Reference, right: Reference) -> str:
    return f"{left.text}, {right.text}"


def _among(value: Any, literals: Sequence[Any]) -> Truth:
    """Whether a value is one of the literals; unknown where it is of no literal's kind."""
    if any(_same(value, literal) for literal in literals):
        return True
    kind = _kind(value)
    return False if kind is not None and any(_kind(literal) == kind for literal in literals) else None


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A test of one reference: `check` sees the value alone."""

    name: str
    at: Reference
    check: Callable[[Any], Truth]

    def value(self, evidence: Evidence, here: Any) -> Truth:
        return self.check(self.at.read(evidence, here))

    def why(self, evidence: Evidence, here: Any) -> Why:  # noqa: ARG002 (one test, one answer)
        return self.mark()

    def mark(self) -> Why:
        return self.name, self.at.text


def _is_null(value: Any) -> Truth:
    return None if value is MISSING or value is _UNUSABLE else value is None


def _first_token(token: str) -> Callable[[Any], Truth]:
    def check(value: Any) -> Truth:
        if not isinstance(value, str):
            return None
        text = value.lstrip(_WHITE_SPACE)
        return text.startswith(token) and text[len(token) : len(token) + 1] in {"", *_WHITE_SPACE}

    return check


@dataclass(frozen=True, slots=True)
class _Present(_Leaf):
    """`present`: False only where a member is missing from an object that is there."""

    def value(self, evidence: Evidence, here: Any) -> Truth:
        value = self.at.read(evidence, here)
        if value is MISSING:
            return False if self._parent_is_object(here) else None
        return None if value is None or value is _UNUSABLE else True

    def _parent_is_object(self, here: Any) -> bool:
        return bool(self.at.tokens) and isinstance(resolve(here, (self.at.tokens or ())[:-1]), dict)


@dataclass(frozen=True, slots=True)
class _Contains:
    """`contains`: some element's `rest` equals the literal; as `any` of `equals` over the elements."""

    text: str
    array: Reference
    rest: Reference
    literal: Any

    def value(self, evidence: Evidence, here: Any) -> Truth:
        elements = self.array.read(evidence, here)
        if not isinstance(elements, list):
            return None
        return _any(_among(self.rest.read(evidence, element), (self.literal,)) for element in elements)

    def why(self, evidence: Evidence, here: Any) -> Why:  # noqa: ARG002
        return self.mark()

    def mark(self) -> Why:
        return "contains", self.text


@dataclass(frozen=True, slots=True)
class _Agree:
    """`agree`: whatever of the list resolves is equal. A container or unusable text leaves it unknown, not agreed."""

    refs: tuple[Reference, ...]

    def value(self, evidence: Evidence, here: Any) -> Truth:
        values = [ref.read(evidence, here) for ref in self.refs]
        found = [value for value in values if value is not MISSING and value is not None]
        scalars = [value for value in found if _kind(value) is not None]
        if any(not _same(scalars[0], value) for value in scalars[1:]):
            return False
        return True if scalars and len(scalars) == len(found) else None

    def why(self, evidence: Evidence, here: Any) -> Why:
        first: tuple[Reference, Any] | None = None
        for ref in self.refs:
            value = ref.read(evidence, here)
            if value is MISSING or value is None:
                continue
            if _kind(value) is None:
                return "agree", ref.text
            first = first or (ref, value)
            if not _same(first[1], value):
                return "agree", _both(first[0], ref)
        return self.mark()

    def mark(self) -> Why:
        return "agree", self.refs[0].text


@dataclass(frozen=True, slots=True)
class _Pair:
    """A test of two references, unknown unless `side` makes something of both; `check` sees what it made."""

    before: Reference
    after: Reference
    name: str
    side: Callable[[Any], Any]
    check: Callable[[Any, Any], Truth]

    def value(self, evidence: Evidence, here: Any) -> Truth:
        before, after = (self.side(ref.read(evidence, here)) for ref in (self.before, self.after))
        return None if before is None or after is None else self.check(before, after)

    def why(self, evidence: Evidence, here: Any) -> Why:
        unfit = [ref for ref in (self.before, self.after) if self.side(ref.read(evidence, here)) is None]
        return (self.name, unfit[0].text) if unfit else self.mark()

    def mark(self) -> Why:
        return self.name, _both(self.before, self.after)


def _scalar(value: Any) -> Any:
    return None if _kind(value) is None else value


def _differ(left: Any, right: Any) -> Truth:
    return not _same(left, right)


def _changed(sources: Sequence[Any] | None, targets: Sequence[Any] | None) -> Callable[[Any, Any], Truth]:
    """Unknown if any part is: an atomic test does not weigh a false part against a mistyped one."""

    def check(before: Any, after: Any) -> Truth:
        parts: list[Truth] = [_moved(before, after)]
        parts += [_among(before, sources)] if sources is not None else []
        parts += [_among(after, targets)] if targets is not None else []
        return None if None in parts else all(parts)

    return check


def _moved(before: Any, after: Any) -> Truth:
    """Whether a value changed. Values of two kinds are no change but a mistake; 1 to 1.5 is one, 1 to 1.0 unknown."""
    if _kind(before) == _kind(after):
        return bool(before != after)
    if {_kind(before), _kind(after)} == {"integer", "number"}:
        return True if before != after else None
    return None


def _key(element: Any) -> str | None:
    """Return a text that stands for one usable scalar element; equal exactly where the elements are. None otherwise."""
    kind = _kind(_screen(element))
    if kind == "text":
        return "t" + str(element)
    if kind == "number":
        return "n" + (float(element) + 0.0).hex()  # -0.0 and 0.0 are one value
    if kind == "integer":
        return "i" + hex(element)
    return f"b{element}" if kind == "boolean" else None


def _elements(separator: str | None) -> Callable[[Any], frozenset[str] | None]:
    """Return the reader of one side of `added` and `removed`: its elements, or None where they are not a clean set."""

    def read(value: Any) -> frozenset[str] | None:
        if value is None:
            return frozenset()
        parts = _parts(value, separator)
        if parts is None:
            return None
        keys = [_key(part) for part in parts]
        unique = frozenset(key for key in keys if key is not None)
        return unique if len(unique) == len(keys) else None

    return read


def _parts(value: Any, separator: str | None) -> list[Any] | None:
    if separator is None:
        return value if isinstance(value, list) else None
    if not isinstance(value, str):
        return None
    return [part for part in (piece.strip(" ") for piece in value.split(separator)) if part]


def _one_moved(*, added: bool) -> Callable[[frozenset[str], frozenset[str]], Truth]:
    """Exactly one element is on one side alone; more than one leaves open which was meant."""

    def check(before: frozenset[str], after: frozenset[str]) -> Truth:
        moved = before ^ after
        return None if len(moved) > 1 else bool(moved & (after if added else before))

    return check


@dataclass(frozen=True, slots=True)
class _One:
    """`one`: exactly one element satisfies `where`, and `then` holds for it.

    No element: False. Two, or one beside an element that may be a second (its `where` is unknown): unknown.
    """

    array: Reference
    where: _Node
    then: _Node

    def _chosen(self, evidence: Evidence, here: Any) -> tuple[Truth, Any]:
        elements = self.array.read(evidence, here)
        if not isinstance(elements, list):
            return None, None
        chosen: list[Any] = []
        for element in elements:
            truth = self.where.value(evidence, element)
            if truth is None or (truth and chosen):
                return None, None
            chosen += [element] if truth else []
        return (True, chosen[0]) if chosen else (False, None)

    def value(self, evidence: Evidence, here: Any) -> Truth:
        found, element = self._chosen(evidence, here)
        return self.then.value(evidence, element) if found else found

    def why(self, evidence: Evidence, here: Any) -> Why:
        found, element = self._chosen(evidence, here)
        if not found:
            return self.mark()
        name, pointers = self.then.why(evidence, element)
        # the place is the declaration's (`*`), not the delivery's: positions would make every record different
        return name, ", ".join(self._place(pointer) for pointer in pointers.split(", "))

    def _place(self, pointer: str) -> str:
        return f"{self.array.text}/*{pointer}" if pointer == "" or pointer.startswith("/") else pointer

    def mark(self) -> Why:
        return "one", self.array.text


def _any(truths: Iterable[Truth]) -> Truth:
    result: Truth = False
    for truth in truths:
        if truth is True:
            return True
        result = None if truth is None else result
    return result


@dataclass(frozen=True, slots=True)
class _Group:
    """`all` and `any`."""

    decisive: bool  # False of `all`, True of `any`: one such branch decides
    nodes: tuple[_Node, ...]

    def value(self, evidence: Evidence, here: Any) -> Truth:
        result: Truth = not self.decisive
        for node in self.nodes:
            truth = node.value(evidence, here)
            if truth is self.decisive:
                return truth
            if truth is None:
                result = None
        return result

    def why(self, evidence: Evidence, here: Any) -> Why:
        return next(node.why(evidence, here) for node in self.nodes if node.value(evidence, here) is not True)

    def mark(self) -> Why:
        return self.nodes[0].mark()


@dataclass(frozen=True, slots=True)
class _Not:
    """`not`: explained as `not-TEST` where the test held, as the test itself where it is unknown."""

    node: _Node

    def value(self, evidence: Evidence, here: Any) -> Truth:
        truth = self.node.value(evidence, here)
        return None if truth is None else not truth

    def why(self, evidence: Evidence, here: Any) -> Why:
        if self.node.value(evidence, here) is None:
            return self.node.why(evidence, here)
        return self.mark()

    def mark(self) -> Why:
        name, pointer = self.node.mark()
        return f"not-{name}", pointer


# --- compiling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Predicate:
    """A compiled predicate, with the `facts` (without `@`) and `names` it reads, for the declaration to check."""

    root: _Node = field(repr=False)
    facts: frozenset[str]
    names: frozenset[str]


def compile_predicate(spec: Any) -> Predicate:
    """Compile the decoded form of a `when` or a nested test.

    Raises ValueError that names the place and the problem; within a list of branches, those of every branch.
    """
    compiler = _Compiler()
    root = compiler.node(spec, "when", 1)
    return Predicate(root, frozenset(compiler.facts), frozenset(compiler.names))


class _BoundError(ValueError):
    """A bound of the whole predicate: reported alone, since whatever else stands in it was not looked at."""


class _Compiler:
    """One compilation: counts nodes and collects what is referred to."""

    def __init__(self) -> None:
        self.nodes = 0
        self.facts: set[str] = set()
        self.names: set[str] = set()
        self._tests: dict[str, Callable[[Any, str, int], _Node]] = {
            "all": self._all,
            "any": self._any,
            "not": self._not,
            "equals": self._equals,
            "in": self._in,
            "present": self._present,
            "null": self._null,
            "agree": self._agree,
            "differ": self._differ,
            "first-token": self._first_token,
            "contains": self._contains,
            "changed": self._changed,
            "added": self._added,
            "removed": self._removed,
            "one": self._one,
        }

    def node(self, spec: Any, place: str, depth: int) -> _Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _BoundError(f"{place}: more than {MAX_NODES} nodes")
        if depth > MAX_DEPTH:
            raise _BoundError(f"{place}: deeper than {MAX_DEPTH} levels")
        if not isinstance(spec, dict) or len(spec) != 1:
            raise ValueError(f"{place}: a test is an object with exactly one member, its name")
        ((key, argument),) = spec.items()
        name = "null" if key is None else key  # YAML reads the plain key `null` as its null value
        if not isinstance(name, str) or name not in self._tests:
            raise ValueError(f"{place}: unknown test, one of {', '.join(self._tests)} is meant")
        return self._tests[name](argument, f"{place}.{name}", depth)

    # combinators

    def _branches(self, argument: Any, place: str, depth: int) -> tuple[_Node, ...]:
        if not isinstance(argument, list) or not argument:
            raise ValueError(f"{place}: takes a list of at least one test")
        nodes: list[_Node] = []
        problems: list[str] = []
        for index, spec in enumerate(argument):
            try:
                nodes.append(self.node(spec, f"{place}[{index}]", depth + 1))
            except _BoundError:
                raise
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return tuple(nodes)

    def _all(self, argument: Any, place: str, depth: int) -> _Node:
        return _Group(False, self._branches(argument, place, depth))

    def _any(self, argument: Any, place: str, depth: int) -> _Node:
        return _Group(True, self._branches(argument, place, depth))

    def _not(self, argument: Any, place: str, depth: int) -> _Node:
        return _Not(self.node(argument, place, depth + 1))

    def _one(self, argument: Any, place: str, depth: int) -> _Node:
        members = _members(argument, place, required=("in", "where", "then"))
        array = self._reference(members["in"], f"{place}.in")
        where = self.node(members["where"], f"{place}.where", depth + 1)
        return _One(array, where, self.node(members["then"], f"{place}.then", depth + 1))

    # tests

    def _equals(self, argument: Any, place: str, _depth: int) -> _Node:
        pointer, literal = _two(argument, place)
        literals = (_literal(literal, place),)
        return _Leaf("equals", self._reference(pointer, place), lambda value: _among(value, literals))

    def _in(self, argument: Any, place: str, _depth: int) -> _Node:
        pointer, listed = _two(argument, place)
        literals = _literals(listed, place)
        return _Leaf("in", self._reference(pointer, place), lambda value: _among(value, literals))

    def _present(self, argument: Any, place: str, _depth: int) -> _Node:
        return _Present("present", self._reference(argument, place), _is_null)

    def _null(self, argument: Any, place: str, _depth: int) -> _Node:
        return _Leaf("null", self._reference(argument, place), _is_null)

    def _first_token(self, argument: Any, place: str, _depth: int) -> _Node:
        pointer, token = _two(argument, place)
        _literal(token, place)
        if not isinstance(token, str) or not token or any(char in _WHITE_SPACE for char in token):
            raise ValueError(f"{place}: the token is text without white space")
        return _Leaf("first-token", self._reference(pointer, place), _first_token(token))

    def _agree(self, argument: Any, place: str, _depth: int) -> _Node:
        if not isinstance(argument, list) or not argument:
            raise ValueError(f"{place}: takes a list of at least one reference")
        if len(argument) > MAX_NODES:
            raise ValueError(f"{place}: more than {MAX_NODES} references")
        return _Agree(tuple(self._reference(text, place, names=True) for text in argument))

    def _differ(self, argument: Any, place: str, _depth: int) -> _Node:
        left, right = (self._reference(text, place, names=True) for text in _two(argument, place))
        return _Pair(left, right, "differ", _scalar, _differ)

    def _contains(self, argument: Any, place: str, _depth: int) -> _Node:
        pointer, literal = _two(argument, place)
        _literal(literal, place)
        whole = self._reference(pointer, place, wildcard=True)
        tokens = whole.tokens
        if tokens is None:
            raise ValueError(f"{place}: takes a pointer, not a fact")
        if tokens.count("*") > 1:
            raise ValueError(f"{place}: a pointer has at most one wildcard *")
        at = tokens.index("*") if "*" in tokens else len(tokens)
        array, rest = tokens[:at], tokens[at + 1 :]
        return _Contains(whole.text, Reference(whole.text, array), Reference(whole.text, rest), literal)

    def _changed(self, argument: Any, place: str, _depth: int) -> _Node:
        members = _members(argument, place, required=("before", "after"), optional=("from", "to"))
        sides = self._sides(members, place)
        sources, targets = (
            _literals(members[key], f"{place}.{key}") if key in members else None for key in ("from", "to")
        )
        return _Pair(*sides, "changed", _scalar, _changed(sources, targets))

    def _added(self, argument: Any, place: str, _depth: int) -> _Node:
        return self._moved(argument, place, added=True)

    def _removed(self, argument: Any, place: str, _depth: int) -> _Node:
        return self._moved(argument, place, added=False)

    def _moved(self, argument: Any, place: str, *, added: bool) -> _Node:
        members = _members(argument, place, required=("before", "after"), optional=("separator",))
        sides = self._sides(members, place)
        separator = members.get("separator")
        if "separator" in members:
            _literal(separator, place)
            if not isinstance(separator, str) or not separator:
                raise ValueError(f"{place}.separator: is text of at least one character")
        return _Pair(*sides, "added" if added else "removed", _elements(separator), _one_moved(added=added))

    def _sides(self, members: Mapping[str, Any], place: str) -> tuple[Reference, Reference]:
        return (
            self._reference(members["before"], f"{place}.before"),
            self._reference(members["after"], f"{place}.after"),
        )

    def _reference(self, text: Any, place: str, *, names: bool = False, wildcard: bool = False) -> Reference:
        """Check and register one reference."""
        if not isinstance(text, str) or not usable_text(text):
            raise ValueError(f"{place}: a pointer is text")
        if len(text.encode()) > MAX_POINTER_BYTES:
            raise ValueError(f"{place}: a pointer has at most {MAX_POINTER_BYTES} bytes")
        if text.startswith("@"):
            if NAME.fullmatch(text[1:]) is None:
                raise ValueError(f"{place}: {text!r} names no fact")
            self.facts.add(text[1:])
            return Reference(text, None)
        if text == "" or text.startswith("/"):
            return Reference(text, _pointer(text, place, wildcard=wildcard))
        if not names or NAME.fullmatch(text) is None:
            raise ValueError(f"{place}: {text!r} is no pointer (names stand in agree and differ only)")
        self.names.add(text)
        return Reference(text, None)


def _pointer(text: str, place: str, *, wildcard: bool) -> tuple[str, ...]:
    try:
        tokens = parse(text)
    except ValueError as error:
        raise ValueError(f"{place}: {text!r}: {error}") from error
    if "*" in tokens and not wildcard:
        raise ValueError(f"{place}: the wildcard * stands in contains only")
    return tokens


def _two(argument: Any, place: str) -> tuple[Any, Any]:
    if not isinstance(argument, list) or len(argument) != 2:
        raise ValueError(f"{place}: takes a list of two")
    return argument[0], argument[1]


def _members(
    argument: Any, place: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(argument, dict):
        raise ValueError(f"{place}: takes an object")  # noqa: TRY004 (a declaration's problem, told with the others)
    missing = [key for key in required if key not in argument]
    if missing or not argument.keys() <= {*required, *optional}:
        raise ValueError(f"{place}: takes {', '.join(required)}" + "".join(f", optionally {key}" for key in optional))
    return argument


def _literals(argument: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(argument, list) or not argument:
        raise ValueError(f"{place}: takes a list of at least one literal")
    _bounded(argument, place)
    return tuple(_literal(literal, place) for literal in argument)


def _literal(literal: Any, place: str) -> Any:
    """Return a literal that evidence can be compared with. Null has its own test."""
    if _kind(_screen(literal)) is None:
        raise ValueError(f"{place}: a literal is text, a boolean or a number (for null there is the test null)")
    if isinstance(literal, float) and literal.is_integer():
        # RFC 8785 writes 7.0 as 7, so the frozen document would ask for the integer that this literal is not
        raise ValueError(f"{place}: a whole number is written as an integer")
    _bounded(literal, place)
    return literal


def _bounded(literal: Any, place: str) -> None:
    try:
        text = json.dumps(literal, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size_bytes = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place}: is not JSON") from error
    if size_bytes > MAX_LITERAL_BYTES:
        raise ValueError(f"{place}: a literal has at most {MAX_LITERAL_BYTES} bytes")


# --- evaluating -----------------------------------------------------------------------------------------------------


def evaluate(predicate: Predicate, evidence: Evidence) -> Truth:
    """Return True, False or None (unknown). Only True is a match."""
    return predicate.root.value(evidence, evidence.document)


def explain(predicate: Predicate, evidence: Evidence) -> Why | None:
    """Return the first test that was not true and its pointer, None where the predicate is True.

    A test that compares two places names both, `"/a, /b"`; inside `one` the element is written `*`; a test that held
    under a `not` is called `not-TEST`. Nothing of the evidence is in the answer.
    """
    if evaluate(predicate, evidence) is True:
        return None
    return predicate.root.why(evidence, evidence.document)
