"""Values never change, and those that hold a secret or a body never show it."""

import dataclasses
import importlib
import pkgutil
from typing import get_type_hints

import pytest
from rich.pretty import pretty_repr

import gateway
from gateway.credentials import Token
from gateway.delivery import RawDelivery
from gateway.structs import Opaque, Value, field, force_setattr, replace

HOLDING = {"body", "claims", "csrf", "headers", "secret", "secrets", "signature", "token", "client_secret", "_token"}


class Point(Value):
    x: int
    y: int = 0


class Holder(Value):
    held: Opaque


class Sum(Value):
    parts: tuple[int, ...]
    total: int = field(default=0)

    def __post_init__(self) -> None:
        force_setattr(self, "total", sum(self.parts))


def test_a_value_cannot_be_changed_and_another_made_of_it() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    assert replace(point, y=3) == Point(1, 3) != point
    assert len({point, Point(1), Point(1, 3)}) == 2


def test_what_a_value_works_out_is_worked_out_again_for_one_made_of_it() -> None:
    """msgspec before 0.21 left it as it was: a header that was added was not found, a problem's file not made printable."""
    assert replace(Sum((1, 2)), parts=(3, 4)).total == 7
    raw = RawDelivery("id", "source", 0.0, (), b"", b"")
    assert replace(raw, headers=((b"x-event", b"push"),)).header("x-event") == b"push"


def test_what_is_opaque_shows_nothing_wherever_it_is_held() -> None:
    holder = Holder(Token("hush", 1.0, 2.0))
    assert repr(holder) == "Holder(held=Token(...))"
    assert "hush" not in pretty_repr(holder)


def classes() -> set[type]:
    """Every class of the package."""
    names = [found.name for found in pkgutil.walk_packages(gateway.__path__, "gateway.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__.startswith("gateway.")
    }


def test_no_value_shows_a_secret_a_token_a_body_or_a_header() -> None:
    values = [one for one in classes() if issubclass(one, Value)]
    assert len(values) > 100
    assert [
        f"{one.__module__}.{one.__qualname__}.{name}"
        for one in values
        for name, of in get_type_hints(one).items()
        if (name in HOLDING or of is bytes) and not issubclass(one, Opaque)
    ] == []


def test_no_dataclass_shows_one_either() -> None:
    made = [one for one in classes() if dataclasses.is_dataclass(one)]
    assert made
    assert [
        f"{one.__module__}.{one.__qualname__}.{of.name}"
        for one in made
        for of in dataclasses.fields(one)
        if (of.name in HOLDING or of.type is bytes) and of.repr
    ] == []


def test_no_value_has_a_default_that_was_made_for_a_dataclass() -> None:
    """It would be the default itself, one for all, and no type checker sees it."""
    defaults = [default for one in classes() if issubclass(one, Value) for default in one.__struct_defaults__]
    assert defaults
    assert not [default for default in defaults if isinstance(default, dataclasses.Field)]
