"""Errors by whose fault: ours at start, the sender's, ours now. Anything else that escapes is a bug."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gateway.structs import Value, force_setattr, replace

_NOTHING: Final[Mapping[str, str | None]] = MappingProxyType({})


def printable(text: str) -> str:
    """Write what would steer a terminal or not show in it (controls, marks of direction, half surrogates) as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class Problem(Value):
    """One configuration problem: the `file` and `key` it stands at, what is wrong, and the `fix`. Never a secret's value.

    Key and problem may quote a file that somebody else wrote, so all of it is made printable.
    """

    file: str
    key: str
    problem: str
    fix: str

    def __post_init__(self) -> None:
        for name in ("file", "key", "problem", "fix"):
            force_setattr(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.problem} ({self.fix})"


class ConfigError(Exception):
    """Ours, at start: every problem at once. Commands print them all and exit with 2."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)

    def at(self, file: str) -> "ConfigError":
        """The same, standing in the file that was read: what found it did not know its name."""
        return ConfigError([replace(problem, file=file) for problem in self.problems])


class Rejection(Exception):  # noqa: N818 (a delivery is rejected; nothing of ours failed)
    """The sender's fault. `reason` is a slug for log, metric and record; `status` the default HTTP status, body empty.

    A profile may map the status to another (`statuses`); nothing of the delivery is ever part of the exception. `about` is
    what its log line says beside reason and status: ids, once they are proven.
    """

    about: Mapping[str, str | None] = _NOTHING

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Unavailable(Exception):  # noqa: N818 (a state, not a defect)
    """Ours, now: answered 503 with an integer Retry-After of `retry_after_s`; nothing was consumed or it was applied whole.

    `about` as for a Rejection.
    """

    about: Mapping[str, str | None] = _NOTHING

    def __init__(self, reason: str, retry_after_s: int = 5) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
