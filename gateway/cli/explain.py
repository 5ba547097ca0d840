"""`gateway explain`: why a delivery would be, or was, refused, ignored or forwarded; never with a value of it."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gateway import strict_json
from gateway.cli import complete, options
from gateway.cli.dead import moment
from gateway.cli.options import config_option, json_option
from gateway.cli.store import ask, ask_if_there
from gateway.configuration import Base, enrollments, load_base
from gateway.deliveries import one_delivery
from gateway.delivery import RawDelivery
from gateway.errors import Rejection, printable
from gateway.explain import Explanation
from gateway.explain import explain as explain_delivery
from gateway.families import PROFILE
from gateway.signing import fill
from gateway.store import Dispatch, Store
from gateway.subscriptions import Enrolled, build_index
from gateway.words import SETTLED, about_run, about_suspension, about_test, again, age, unasked, words

STRANGER = (
    "our App's own bot user is not known yet, so an event of it is not told apart: set github.sender_id, or serve once"
)
MORE = ("dispatch", "carried_from")  # members of a record that only some have
LISTED = 20
NEXT = {
    "asked": "gateway asks; gateway answer {0} yes|no",
    "dead": "gateway dead show {0}; gateway dead replay {0}",
}


@click.command(epilog="Example: gateway explain --source linear-acme --file delivery.json --headers headers.json")
@click.argument("delivery", required=False)
@click.option("--source", shell_complete=complete.sources, help="The source that the saved delivery came to.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The saved body, as it came; or a sample with headers and body, as gateway deliver takes it.",
)
@click.option(
    "--headers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Its headers: a JSON object, or a list of [name, value] pairs. Without them what only a header says is supplied.",
)
@config_option
@json_option
def explain(
    delivery: str | None, source: str | None, file: Path | None, headers: Path | None, config: Path, *, as_json: bool
) -> None:
    """Explain the DELIVERY with this id from its record, or a saved one with --source and --file.

    The id of a dispatch, which is all that a run on GitHub shows, leads to its delivery.

    For a saved one no provider and no GitHub is asked: proof and age are taken as good, and every enrolled trigger of the
    source is shown as matched, or with the first test that was not true and where it looked. Whether it came before, and
    whether a subscription is suspended, only a record says. Exit 1 where no record has the id.
    """
    if delivery is not None and source is None and file is None:
        _recorded(config, delivery, as_json=as_json)
    elif delivery is None and source is not None and file is not None:
        _saved(config, source, file, headers, as_json=as_json)
    else:
        raise click.UsageError("give a delivery's id, or --source and --file")


def _saved(config: Path, source: str, file: Path, headers: Path | None, *, as_json: bool) -> None:
    base = load_base(config)
    if source not in base.sources:
        raise click.BadParameter(f"{source} is none of {', '.join(base.sources)}", param_hint="--source")
    base = _with_ourselves(base, source)
    enrolled, problems = enrollments(base)
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)
    pairs, body = _read(file)
    raw = RawDelivery("explain", source, time.time(), (*pairs, *read_headers(headers)), b"", body)
    found = explain_delivery(raw, base.sources[source], build_index(enrolled, base.sources))
    if as_json:
        click.echo(json.dumps({"outcome": found.outcome, "reason": found.reason, "explanations": found.to_json()}))
        return
    _show(found, _workflows(enrolled))


def _with_ourselves(base: Base, source: str) -> Base:
    """The App's own bot user belongs to the `self` of a GitHub source: told by the settings, else by the store."""
    if base.sources[source].profile.name != PROFILE:
        return base
    from gateway.sender import known_sender, with_sender  # noqa: PLC0415 (other sources are explained faster)

    settings = base.settings.github
    sender = settings.sender_id or ask_if_there(
        base, lambda store: known_sender(settings, store), "who we are is not known"
    )
    if sender is None:
        click.echo(f"note: {STRANGER}", err=True)
        return base
    return with_sender(base, sender)


def _read(file: Path) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return a file's headers and body: of a sample both, its placeholders filled, else the bytes as they are."""
    content = options.content(file, options.BODY_BYTES)
    try:
        document = json.loads(content)
    except ValueError:
        return (), content
    if not (isinstance(document, dict) and isinstance(document.get("headers"), dict) and "body" in document):
        return (), content
    sample = fill({"headers": document["headers"], "body": document["body"]}, time.time(), str(uuid.uuid4()))
    pairs = tuple((name.lower().encode(), str(value).encode()) for name, value in sample["headers"].items())
    return pairs, json.dumps(sample["body"]).encode()


def _workflows(enrolled: Iterable[Enrolled]) -> dict[str, str]:
    """Whose trigger a digest stands for, to read: repository and workflow file."""
    return {
        one.subscription.digest: f"{one.subscription.repository} {one.subscription.workflow.rpartition('/')[2]}"
        for one in enrolled
    }


def read_headers(file: Path | None) -> tuple[tuple[bytes, bytes], ...]:
    """Read headers as an object or as pairs. Raises BadParameter."""
    if file is None:
        return ()
    try:
        document = strict_json.loads(options.content(file, options.BODY_BYTES))
    except Rejection:
        raise click.BadParameter("is no JSON", param_hint="--headers") from None
    pairs = list(document.items()) if isinstance(document, dict) else document
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(one, str) and one.isprintable() for one in pair)
        for pair in pairs
    ):
        raise click.BadParameter("is no object of texts and no list of pairs", param_hint="--headers")
    try:
        return tuple((name.lower().encode(), value.encode()) for name, value in pairs)
    except UnicodeEncodeError:
        raise click.BadParameter("has a lone surrogate, which no header can hold", param_hint="--headers") from None


def _show(found: Explanation, workflows: Mapping[str, str]) -> None:
    click.echo(_ended(found.outcome, found.reason))
    if found.supplied:
        click.echo(f"supplied, since it was not saved: {', '.join(found.supplied)}")
    items = {item for item, _ in found.considered}
    for item, one in found.considered:
        row = {"digest": one.digest, "trigger": one.trigger, "matched": one.matched}
        prefix = f"item {item}  " if len(items) > 1 else ""
        click.echo(prefix + line(row | {"test": one.test, "pointer": one.pointer}, workflows))
    for digest, reason in (found.inactive or {}).items():
        click.echo(f"{_whose(digest, workflows)}  not active: {reason}")
    if not found.considered and not found.inactive:
        click.echo("no subscription of this source was looked at")


def _ended(outcome: str, reason: str | None) -> str:
    """Outcome and reason, in words and with what to do."""
    if reason is None:
        return outcome
    told = words(outcome, reason)
    return f"{outcome}: {reason}" + "".join(f"\n    {text}" for text in (told.why, told.fix) if text)


def _whose(digest: str, workflows: Mapping[str, str]) -> str:
    return f"{digest[:19]}  {workflows.get(digest, '(no longer enrolled)')}"


def line(row: Mapping[str, Any], workflows: Mapping[str, str]) -> str:
    """One trigger's line: whose it is, and the first test that was not true."""
    start = f"{_whose(row['digest'], workflows)}  {row['trigger']}: "
    if row["matched"]:
        return start + "matched"
    where = f" at {row['pointer']}" if row["pointer"] else ""
    told = about_test(row["test"])
    now = f"; {about_suspension(row['suspended'])}" if "suspended" in row else ""
    return printable(f"{start}not true: {row['test']}{where}" + (f" ({told})" if told else "") + now)


def _recorded(config: Path, ident: str, *, as_json: bool) -> None:
    base = load_base(config)

    async def look(store: Store) -> tuple[dict[str, Any] | None, Dispatch | None]:
        found = await one_delivery(store, ident)
        return found, None if found is not None else await store.dispatch(ident)

    record, dispatch = ask(base, look)
    if record is None:
        click.echo(_unrecorded(ident, dispatch), err=True)
        raise SystemExit(1)
    rows = record["subscriptions"]
    if as_json:
        body = {"outcome": record["outcome"], "reason": record["reason"], "explanations": rows}
        more = {name: record[name] for name in ("id", "source", "dispatches", *MORE) if name in record}
        click.echo(json.dumps(body | more))
        return
    if of := record.get("dispatch"):
        click.echo(f"dispatch {of['id']} is of {listed(of['deliveries'])}; this is {record['id']}")
    click.echo(f"{record['source']} {_ended(record['outcome'], record['reason'])}")
    if told := again(record["outcome"], record["reason"]):
        click.echo(f"    {told}")
    enrolled = {one.subscription.digest: one for one in enrollments(base)[0]}
    workflows = _workflows(enrolled.values())
    if record.get("first"):
        click.echo(f"first delivery {record['first']}")
    if came := record.get("carried_from"):
        click.echo(f"from dispatch {record['id']} of {listed(came['deliveries'])}")
        click.echo(f"    sealed for {_whose(came['subscription'], workflows)}")
    for row in rows:
        click.echo(line(row, workflows))
    for item in record.get("items", ()):
        click.echo(f"item {item['index']}  rejected: {item['reason']}")
    for one in record["dispatches"]:
        _show_dispatch(one, enrolled.get(one["subscription"]))


def _unrecorded(ident: str, dispatch: Dispatch | None) -> str:
    """What to say of an id without a record; a dispatch may outlive those of its deliveries."""
    if dispatch is None:
        return f"no record has the id {ident}; see: gateway deliveries"
    run = f", run {dispatch.run} admitted" if dispatch.run else ""
    return f"dispatch {ident} is {dispatch.status}{run}; no record is left of {listed(dispatch.deliveries)}"


def listed(deliveries: Sequence[str]) -> str:
    """Name deliveries, the first ones of many."""
    more = f" and {len(deliveries) - LISTED} more" if len(deliveries) > LISTED else ""
    return f"deliver{'y' if len(deliveries) == 1 else 'ies'} {', '.join(deliveries[:LISTED])}{more}"


def _show_dispatch(one: Mapping[str, Any], enrolled: Enrolled | None) -> None:
    reason = f" ({one['reason']})" if one["reason"] else ""
    tries = f"{one['attempts']} attempt{'s' if one['attempts'] != 1 else ''}"
    click.echo(f"dispatch {one['id']}  {one['status']}{reason}, {tries}, {_run(one)}")
    if one["carried"] is not None:
        under = f" as {', '.join(one['carried'])}" if one["carried"] else ", not sealed yet"
        click.echo(f"    carried over{under}; see: gateway explain {one['id']}")
        return
    if one["reason"] in SETTLED:
        click.echo(f"    {SETTLED[one['reason']]}")
    if not one["admitted"] and one["refused"] and (told := about_run(one["refused"]["reason"])):
        click.echo(f"    {one['refused']['reason']}: {told}")
    if told := unasked(one, enrolled, time.time()):
        click.echo(f"    {told}")
    if "suspended" in one:
        click.echo(f"    {about_suspension(one['suspended'])}")
    if one["status"] in NEXT:
        click.echo(f"    next: {NEXT[one['status']].format(one['id'])}")


def _run(dispatch: Mapping[str, Any]) -> str:
    """Which run was admitted, or that none was and why the last one was not."""
    if dispatch["admitted"]:
        return f"run {dispatch['run']} admitted {moment(dispatch['admitted_at'])}"
    last = dispatch["refused"]
    if last is None:
        return "no run admitted"
    return f"no run admitted; last refused: {last['reason']}, run {last['run']}, {age(time.time() - last['at'])} ago"
