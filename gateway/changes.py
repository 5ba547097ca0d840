"""What changed between two subscription documents: JSON Pointers with what stands there now and stood there before."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.canonical import canonical_json
from gateway.pointers import MISSING
from gateway.structs import Value

_DERIVED: Final = frozenset({"digest"})
_SHOWN: Final = 200


class Change(Value):
    """One difference: `kind` is added, removed or changed; a value is shown as JSON, cut."""

    pointer: str
    kind: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"{self.pointer}: {self.before} > {self.after}"
        return f"{self.pointer}: {self.kind} {self.after if self.kind == 'added' else self.before}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Compare two documents member by member. A list is compared as what it holds: grants have no order that matters."""
    return tuple(_compare("", _content(before), _content(after)))


def _content(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _DERIVED}


def _compare(pointer: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            at = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _compare(at, before.get(name, MISSING), after.get(name, MISSING))
    elif isinstance(before, list) and isinstance(after, list) and _scalars(before) and _scalars(after):
        gone = [Change(pointer, "removed", _show(one), None) for one in before if not _holds(after, one)]
        new = [Change(pointer, "added", None, _show(one)) for one in after if not _holds(before, one)]
        yield from (*gone, *new)
        if not gone and not new and canonical_json(before) != canonical_json(after):
            yield Change(pointer, "changed", _show(before), _show(after))  # another order is another digest
    elif before is MISSING:
        yield Change(pointer, "added", None, _show(after))
    elif after is MISSING:
        yield Change(pointer, "removed", _show(before), None)
    elif canonical_json(before) != canonical_json(after):
        yield Change(pointer, "changed", _show(before), _show(after))


def _scalars(values: list[Any]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in values)


def _holds(values: list[Any], wanted: Any) -> bool:
    return any(type(value) is type(wanted) and value == wanted for value in values)


def _show(value: Any) -> str:
    text = canonical_json(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
