"""`Evidence`: what one verified event offers, how a reference reads it, and when two of its values are equal.

A *reference* is a JSON Pointer (https://www.rfc-editor.org/rfc/rfc6901), `@fact`, or the name of an extracted or
normalized value. Nothing is coerced, folded or trimmed. Text with a lone surrogate is there and unusable.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from gateway.pointers import MISSING, parse, resolve
from gateway.strict_json import has_surrogate
from gateway.structs import Value

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
"""How extracted and normalized names, and facts after their `@`, are written."""


class _Unusable:
    """The type of `UNUSABLE`: text that is there and may not be used as evidence (a lone surrogate)."""


UNUSABLE: Final = _Unusable()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def usable_text(text: str) -> bool:
    """Whether `text` can be written as UTF-8, that is, holds no lone surrogate."""
    return text.isascii() or not has_surrogate(text)


def screen(value: Any) -> Any:
    """Return a value as it is, text that cannot be used as `UNUSABLE`."""
    return UNUSABLE if isinstance(value, str) and not usable_text(value) else value


def _screened(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: screen(value) for name, value in values.items()}


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
        """Return the fact, `UNUSABLE` or `MISSING`."""
        if self._facts is None:
            self._facts = _screened(self.facts)
        return self._facts.get(name, MISSING)

    def name(self, name: str) -> Any:
        """Return the value of a name, `UNUSABLE` or `MISSING`."""
        if self._names is None:
            self._names = _screened(self.names)
        return self._names.get(name, MISSING)

    def with_names(self, names: Mapping[str, Any]) -> "Evidence":
        """Return the same evidence with other `names`."""
        return Evidence(self.document, self.facts, names)


class Reference(Value):
    """A parsed reference: `tokens` of a pointer, None for a fact or a name."""

    text: str
    tokens: tuple[str, ...] | None

    def read(self, evidence: Evidence, here: Any) -> Any:
        """Return the value, None, `MISSING` or `UNUSABLE`; a pointer is relative to `here`."""
        if self.tokens is not None:
            return screen(resolve(here, self.tokens))
        if self.text.startswith("@"):
            return evidence.fact(self.text[1:])
        return evidence.name(self.text)

    def get(self, evidence: Evidence) -> Any:
        """Return the value of the whole document, None for null, `MISSING` where there is none to use."""
        found = self.read(evidence, evidence.document)
        return MISSING if found is UNUSABLE else found


@lru_cache(maxsize=4096)
def parse_reference(text: str) -> Reference:
    """Parse a pointer, `@fact` or name. Raises ValueError for a malformed pointer."""
    return Reference(text, parse(text) if text == "" or text.startswith("/") else None)


def kind_of(value: Any) -> str | None:
    """Return the kind of a usable scalar, else None: null, containers, missing and unusable values are no scalars."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) and math.isfinite(value) else None


def same(left: Any, right: Any) -> bool:
    """Whether two scalars are of one kind and equal."""
    return kind_of(left) == kind_of(right) and bool(left == right)


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
        elif (left is not None or right is not None) and (kind_of(left) is None or not same(left, right)):
            return False
    return True
