"""Look at a deployment from the outside in, and say what to mend. Changes nothing, and needs no running gateway."""

from contextlib import aclosing
from pathlib import Path

from gateway.configuration import Configuration, load_configuration
from gateway.doctor.app import github_side
from gateway.doctor.finding import Finding, Findings, of_problem
from gateway.doctor.public import public_side
from gateway.doctor.secrets import keys_side
from gateway.doctor.store import store_side
from gateway.errors import ConfigError
from gateway.github import open_session
from gateway.reach import unreachable


async def examine(path: Path) -> Findings:
    """Yield findings as they are made, the configuration first; without one, nothing else can be looked at."""
    try:
        configuration = load_configuration(path)
    except ConfigError as error:
        for problem in error.problems:
            yield of_problem("configuration", problem)
        return
    count, sources = len(configuration.enrolled), len(configuration.sources)
    yield Finding("configuration", "ok", f"{path}: {sources} source(s), {count} enrolled subscription(s)")
    for finding in unenrolled(configuration):
        yield finding
    async with open_session() as session:
        for part in (public_side, github_side, keys_side):
            async with aclosing(part(configuration, session)) as found:
                async for finding in found:
                    yield finding
        async with aclosing(store_side(configuration)) as found:
            async for finding in found:
                yield finding


def unenrolled(configuration: Configuration) -> list[Finding]:
    """What can never be dispatched: sources that nothing is enrolled for, subscriptions that are not active."""
    used = {one.source for one in configuration.enrolled}
    found = [
        Finding("enrollment", "warn", f"nothing is enrolled for source {name}", f"gateway enroll FILE --source {name}")
        for name in configuration.sources
        if name not in used
    ]
    for one, reason in configuration.index.inactive:
        fix = "recompile it for a profile that the source has, or enroll it for another source"
        found.append(Finding("enrollment", "fail", f"{one.subscription.digest} is inactive: {reason}", fix))
    for one in configuration.enrolled:
        never = unreachable(one, configuration.sources.get(one.source))
        if never is not None:
            fix = "correct the source's identity, or grant what it has and compile again"
            found.append(Finding("never matches", "warn", f"{one.subscription.digest}: {never}", fix))
    return found
