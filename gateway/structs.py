"""`@struct`: a frozen, slotted dataclass for the hot path.

`@dataclass(frozen=True)` sets every field through `object.__setattr__`, seven times the cost of a plain assignment, and a
delivery makes some twenty such objects. This one is frozen for the type checker, which refuses every assignment, and
plain at run time. See https://typing.python.org/en/latest/spec/dataclasses.html#the-dataclass-transform-decorator
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make a class one of values: compared and hashed by its fields, never changed after it was made."""
    make: Callable[[type[T]], type[T]] = dataclass(slots=True, unsafe_hash=True)
    return make(cls)
