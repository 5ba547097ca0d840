"""`gateway enroll`: activate a compiled document: this digest, from this source, through this App installation."""

import asyncio
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway import audit, enrolling, enrollments, log
from gateway.answers import GitHubRefusal, Repository
from gateway.checkout import start_problem
from gateway.cli import complete, walk
from gateway.cli.options import config_option, document, json_option
from gateway.cli.progress import waiting
from gateway.cli.store import ask_if_there
from gateway.configuration import Base, load_base
from gateway.configuration import enrollments as known
from gateway.destination import Destinations
from gateway.environment import resolve
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.github import GitHubApp, open_session
from gateway.reach import unreachable
from gateway.reconcile import CHANGED, Reconciler, Row, forget
from gateway.settings import MODES
from gateway.store import REVOKED, Store
from gateway.subscriptions import Enrolled, Subscription, load_subscription
from gateway.suspension import PENDING
from gateway.words import settled

CHECK_S = 5.0  # how long a spelling check may hold up an enrollment that needs nothing of GitHub
CHECKED = 20
STILL = (
    "The default branch has still another workflow than the one enrolled. Revert it there and enroll it again, or compile "
    "and enroll what it has"
)


@click.command(
    epilog="Example: gateway enroll triage.json --source linear-acme --installation 48213991 --config gateway.toml"
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@click.option(
    "--interactive", is_flag=True, help="Ask for everything, check each answer, show it, and ask before writing."
)
@click.option("--source", shell_complete=complete.sources, help="The source whose deliveries it concerns.")
@click.option("--installation", type=click.IntRange(min=1), help="The App installation that dispatches.")
@click.option("--mode", type=click.Choice(MODES), help="auto, or ask somebody first, or deny.  [default: auto]")
@click.option("--url-template", help="The reviewed URL, for triggers without one of their own (GitHub projects).")
@click.option(
    "--attested/--not-attested", default=None, help="The App may not read contents; I vouch for the workflow."
)
@click.option(
    "--repository-id", type=click.IntRange(min=1), help="The repository's numeric id, instead of asking GitHub."
)
@config_option
@json_option
def enroll(
    file: Path | None,
    source: str | None,
    installation: int | None,
    config: Path,
    *,
    interactive: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Copy the document FILE into the subscriptions folder and write its entry beside it.

    Opt-in and workflow are compared with the default branch: one whose workflow is not merged yet waits for it. Running
    processes notice within 5 seconds. Doing it again changes nothing, keeps options that are not given anew,
    and resumes a suspended subscription. With --interactive nothing has to be given: a walk asks for the workflow or the
    document and the rest, on a terminal. Exit 1: refused, or enrolled and suspended; 2: usage or configuration; 3: GitHub was needed and is away.
    """
    log.configure(logging.ERROR)  # what the comparison warns of is told below
    if interactive:
        if file or source or installation or as_json or any(value is not None for value in given.values()):
            raise click.UsageError("--interactive asks for everything; give it --config alone")
        walk.need_terminal(config)
        base = load_base(config)
        with tempfile.TemporaryDirectory(prefix="gateway-enroll-") as folder:
            found = walk.walk(base, config, Path(folder))
            _enroll(base, found.file, found.source, found.installation, found.given, as_json=False)
        click.echo(f"next: gateway wire {found.source} --config {config}", err=True)
        return
    missing = {"FILE": file, "--source": source, "--installation": installation}
    if file is None or source is None or installation is None:
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise click.UsageError(f"missing {names}. To be asked for each: gateway enroll --interactive")
    base = load_base(config)
    if source not in base.sources:
        raise click.BadParameter(f"{source} is none of {', '.join(base.sources)}", param_hint="--source")
    _enroll(base, file, source, installation, given, as_json=as_json)


def _enroll(base: Base, file: Path, source: str, installation: int, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Check, write, note it in the trail, compare with the default branch, and tell."""
    try:
        data = document(file)
        subscription = load_subscription(data, str(file))
        listed = enrollments.entries(base)
        options = enrolling.known_options(listed, subscription.digest)
        options |= {name: value for name, value in given.items() if value is not None}
        enrolling.check(base, listed, subscription, source, installation, options)
        with waiting("asking GitHub", quiet=as_json):
            asked = _repository_id(base, subscription, installation, options.get("repository_id"))
        given = {**given, "repository_id": asked}
        facts: dict[str, Any] = {
            "subscription": subscription.digest,
            "source": source,
            "repository": subscription.repository,
        }
        facts |= {
            "installation": installation,
            "mode": options.get("mode"),
            "attested": options.get("attested") or None,
        }
        done = enrolling.write(
            base,
            data,
            file.stem,
            subscription,
            source,
            installation,
            given,
            first=lambda replaced: audit.note_or_keep(
                base, "enroll", then=lambda store: store.enroll_anew(subscription.digest), replaced=replaced, **facts
            ),
        )
    except ConfigError as error:
        if any(problem.key.startswith("github.") for problem in error.problems):
            raise  # ours, not the document's
        refuse("; ".join(f"{p.file}: {p.key or 'document'} {p.problem} ({p.fix})" for p in error.problems))
    except enrolling.Refused as refused:
        refuse(str(refused))
    except GitHubRefusal as refused:
        context = f"{refused.reason}, asked for installation {installation} and {subscription.repository}"
        refuse(f"{settled(refused.reason, None) or 'GitHub said no.'} ({context})")
    never = unreachable(Enrolled(subscription, source, installation), base.sources[source])
    if never is not None:
        click.echo(f"warning: {never}", err=True)
    later = "opt-in and workflow are compared with the default branch when the gateway"
    unknown = f"{later} reaches it; were it suspended, it stays so"
    with waiting("comparing with the default branch", quiet=as_json):
        looked = ask_if_there(base, lambda store: _reconcile(base, store, done), unknown, f"note: {later} starts")
    rows, resumed, note = looked or ([], False, None)
    waits = any(row.digest == done.digest and row.reason == PENDING for row in rows)
    for row in rows:
        _tell_row(row, done.digest, waits=waits)
    if note is not None:
        click.echo(f"warning: {note}", err=True)
    own = next((row for row in rows if row.digest == done.digest), None)
    _tell(done, source, own, note, resumed=bool(resumed), as_json=as_json)
    if own is not None and own.state == "suspended":
        raise SystemExit(1)


async def _reconcile(base: Base, store: Store, done: enrolling.Done) -> tuple[list[Row], bool, str | None]:
    """Compare with the default branch; return what became of the workflow's subscriptions, whether one was resumed, and a note."""
    from gateway.server import destinations  # noqa: PLC0415 (the other commands start faster without it)

    suspended, digest = await store.suspended(), done.digest
    was_suspended = digest in suspended and (done.known or suspended[digest] != REVOKED)
    if done.replaced in suspended:  # as it stays in processes that have not read the folder yet
        await forget(store, done.replaced)
    enrolled, _ = known(base)
    note = None
    try:
        async with destinations(base, store) as found:
            rows = await Reconciler(store, found, lambda: enrolled).run([digest], enrolling=True)
            if any(row.digest == digest and row.agrees for row in rows):
                note = await _note(found, next(one for one in enrolled if one.subscription.digest == digest))
    except ConfigError:  # no key here: the operator's act counts without a look, as where GitHub is away
        rows = await Reconciler(store, None, lambda: enrolled).run([digest], enrolling=True)
    return rows, was_suspended and any(row.digest == digest and row.state == "active" for row in rows), note


async def _note(found: Destinations, enrolled: Enrolled) -> str | None:
    """Say what keeps the workflow, which the default branch has as enrolled, from starting; None where nothing does."""
    subscription = enrolled.subscription
    try:
        content = await found.workflow(enrolled)
    except Unavailable as error:
        return f"whether the workflow would start is not known: {error.reason}"
    problem = None if content is None else start_problem(content, subscription.workflow, subscription.event_type)
    return problem and f"{problem}; then compile and enroll it again"


def _tell_row(row: Row, digest: str, *, waits: bool) -> None:
    """Say on standard error what the default branch means for a subscription of the workflow."""
    if row.digest != digest:
        if row.state == "active" and waits:
            click.echo(f"note: until then {row.digest} goes on; revoke it only after the switch", err=True)
        elif row.state == "active":
            click.echo(
                f"note: {row.digest} concerns the same workflow and is active; revoke it if you replace it", err=True
            )
        else:
            click.echo(
                f"note: {row.digest} concerns the same workflow: {row.state} ({row.reason}). {settled(row.reason, row.installation)}".rstrip(),
                err=True,
            )
    elif row.reason == PENDING:
        click.echo(
            "note: it waits until the default branch has its workflow and opt-in; see: gateway reconcile", err=True
        )
    elif row.state != "active":
        why = (
            STILL
            if row.reason == CHANGED
            else f"{settled(row.reason, row.installation)} Mend that, then enroll it again"
        )
        click.echo(f"warning: it is {row.state}: {row.reason}. {why}", err=True)
    elif row.agrees is None and row.reason != "attested":
        click.echo("warning: the default branch could not be read, so nothing was compared", err=True)


def refuse(why: str) -> None:
    """Say why and end with 1."""
    click.echo(f"refused: {why}", err=True)
    raise SystemExit(1)


def _tell(
    done: enrolling.Done, source: str, row: Row | None, note: str | None, *, resumed: bool, as_json: bool
) -> None:
    if done.replaced is not None:
        click.echo(f"note: it takes the place of {done.replaced}", err=True)
    if done.beside is not None:
        click.echo(f"note: {done.beside} is another document, so this one is {done.document}", err=True)
    if as_json:
        told: dict[str, Any] = {
            "digest": done.digest,
            "source": source,
            "document": str(done.document),
            "entry": str(done.entry),
        }
        told |= {"state": row.state if row else None, "reason": row.reason if row else None}  # None: nobody compared it
        told |= {"replaced": done.replaced, "resumed": resumed, "note": note}
        click.echo(json.dumps({"enrollments": [told]}))
    elif row is not None and row.state == "suspended":
        click.echo(f"suspended {done.digest} from {source}: {done.document}, {done.entry}")
    else:
        if row is not None and row.state == "active" and not done.known:
            click.echo("note: running processes take it within 5 seconds; what comes before is ignored", err=True)
        word = "resumed" if resumed else "changed" if done.changed else "enrolled already" if done.known else "enrolled"
        click.echo(f"{word} {done.digest} from {source}: {done.document}, {done.entry}")


def _repository_id(base: Base, subscription: Subscription, installation: int, given: int | None) -> int | None:
    """Return the id for the entry, None where the document has it. Asks GitHub where nobody said it, else checks as far as it can.

    Raises GitHubRefusal or Refused (exit 1), Unavailable (3), ConfigError (2).
    """
    stated = subscription.repository_id
    if stated is not None and given not in (None, stated):
        raise enrolling.Refused(f"the document names the repository id {stated}, not {given}")
    wanted = stated or given
    granted = [str(name) for name in subscription.document["grants"].get("repositories", [])]
    names = [subscription.repository, *(granted if subscription.connector == "github" else [])]
    answers = asyncio.run(_ask(base, installation, list(dict.fromkeys(names))[:CHECKED], needed=wanted is None))
    for name, answer in answers.items():
        if isinstance(answer, Repository) and answer.full_name != name:
            exact = "; grants are exact, so what is granted never matches" if name in granted else ""
            click.echo(f"warning: GitHub spells {name} as {answer.full_name}{exact}", err=True)
    answer = answers[subscription.repository]
    if wanted is None:
        if not isinstance(answer, Repository):
            raise answer
        return answer.id
    if isinstance(answer, Repository) and answer.id != wanted:
        text = f"GitHub says that {subscription.repository} has the id {answer.id}, not {wanted}: its runs will not be admitted"
        click.echo(f"warning: {text}", err=True)
    if isinstance(answer, GitHubRefusal):
        click.echo(f"warning: GitHub does not show {subscription.repository} to this installation ({answer})", err=True)
    return None if stated is not None else wanted


async def _ask(
    base: Base, installation: int, names: list[str], *, needed: bool
) -> Mapping[str, Repository | GitHubRefusal | Unavailable]:
    """Ask GitHub for each repository. Where nothing is needed of it, its being away is no matter."""
    settings = base.settings.github
    try:
        key = resolve(settings.private_key)
    except ValueError as error:
        if needed:
            problem = Problem(str(base.file), "github.private_key", str(error), "set it, or give --repository-id")
            raise ConfigError([problem]) from None
        return dict.fromkeys(names, Unavailable("no-private-key"))
    found: dict[str, Repository | GitHubRefusal | Unavailable] = dict.fromkeys(names, Unavailable("not-asked"))
    async with open_session() as session:
        try:
            app = GitHubApp(settings.api_url, settings.app_id, key, session)
        except ConfigError:
            if needed:
                raise
            return found

        async def one(name: str) -> None:
            try:
                found[name] = await app.repository(installation, name)
            except (GitHubRefusal, Unavailable) as error:
                found[name] = error

        tasks = [asyncio.create_task(one(name)) for name in names]
        _, late = await asyncio.wait(tasks, timeout=None if needed else CHECK_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found
