"""What a look at a deployment finds: one thing that is well or not, and what to do about it."""

from collections.abc import AsyncGenerator
from typing import Literal

from gateway.errors import Problem
from gateway.structs import Value, asdict

State = Literal["ok", "warn", "fail"]
SKEW_WARN_S, SKEW_FAIL_S = 2.0, 30.0  # Forge tokens live 25 s, an App's JWT is dated back 60 s


class Finding(Value):
    """One thing that was looked at. `fix` is empty where it is well."""

    check: str
    state: State
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """The finding as scripts read it."""
        return asdict(self)


Findings = AsyncGenerator[Finding, None]


def of_problem(check: str, problem: Problem) -> Finding:
    """Make a finding of a problem of the configuration."""
    return Finding(check, "fail", f"{problem.file}: {problem.key or '(file)'}: {problem.problem}", problem.fix)


def skew(whose: str, theirs: float, ours: float) -> Finding:
    """Compare clocks. HTTP dates have whole seconds, so the half second is the caller's."""
    off = ours - theirs
    detail = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {whose}"
    fix = "run an NTP client: signed times are refused, or forged old ones taken, by a wrong clock"
    if abs(off) >= SKEW_FAIL_S:
        return Finding("clock", "fail", detail, fix)
    return Finding("clock", "warn", detail, fix) if abs(off) >= SKEW_WARN_S else Finding("clock", "ok", f"with {whose}")
