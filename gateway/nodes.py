# ruff: noqa: D102 (what the methods do is told once, in `Node`)
"""The nodes of a compiled predicate: each knows its value and, where that is not True, what to show an operator."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

from gateway.checks import Truth, among
from gateway.evidence import UNUSABLE, Evidence, Reference, kind_of, same
from gateway.pointers import MISSING, resolve
from gateway.structs import Value

Why: TypeAlias = tuple[str, str]
"""A test's name and its pointer (two, joined by a comma, where a test compares two). Never a value."""


class Node(Protocol):
    """What every node answers of one event's evidence; a pointer is relative to `here`."""

    def value(self, evidence: Evidence, here: Any) -> Truth:
        """Return True, False or None (unknown)."""

    def why(self, evidence: Evidence, here: Any) -> Why:
        """Return the first test that was not true; asked only where `value` is not True."""

    def mark(self) -> Why:
        """Return the name and pointer of the first test, whatever its value."""


def _both(left: Reference, right: Reference) -> str:
    return f"{left.text}, {right.text}"


class Leaf(Value):
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


class Present(Leaf):
    """`present`: False only where a member is missing from an object that is there."""

    def value(self, evidence: Evidence, here: Any) -> Truth:
        value = self.at.read(evidence, here)
        if value is MISSING:
            return False if self._parent_is_object(here) else None
        return None if value is None or value is UNUSABLE else True

    def _parent_is_object(self, here: Any) -> bool:
        return bool(self.at.tokens) and isinstance(resolve(here, (self.at.tokens or ())[:-1]), dict)


class Contains(Value):
    """`contains`: some element's `rest` equals the literal; as `any` of `equals` over the elements."""

    text: str
    array: Reference
    rest: Reference
    literal: Any

    def value(self, evidence: Evidence, here: Any) -> Truth:
        elements = self.array.read(evidence, here)
        if not isinstance(elements, list):
            return None
        return _any(among(self.rest.read(evidence, element), (self.literal,)) for element in elements)

    def why(self, evidence: Evidence, here: Any) -> Why:  # noqa: ARG002
        return self.mark()

    def mark(self) -> Why:
        return "contains", self.text


class Agree(Value):
    """`agree`: whatever of the list resolves is equal. A container or unusable text leaves it unknown, not agreed."""

    refs: tuple[Reference, ...]

    def value(self, evidence: Evidence, here: Any) -> Truth:
        values = [ref.read(evidence, here) for ref in self.refs]
        found = [value for value in values if value is not MISSING and value is not None]
        scalars = [value for value in found if kind_of(value) is not None]
        if any(not same(scalars[0], value) for value in scalars[1:]):
            return False
        return True if scalars and len(scalars) == len(found) else None

    def why(self, evidence: Evidence, here: Any) -> Why:
        first: tuple[Reference, Any] | None = None
        for ref in self.refs:
            value = ref.read(evidence, here)
            if value is MISSING or value is None:
                continue
            if kind_of(value) is None:
                return "agree", ref.text
            first = first or (ref, value)
            if not same(first[1], value):
                return "agree", _both(first[0], ref)
        return self.mark()

    def mark(self) -> Why:
        return "agree", self.refs[0].text


class Pair(Value):
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


class One(Value):
    """`one`: exactly one element satisfies `where`, and `then` holds for it.

    No element: False. Two, or one beside an element that may be a second (its `where` is unknown): unknown.
    """

    array: Reference
    where: Node
    then: Node

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


class Group(Value):
    """`all` and `any`."""

    decisive: bool  # False of `all`, True of `any`: one such branch decides
    nodes: tuple[Node, ...]

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


class Not(Value):
    """`not`: explained as `not-TEST` where the test held, as the test itself where it is unknown."""

    node: Node

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
