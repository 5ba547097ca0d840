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

Names of extracted and normalized values stand in `agree` and `differ` alone.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.checks import (
    WHITE_SPACE,
    Truth,
    among,
    changed,
    differ,
    elements_of,
    first_token,
    is_null,
    one_moved,
    scalar,
)
from gateway.evidence import NAME, Evidence, Reference, kind_of, screen, usable_text
from gateway.nodes import Agree, Contains, Group, Leaf, Node, Not, One, Pair, Present, Why
from gateway.pointers import parse
from gateway.structs import Value

MAX_NODES: Final = 64
MAX_DEPTH: Final = 8
MAX_POINTER_BYTES: Final = 256
MAX_LITERAL_BYTES: Final = 4096


class Predicate(Value):
    """A compiled predicate, with the `facts` (without `@`) and `names` it reads, for the declaration to check."""

    root: Node
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
        self._tests: dict[str, Callable[[Any, str, int], Node]] = {
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

    def node(self, spec: Any, place: str, depth: int) -> Node:
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

    def _branches(self, argument: Any, place: str, depth: int) -> tuple[Node, ...]:
        if not isinstance(argument, list) or not argument:
            raise ValueError(f"{place}: takes a list of at least one test")
        nodes: list[Node] = []
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

    def _all(self, argument: Any, place: str, depth: int) -> Node:
        return Group(False, self._branches(argument, place, depth))

    def _any(self, argument: Any, place: str, depth: int) -> Node:
        return Group(True, self._branches(argument, place, depth))

    def _not(self, argument: Any, place: str, depth: int) -> Node:
        return Not(self.node(argument, place, depth + 1))

    def _one(self, argument: Any, place: str, depth: int) -> Node:
        members = _members(argument, place, required=("in", "where", "then"))
        array = self._reference(members["in"], f"{place}.in")
        where = self.node(members["where"], f"{place}.where", depth + 1)
        return One(array, where, self.node(members["then"], f"{place}.then", depth + 1))

    # tests

    def _equals(self, argument: Any, place: str, _depth: int) -> Node:
        pointer, literal = _two(argument, place)
        literals = (_literal(literal, place),)
        return Leaf("equals", self._reference(pointer, place), lambda value: among(value, literals))

    def _in(self, argument: Any, place: str, _depth: int) -> Node:
        pointer, listed = _two(argument, place)
        literals = _literals(listed, place)
        return Leaf("in", self._reference(pointer, place), lambda value: among(value, literals))

    def _present(self, argument: Any, place: str, _depth: int) -> Node:
        return Present("present", self._reference(argument, place), is_null)

    def _null(self, argument: Any, place: str, _depth: int) -> Node:
        return Leaf("null", self._reference(argument, place), is_null)

    def _first_token(self, argument: Any, place: str, _depth: int) -> Node:
        pointer, token = _two(argument, place)
        _literal(token, place)
        if not isinstance(token, str) or not token or any(char in WHITE_SPACE for char in token):
            raise ValueError(f"{place}: the token is text without white space")
        return Leaf("first-token", self._reference(pointer, place), first_token(token))

    def _agree(self, argument: Any, place: str, _depth: int) -> Node:
        if not isinstance(argument, list) or not argument:
            raise ValueError(f"{place}: takes a list of at least one reference")
        if len(argument) > MAX_NODES:
            raise ValueError(f"{place}: more than {MAX_NODES} references")
        return Agree(tuple(self._reference(text, place, names=True) for text in argument))

    def _differ(self, argument: Any, place: str, _depth: int) -> Node:
        left, right = (self._reference(text, place, names=True) for text in _two(argument, place))
        return Pair(left, right, "differ", scalar, differ)

    def _contains(self, argument: Any, place: str, _depth: int) -> Node:
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
        return Contains(whole.text, Reference(whole.text, array), Reference(whole.text, rest), literal)

    def _changed(self, argument: Any, place: str, _depth: int) -> Node:
        members = _members(argument, place, required=("before", "after"), optional=("from", "to"))
        sides = self._sides(members, place)
        sources, targets = (
            _literals(members[key], f"{place}.{key}") if key in members else None for key in ("from", "to")
        )
        return Pair(*sides, "changed", scalar, changed(sources, targets))

    def _added(self, argument: Any, place: str, _depth: int) -> Node:
        return self._moved(argument, place, added=True)

    def _removed(self, argument: Any, place: str, _depth: int) -> Node:
        return self._moved(argument, place, added=False)

    def _moved(self, argument: Any, place: str, *, added: bool) -> Node:
        members = _members(argument, place, required=("before", "after"), optional=("separator",))
        sides = self._sides(members, place)
        separator = members.get("separator")
        if "separator" in members:
            _literal(separator, place)
            if not isinstance(separator, str) or not separator:
                raise ValueError(f"{place}.separator: is text of at least one character")
        return Pair(*sides, "added" if added else "removed", elements_of(separator), one_moved(added=added))

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
    if kind_of(screen(literal)) is None:
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
