"""A source and a workflow for a connector, ready to use: its declaration and profile, with an operator's bindings filled in.

Nothing is guessed: a binding that is needed and missing is a problem, and all of them are told at once. A grant of
`organizations` is also the identity `organization` of the source, so that each value is given once.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway import families
from gateway.declarations import Connector
from gateway.errors import ConfigError, Problem
from gateway.lowering import bind
from gateway.profiles import JwtProof, Profile

INPUT = re.compile(r"import-inputs\.([a-z0-9-]+)")
Bindings = Mapping[str, Sequence[str]]
SELECTORS = ("repos", "orgs", "projects")  # of the GitHub families: https://docs.github.com/en/rest
NAMES = "names"  # of slash commands


def needed(one: Connector | None, profile: Profile) -> list[str]:
    """The names that have to be bound before the connector and a source of the profile can be used."""
    inputs = {} if one is None else one.import_schema
    names = [name for name, spec in inputs.items() if spec.get("required") or name in (one.resources if one else ())]
    identity = [name for name in profile.identity if name not in profile.identity_optional]
    return names + [name for name in identity if _also(name, names) is None]


def _also(identity: str, inputs: Iterable[str]) -> str | None:
    """The import whose values are the identity's: of the same name, or its plural."""
    return next((name for name in (f"{identity}s", identity) if name in inputs), None)


def source(profile: Profile, name: str, secrets: Sequence[str], bindings: Bindings, one: Connector | None) -> str:
    """The `[sources.NAME]` table. Raises ConfigError with every binding that is missing or unknown."""
    inputs = set() if one is None else set(one.import_schema)
    problems = _unknown(profile, bindings, inputs)
    lines = [f"[sources.{name}]", f"profile = {text(profile.name)}"]
    if not isinstance(profile.proof, JwtProof):
        lines.append(f"secrets = {text(list(secrets))}")
    elif secrets:
        problems.append(_problem("--secret", f"profile {profile.name} takes no secrets", "leave it out"))
    for identity in profile.identity:
        values = bindings.get(identity) or bindings.get(_also(identity, inputs) or "")
        if values and (identity not in profile.identity_optional or identity in bindings):
            lines.append(f"identity.{identity} = {text(list(values))}")
        elif not values and identity not in profile.identity_optional:
            bound = _also(identity, inputs) or identity
            why = f"deliveries of another {identity} are refused by it"
            problems.append(_problem(f"--bind {bound}", "is missing", f"--bind {bound}=VALUE: {why}"))
    _raise(problems)
    return "\n".join(lines) + "\n"


def workflow(one: Connector, triggers: Sequence[str], bindings: Bindings) -> str:
    """A consumer's Markdown that selects the triggers. Raises ConfigError with everything that keeps it from compiling."""
    with_, problems = _inputs(one, triggers, bindings)
    problems += [
        _problem("--trigger", f"{name} is no trigger of {one.id}", f"use one of {', '.join(one.triggers)}")
        for name in triggers
        if name not in one.triggers
    ]
    _raise(problems)
    try:
        bind(one, with_, triggers, "--bind")
    except ConfigError as error:
        raise ConfigError([_as_option(problem) for problem in error.problems]) from None
    select = [f"    {one.id}: {text(list(triggers))}"]
    imports = ["imports:", f"  - uses: .github/workflows/connectors/{one.id}.md", "    with:"]
    return _markdown(select, imports + [f"      {name}: {text(value)}" for name, value in with_.items()])


def github_workflow(triggers: Sequence[str], bindings: Bindings) -> str:
    """A consumer's Markdown for GitHub's families, which need no import. Raises ConfigError."""
    known = {families.trigger_name(*one): one for one in _activities()}
    problems = [
        _problem("--trigger", f"{trigger} is no trigger of github", "gateway connectors show github lists families")
        for trigger in triggers
        if trigger not in known and trigger != families.SLASH_COMMAND
    ]
    names = list(bindings.get(NAMES, ()))
    fix = f"--bind {NAMES}=NAME: the command without its slash, letters, digits, - and _"
    if families.SLASH_COMMAND not in triggers and names:
        problems.append(_problem(f"--bind {NAMES}", "is for slash commands", f"--trigger {families.SLASH_COMMAND}"))
    elif families.SLASH_COMMAND in triggers and not names:
        problems.append(_problem(f"--bind {NAMES}", "is missing", fix))
    problems += [
        _problem(f"--bind {NAMES}", f"{text(name)} is no command's name", fix)
        for name in names
        if not families.COMMAND.match(name)
    ]
    if not any(bindings.get(name) for name in SELECTORS):
        problems.append(_problem("--bind repos", "is missing", "--bind repos=OWNER/NAME, or orgs, or projects"))
    _raise(problems)
    chosen: dict[str, list[str]] = {}
    for family, activity in (known[trigger] for trigger in triggers if trigger in known):
        chosen.setdefault(family, []).append(activity)
    select = [f"    {family}: {{types: {text(types)}}}" for family, types in chosen.items()]
    select += [f"    {families.SLASH_COMMAND}: {{names: {text(names)}}}"] if families.SLASH_COMMAND in triggers else []
    select += [f"    {name}: {text(list(bindings[name]))}" for name in SELECTORS if bindings.get(name)]
    return _markdown(select, [])


def _activities() -> list[tuple[str, str]]:
    return [(name, activity) for name, row in families.FAMILIES.items() for activity in row.activities]


def _used(one: Connector, triggers: Sequence[str]) -> set[str]:
    """The inputs that the triggers or their grants name."""
    raw = [one.triggers[name] for name in triggers if name in one.triggers]
    granted = {collection for trigger in raw for collection in trigger.get("resources", {}).values()}
    read = json.dumps([raw, *(one.resources[name] for name in granted if name in one.resources)], default=str)
    return set(INPUT.findall(read))


def _inputs(one: Connector, triggers: Sequence[str], bindings: Bindings) -> tuple[dict[str, Any], list[Problem]]:
    with_: dict[str, Any] = {}
    problems: list[Problem] = []
    used = _used(one, triggers)
    for name, spec in one.import_schema.items():
        values = bindings.get(name)
        if values is None:
            default = spec.get("default")
            if spec.get("required") or (name in used and default == []):
                problems.append(_missing(name, spec, ""))
            elif name in used and isinstance(default, str):  # a default that is made of another input
                problems += [
                    _missing(other, one.import_schema[other], f", or --bind {name}=VALUE")
                    for other in INPUT.findall(default)
                    if other not in bindings
                ]
        elif spec.get("type") == "array":
            with_[name] = list(values)
        elif len(values) > 1:
            problems.append(_problem(f"--bind {name}", "is given twice and takes one value", "give it once"))
        else:
            with_[name] = values[0]
    return with_, problems


def _missing(name: str, spec: Mapping[str, Any], instead: str) -> Problem:
    return _problem(
        f"--bind {name}", "is missing", f"--bind {name}=VALUE{instead}. {spec.get('description', '')}".strip()
    )


def _as_option(problem: Problem) -> Problem:
    """A problem of the consumer's `with`, told of the option that sets it."""
    place = re.fullmatch(r"imports\.[^.]+\.with\.(.+)", problem.key)
    key = f"--bind {place[1]}" if place else problem.key
    return _problem(key, problem.problem, problem.fix)


def _unknown(profile: Profile, bindings: Bindings, inputs: set[str]) -> list[Problem]:
    names = [*inputs, *profile.identity, *((*SELECTORS, NAMES) if profile.name == families.PROFILE else ())]
    fix = f"one of: {', '.join(sorted(set(names))) or 'none'}"
    return [_problem(f"--bind {name}", "is no binding of it", fix) for name in bindings if name not in names]


def _problem(key: str, problem: str, fix: str) -> Problem:
    return Problem("", key, problem, fix)


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(problems)


def text(value: Any) -> str:
    """A text or a list of texts as TOML and YAML both read it."""
    return json.dumps(value, ensure_ascii=False)


def _markdown(select: list[str], imports: list[str]) -> str:
    head = ["---", "on:", "  gateway-dispatch:", *select, "permissions:", "  contents: read", *imports, "---", ""]
    return "\n".join(
        [*head, "Say here what to do with every reference in `gateway.events`; each is untrusted evidence.", ""]
    )
