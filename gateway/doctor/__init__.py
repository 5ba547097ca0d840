"""Look at a deployment from the outside in, and say what to mend. Changes nothing, and needs no running gateway."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import aiohttp

from gateway.configuration import Configuration, look
from gateway.doctor.app import github_side
from gateway.doctor.finding import Finding, Findings, of_problem
from gateway.doctor.public import public_side
from gateway.doctor.secrets import keys_side
from gateway.doctor.store import store_side
from gateway.github import open_session
from gateway.reach import unreachable
from gateway.salvage import concerns

# what each part needs of the configuration, and looks at
PARTS: Mapping[str, Callable[[Configuration, aiohttp.ClientSession], Findings]] = {
    "server.public_url": public_side,
    "github": github_side,
    "admission": keys_side,
    "store": store_side,
}


async def examine(path: Path) -> Findings:
    """Yield findings as they are made, the configuration first; what it says wrong of one part hides no other part."""
    configuration, problems = look(path)
    for problem in problems:
        yield of_problem("configuration", problem)
    if configuration is None:
        return
    if not problems:
        count, sources = len(configuration.enrolled), len(configuration.sources)
        yield Finding("configuration", "ok", f"{path}: {sources} source(s), {count} enrolled subscription(s)")
        for finding in unenrolled(configuration):
            yield finding
    wrong = [problem.key for problem in problems if problem.file == str(path)]
    async with open_session() as session:
        for key, part in PARTS.items():
            if concerns(key, wrong):  # it was told; what stands in for it is nobody's
                continue
            async with aclosing(part(configuration, session)) as found:
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
