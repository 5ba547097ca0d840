"""`gateway enroll --interactive`: one question after the other, each answer checked at once, until all can be shown."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway import enrolling, enrollments, families
from gateway.answers import GitHubRefusal, Installation, Repository
from gateway.cli import options
from gateway.cli.connectors import load_connectors, profiles_of
from gateway.cli.progress import waiting
from gateway.compile import compile_file, encode
from gateway.configuration import Base
from gateway.environment import resolve
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.github import GitHubApp, open_session
from gateway.settings import MODES
from gateway.structs import Value
from gateway.subscriptions import REPOSITORY, Subscription, load_subscription

T = TypeVar("T")


class Answers(Value):
    """What `enroll` is to do: as if it had been given on the command line."""

    file: Path
    source: str
    installation: int
    given: Mapping[str, Any]


class Place(Value):
    """Where it dispatches to, as GitHub says it."""

    repository: Repository
    installation: Installation


class Made(Value):
    """A document, and the command that makes it: none where it was given as a file."""

    subscription: Subscription
    file: Path
    command: Sequence[str] = ()


def need_terminal(config: Path) -> None:
    """Refuse where nobody can be asked, with the commands that ask nothing."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "--interactive needs a terminal. The same without one:\n"
            "  gateway compile WORKFLOW.md --repo OWNER/NAME -o DOCUMENT.json\n"
            f"  gateway enroll DOCUMENT.json --source SOURCE --installation N --config {config}"
        )


def walk(base: Base, config: Path, folder: Path) -> Answers:
    """Ask for everything; what is compiled stands in `folder`. Ends with 1 where the last answer is no."""
    if not base.sources:
        raise ConfigError([Problem(str(base.file), "sources", "none is configured", "see: gateway profiles list")])
    try:
        about = ask_github(base, lambda app: app.about())
    except GitHubRefusal as refused:
        problem = f"answers {refused.reason} to the App"
        raise ConfigError([Problem(str(base.file), "github.api_url", problem, "correct the address")]) from None
    click.echo("Nothing is written before the last question. Ctrl-C ends it.")
    click.echo(f"GitHub App: {about.slug}, id {about.id}\n")
    source = choose("Source", [(name, one.profile.name) for name, one in base.sources.items()])
    connector = _connector(base, source)
    place = _place(base)
    made, url_template = _document(base, source, connector, place, folder)
    known = enrolling.known_options(enrollments.entries(base), made.subscription.digest)
    mode = _mode(base, source, known.get("mode") or "auto")
    given = {"mode": mode} | ({"url_template": url_template} if url_template else {})
    _show(base, config, made, source, place, given)
    if not click.confirm("\nEnroll it?"):
        click.echo("nothing was written")
        raise SystemExit(1)
    return Answers(made.file, source, place.installation.id, given)


def ask_github(base: Base, question: Callable[[GitHubApp], Awaitable[T]]) -> T:
    """Ask GitHub one thing as the App. Raises ConfigError for a key that is none, GitHubRefusal, Unavailable."""
    settings = base.settings.github
    try:
        key = resolve(settings.private_key)
    except ValueError as error:
        raise ConfigError([Problem(str(base.file), "github.private_key", str(error), "set it")]) from None

    async def work() -> T:
        async with open_session() as session:
            return await question(GitHubApp(settings.api_url, settings.app_id, key, session))

    with waiting("asking GitHub"):
        try:
            return asyncio.run(work())
        except Unavailable as away:
            if away.reason != "app-unauthorized":
                raise
            fix = "check github.app_id and github.private_key, and this machine's clock: gateway doctor"
            raise ConfigError(
                [Problem(str(base.file), "github", "GitHub does not accept the App's key", fix)]
            ) from None


def choose(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Let one of several be chosen by its number or its name; the only one is taken."""
    if len(rows) == 1:
        click.echo(f"{title}: {rows[0][0]} ({rows[0][1]}), the only one")
        return rows[0][0]
    for number, (name, text) in enumerate(rows, 1):
        click.echo(f"  {number}  {name:20} {text}")
    names = [name for name, _ in rows]

    def chosen(answer: str) -> str:
        if answer in names:
            return answer
        if answer.isdecimal() and 1 <= int(answer[:6]) <= len(names):
            return names[int(answer[:6]) - 1]
        raise click.UsageError(f"answer with a number from 1 to {len(names)}, or a name")

    answer: str = click.prompt(title, value_proc=chosen)
    return answer


def _connector(base: Base, source: str) -> str | None:
    """The connector whose declarations read this source's deliveries; None where none is shipped for its profile."""
    profile = base.sources[source].profile.name
    rows = [(one.id, ", ".join(one.triggers)) for one in load_connectors().values() if profile in profiles_of(one)]
    if profile == families.CONNECTOR:
        rows.append((families.CONNECTOR, "GitHub's own events"))
    if not rows:
        click.echo(f"Connector: none is shipped for the profile {profile}; a workflow brings its own")
        return None
    return choose("Connector", rows)


def _place(base: Base) -> Place:
    """Repository and installation, asked again until GitHub agrees."""
    repository: str | None = None
    number: int | None = None
    while True:
        repository = click.prompt(
            "Repository that runs the workflow (OWNER/NAME)", default=repository, value_proc=_name
        )
        number = click.prompt(
            "App installation (the number at the end of its settings URL)",
            default=number or _used(base, repository or ""),
            value_proc=_number,
        )
        found = _at_github(base, str(repository), number)
        if isinstance(found, Place):
            if found.repository.full_name != repository:
                click.echo(f"GitHub spells it {found.repository.full_name}, and so does the document.")
            return found
        click.echo(f"Not possible: {found}. Mend that and press Enter twice, or give others.")


def _name(answer: str) -> str:
    if not REPOSITORY.match(answer):
        raise click.UsageError("a repository is written OWNER/NAME, such as acme/widgets")
    return answer


def _number(answer: str | int) -> int:
    text = str(answer)
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) < 2**53):
        raise click.UsageError("an installation is a number, such as 48213991")
    return int(text)


def _used(base: Base, repository: str) -> int | None:
    """An installation that is used already for the repository, or for another of its owner."""
    rows = [row for row in enrollments.rows(base, {}) if row.installation is not None and row.repository is not None]
    owner = repository.partition("/")[0].lower()
    rows.sort(key=lambda row: row.repository != repository)
    return next((row.installation for row in rows if str(row.repository).partition("/")[0].lower() == owner), None)


def _at_github(base: Base, repository: str, number: int) -> Place | str:
    """What GitHub says of both, or why it cannot be."""

    async def question(app: GitHubApp) -> Place | str:
        try:
            installed = await app.installation(number)
        except GitHubRefusal as refused:
            return f"the App has no installation {number} ({refused.reason})"
        named = f"installation {number} ({installed.account})"
        if installed.suspended:
            return f"{named} is suspended on GitHub"
        if installed.permissions.get("contents") != "write":
            return f"{named} lacks the permission contents: write"
        try:
            return Place(await app.repository(number, repository), installed)
        except GitHubRefusal as refused:
            return f"{named} does not show {repository} ({refused.reason}): add it to the installation, or correct the name"

    return ask_github(base, question)


def _document(base: Base, source: str, connector: str | None, place: Place, folder: Path) -> tuple[Made, str | None]:
    """The document, asked again until it could be active, and its URL template where it needs one."""
    if connector is not None:
        click.echo(
            f"\nThe workflow selects the triggers. None yet? See: gateway connectors config {connector} --workflow"
        )
    while True:
        path = click.prompt("Workflow in a checkout (.md), or a compiled document (.json)", value_proc=_file)
        try:
            found = _made(path, place.repository.full_name, folder)
            fitting = [one for one in found if connector in (None, one.subscription.connector)]
            if not fitting:
                others = ", ".join(one.subscription.connector for one in found)
                click.echo(f"{path} selects nothing of {connector}, but of {others}")
                continue
            by_name = {one.subscription.connector: one for one in fitting}
            made = by_name[choose("Document", [(name, one.file.name) for name, one in by_name.items()])]
            url_template = _url_template(base, made.subscription)
            enrolling.check(
                base,
                enrollments.entries(base),
                made.subscription,
                source,
                place.installation.id,
                {"url_template": url_template},
            )
        except ConfigError as error:
            for problem in error.problems:
                click.echo(f"  {problem.key or problem.file}: {problem.problem}\n    fix: {problem.fix}")
        except enrolling.Refused as refused:
            click.echo(f"Not possible: {refused}")
        else:
            return made, url_template


def _file(answer: str) -> Path:
    path = Path(answer).expanduser()
    if not path.is_file():
        raise click.UsageError(f"{path} is no file")
    if not os.access(path, os.R_OK):
        raise click.UsageError(f"{path} may not be read")
    if path.suffix not in {".md", ".json"}:
        raise click.UsageError("give the workflow's Markdown (.md) or a compiled document (.json)")
    return path


def _made(path: Path, repository: str, folder: Path) -> list[Made]:
    """Load a document, or compile a workflow: one a connector. Raises ConfigError."""
    if path.suffix == ".json":
        one = load_subscription(options.document(path), str(path))
        if one.repository != repository:
            fix = f"compile it with --repo {repository}"
            raise ConfigError([Problem(str(path), "repository", f"is {one.repository}, not {repository}", fix)])
        return [Made(one, path)]
    workflow = None
    lock = path.with_suffix(".lock.yml")
    if not lock.exists():
        click.echo(f"{lock.name} does not stand beside it: a plain Actions workflow is named by its path.")
        workflow = click.prompt("Workflow file that runs, such as .github/workflows/triage.yml")
    documents = compile_file(path, repository, workflow=workflow)
    command = ["gateway", "compile", str(path), "--repo", repository, *(["--workflow", workflow] if workflow else [])]
    made = []
    for document in documents:
        name = path.stem if len(documents) == 1 else str(document["connector"])
        file, data = folder / f"{name}.json", encode(document)
        file.write_bytes(data)
        output = file.name if len(documents) == 1 else "."
        made.append(Made(load_subscription(data, str(path)), file, [*command, "-o", output]))
    return made


def _url_template(base: Base, subscription: Subscription) -> str | None:
    """The reviewed URL, where a trigger has none of its own; the enrolled one is offered."""
    if not any(trigger.needs_url_template for trigger in subscription.triggers.values()):
        return None
    known = enrolling.known_options(enrollments.entries(base), subscription.digest).get("url_template")
    answer: str = click.prompt("URL of an item, with {item} for its id", default=known)
    return answer


def _mode(base: Base, source: str, before: str) -> str:
    stricter = base.settings.sources[source].mode
    click.echo("\nauto dispatches at once, ask waits for a yes, deny makes dead letters.")
    if stricter != "auto":
        click.echo(f"The source is in mode {stricter}; the stricter of both wins.")
    mode: str = click.prompt("Mode", type=click.Choice(MODES), default=before)
    return mode


def _show(base: Base, config: Path, made: Made, source: str, place: Place, given: Mapping[str, Any]) -> None:
    """What would be enrolled, and the same as commands."""
    one = made.subscription
    rows = {
        "document": one.digest,
        "repository": f"{one.repository}, id {place.repository.id}, default branch {place.repository.default_branch}",
        "workflow": one.workflow,
        "triggers": f"{one.connector}: {', '.join(one.triggers)}",
        "grants": json.dumps(one.document["grants"]),
        "filters": json.dumps(one.document.get("filters") or {}),
        "source": f"{source}, {json.dumps(dict(base.settings.sources[source].identity))}, {base.settings.server.public_url or ''}/hooks/{source}",
        "installation": f"{place.installation.id} ({place.installation.account})",
        **given,
        "written into": str(base.folder),
    }
    click.echo("\nThis would be enrolled:")
    for name, value in rows.items():
        click.echo(f"  {name:14}{value}")
    same = [
        row for row in enrollments.rows(base, {}) if (row.repository, row.workflow) == (one.repository, one.workflow)
    ]
    for row in same:
        if row.digest == one.digest:
            click.echo(
                "  It is enrolled already: the entry gets these values; a suspension ends where the default branch agrees."
            )
        elif row.connector == one.connector:
            click.echo(f"  Of the same workflow is enrolled: {row.digest}")
    click.echo("The same without questions:")
    if made.command:
        click.echo(f"  {shlex.join(made.command)}")
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    file = made.file.name if made.command else str(made.file)
    number = str(place.installation.id)
    command = ["gateway", "enroll", file, "--source", source, "--installation", number, *options]
    click.echo(f"  {shlex.join([*command, '--config', str(config)])}")
