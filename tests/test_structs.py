"""Values never change, and those that hold a secret or a body never show it."""

import pytest

from gateway.credentials import Token
from gateway.structs import Opaque, Value, replace


class Point(Value):
    x: int
    y: int = 0


class Holder(Value):
    held: Opaque


def test_a_value_cannot_be_changed_and_another_made_of_it() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    assert replace(point, y=3) == Point(1, 3) != point
    assert len({point, Point(1), Point(1, 3)}) == 2


def test_what_is_opaque_shows_nothing_wherever_it_is_held() -> None:
    assert repr(Holder(Token("hush", 1.0, 2.0))) == "Holder(held=Token(...))"
