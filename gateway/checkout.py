"""A checked-out repository: its root, its opt-in, the connectors that a consumer imports from it, and whether its workflow would start."""

from pathlib import Path
from typing import Any, Final

from gateway import files, strict_json
from gateway.declarations import connector_from
from gateway.errors import ConfigError, Problem, Rejection
from gateway.frontmatter import Document, load_frontmatter, load_yaml
from gateway.selections import ROUTE, Import

EVENT: Final = "repository_dispatch"
OPT_IN: Final = ".github/workflows/aw.json"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024  # a compiled workflow is a few hundred kilobytes


def root_of(consumer: Path) -> Path:
    """Return the repository's root, above the consumer. Raises ConfigError."""
    for folder in consumer.resolve().parents:
        if (folder / ".github").is_dir():
            return folder
    fix = "keep the consumer under a repository's .github/workflows"
    raise ConfigError([Problem(str(consumer), "", "stands in no repository: no folder above it has .github", fix)])


def read(path: Path, inside: Path | None = None) -> bytes:
    """Read a plain file that stands, links followed, below `inside`. Raises ConfigError."""
    problem = "cannot be read: No such file"
    try:
        if inside is None or path.resolve().is_relative_to(inside.resolve()):
            return files.read(path, MAX_FILE_BYTES)
        problem = "leads out of the repository"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (RuntimeError, ValueError):  # a loop of links, a character that no path can hold
        pass
    raise ConfigError([Problem(str(path), "", problem, "name a readable file")])


def opt_in_problems(root: Path) -> list[Problem]:
    """Check the repository's opt-in; whoever may write this file consents to dispatches."""
    path = root / OPT_IN
    try:
        settings = strict_json.loads(read(path, inside=root))
    except ConfigError:
        settings = None
    except Rejection as error:
        return [Problem(str(path), "", f"is no strict JSON ({error.reason})", 'write {"gateway-dispatch": true} in it')]
    return _consent_problems(settings, str(path))


def _consent_problems(settings: Any, file: str) -> list[Problem]:
    """Check decoded opt-in settings: `gateway-dispatch` must be exactly true."""
    if isinstance(settings, dict) and settings.get(ROUTE) is True:
        return []
    return [Problem(file, ROUTE, "the repository has not opted in", 'write {"gateway-dispatch": true} in it')]


def start_problem(content: bytes, workflow: str, event_type: str) -> str | None:
    """Say why a dispatch of this event type would not start a workflow with these bytes, None where it would.

    Without `types` every event type starts it. What is no YAML to us, and may be to GitHub, has to name the event type.
    https://docs.github.com/en/actions/reference/workflows-and-actions/events-that-trigger-workflows#repository_dispatch
    """
    text = content.decode("utf-8", "replace")
    try:
        starts = _starts(load_yaml(text, workflow).value.get("on"), event_type)
    except ConfigError:
        starts = event_type in text
    return None if starts else f"{workflow} would not start: under on.repository_dispatch.types it wants {event_type}"


def _starts(on: Any, event_type: str) -> bool:
    """Tell whether a workflow's `on` lets an event type start it: one that it names, or any where it names none."""
    if not isinstance(on, dict):
        return on == EVENT or (isinstance(on, list) and EVENT in on)
    event = on.get(EVENT)
    types = event.get("types") if isinstance(event, dict) else None
    named = types if isinstance(types, list) else [types]
    return EVENT in on and (types is None or event_type in named)


def read_imports(consumer: Document, root: Path) -> tuple[list[Import], list[Problem]]:
    """Load the imports that declare connectors; others are none of the gateway's business."""
    listed = consumer.value.get("imports", [])
    if not isinstance(listed, list):
        return [], [consumer.problem(("imports",), "is no list", "write - uses: PATH entries")]
    imports: list[Import] = []
    problems: list[Problem] = []
    for index, entry in enumerate(listed):
        path = ("imports", index)
        entry_map = {"uses": entry} if isinstance(entry, str) else entry
        if not isinstance(entry_map, dict) or not isinstance(entry_map.get("uses"), str):
            problems.append(consumer.problem(path, "has no uses", "write uses: PATH"))
            continue
        bindings = {} if entry_map.get("with") is None else entry_map["with"]
        if not isinstance(bindings, dict) or set(entry_map) - {"uses", "with"}:
            problems.append(consumer.problem(path, "is no {uses, with}", "write uses: PATH and with: {name: value}"))
            continue
        try:
            document = _imported(consumer, path, entry_map["uses"], root)
            if document is not None and "connectors" in document.value:
                imports.append(Import(connector_from(document), bindings, path))
        except ConfigError as error:
            problems += error.problems
    ids = [one.connector.id for one in imports]
    problems += [
        consumer.problem(("imports",), f"the connector {twice} is imported twice", "keep one of them")
        for twice in sorted({name for name in ids if ids.count(name) > 1})
    ]
    return imports, problems


def _imported(consumer: Document, path: tuple[str | int, ...], uses: str, root: Path) -> Document | None:
    """Read one import from inside `.github/`; None for a remote one, whose connector is then reported as missing."""
    if "@" in uses:
        return None
    inside = (root / ".github").resolve()
    try:
        file = (root / uses).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a character that no path can hold
        file = root
    if not uses.startswith(".github/") or not file.is_relative_to(inside):
        fix = "import a file under .github/ of the same repository"
        raise ConfigError([consumer.problem((*path, "uses"), f"{uses} is not inside .github/", fix)])
    return load_frontmatter(read(file), str(file))
