"""What a test asks of the values that were read: functions of values alone, with three answers.

A value that is missing, null, unusable or of a kind that was not asked for leaves the answer unknown.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from gateway.evidence import UNUSABLE, kind_of, same, screen
from gateway.pointers import MISSING

Truth: TypeAlias = bool | None
"""True, False, or None for unknown."""

WHITE_SPACE: Final = " \t\n\r\v\f"  # ASCII only: what a mention or a slash command is delimited by


def among(value: Any, literals: Sequence[Any]) -> Truth:
    """Whether a value is one of the literals; unknown where it is of no literal's kind."""
    if any(same(value, literal) for literal in literals):
        return True
    kind = kind_of(value)
    return False if kind is not None and any(kind_of(literal) == kind for literal in literals) else None


def is_null(value: Any) -> Truth:
    """Whether a value is an explicit null; unknown where there is none to use."""
    return None if value is MISSING or value is UNUSABLE else value is None


def first_token(token: str) -> Callable[[Any], Truth]:
    """Return the check that a text begins with `token` and that white space or nothing follows."""

    def check(value: Any) -> Truth:
        if not isinstance(value, str):
            return None
        text = value.lstrip(WHITE_SPACE)
        return text.startswith(token) and text[len(token) : len(token) + 1] in {"", *WHITE_SPACE}

    return check


def scalar(value: Any) -> Any:
    """Return a usable scalar as it is, None for anything else: one side of `differ` and `changed`."""
    return None if kind_of(value) is None else value


def differ(left: Any, right: Any) -> Truth:
    """Whether two scalars are not the same."""
    return not same(left, right)


def changed(sources: Sequence[Any] | None, targets: Sequence[Any] | None) -> Callable[[Any, Any], Truth]:
    """Return the check of `changed`, unknown if any part is: an atomic test does not weigh a false part against a mistyped one."""

    def check(before: Any, after: Any) -> Truth:
        parts: list[Truth] = [_moved(before, after)]
        parts += [among(before, sources)] if sources is not None else []
        parts += [among(after, targets)] if targets is not None else []
        return None if None in parts else all(parts)

    return check


def _moved(before: Any, after: Any) -> Truth:
    """Whether a value changed. Values of two kinds are no change but a mistake; 1 to 1.5 is one, 1 to 1.0 unknown."""
    if kind_of(before) == kind_of(after):
        return bool(before != after)
    if {kind_of(before), kind_of(after)} == {"integer", "number"}:
        return True if before != after else None
    return None


def _key(element: Any) -> str | None:
    """Return a text that stands for one usable scalar element; equal exactly where the elements are. None otherwise."""
    kind = kind_of(screen(element))
    if kind == "text":
        return "t" + str(element)
    if kind == "number":
        return "n" + (float(element) + 0.0).hex()  # -0.0 and 0.0 are one value
    if kind == "integer":
        return "i" + hex(element)
    return f"b{element}" if kind == "boolean" else None


def elements_of(separator: str | None) -> Callable[[Any], frozenset[str] | None]:
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


def one_moved(*, added: bool) -> Callable[[frozenset[str], frozenset[str]], Truth]:
    """Return the check that exactly one element is on one side alone; more than one leaves open which was meant."""

    def check(before: frozenset[str], after: frozenset[str]) -> Truth:
        moved = before ^ after
        return None if len(moved) > 1 else bool(moved & (after if added else before))

    return check
