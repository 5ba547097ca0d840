"""`gateway compile`: a consumer workflow and its imports become frozen subscription documents."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gateway import enrolling, enrollments
from gateway.changes import changes
from gateway.checkout import root_of, start_problem
from gateway.cli.options import config_option, json_option, show_problems
from gateway.compile import compile_file, encode
from gateway.configuration import load_base
from gateway.environment import data_folder
from gateway.errors import ConfigError
from gateway.profiles import load_profiles
from gateway.structs import asdict

EXIT_REFUSED = 1


@click.command(
    "compile",
    epilog="Example: gateway compile .github/workflows/triage.md --repo acme/widgets -o triage.json",
)
@click.argument("consumer", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repo", "repository", required=True, help="OWNER/NAME of the repository that runs the workflow.")
@click.option("--repository-id", type=click.IntRange(min=1), help="The repository's numeric id.")
@click.option("--workflow", help="Path of the workflow that runs; by default the consumer's sibling .lock.yml.")
@click.option("--workflow-hash", help="sha256:HEX of that file; by default read from it.")
@click.option("--origin", default="https://github.com", show_default=True, help="Web origin for GitHub families.")
@click.option(
    "--check", is_flag=True, help="Write nothing; say what changed against what is enrolled. Exit 1 if anything."
)
@config_option
@json_option
@click.option("-o", "output", type=click.Path(path_type=Path), help="A file, or with several connectors a folder.")
def compile_(
    consumer: Path,
    repository: str,
    repository_id: int | None,
    workflow: str | None,
    workflow_hash: str | None,
    origin: str,
    output: Path | None,
    config: Path,
    *,
    check: bool,
    as_json: bool,
) -> None:
    """Compile CONSUMER.md into subscription documents, one a connector; print them, or write them with -o.

    The documents are JSON as they are; --json concerns what --check says.
    Exit 1: the workflow does not compile, or --check found a difference. 2: usage or configuration.
    """
    try:
        documents = compile_file(
            consumer,
            repository,
            repository_id=repository_id,
            workflow=workflow,
            workflow_hash=workflow_hash,
            origin=origin,
            warn=lambda text: click.echo(f"warning: {text}", err=True),
        )
    except ConfigError as error:
        show_problems(error)
        raise SystemExit(EXIT_REFUSED) from None
    _note(consumer, documents)
    if check:
        rows = _compared(documents, config)
        if as_json:
            click.echo(json.dumps({"subscriptions": rows}))
        else:
            _tell(rows)
        raise SystemExit(EXIT_REFUSED if any(row["digest"] not in row["enrolled"] for row in rows) else 0)
    if output is None:
        for document in documents:
            click.echo(encode(document), nl=False)
        return
    for file, document in zip(_files(output, documents), documents, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, encode(document))
        click.echo(f"{file}: {document['digest']}", err=True)


def _write(file: Path, data: bytes) -> None:
    """Write a document whole or not at all; what is no plain file, such as /dev/stdout, is written to."""
    if file.exists() and not file.is_file():
        file.write_bytes(data)
    else:
        enrolling.replace_file(file.resolve(), data)


def _files(output: Path, documents: Sequence[Mapping[str, Any]]) -> list[Path]:
    if len(documents) > 1:
        if output.suffix == ".json" and not output.is_dir():
            names = ", ".join(document["connector"] for document in documents)
            raise click.BadParameter(f"several connectors ({names}) make a file each: name a folder", param_hint="-o")
        return [output / f"{document['connector']}.json" for document in documents]
    return [output]


def _note(consumer: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Say on standard error what is no mistake here and yet would keep the workflow from starting."""
    known = load_profiles(data_folder("profiles"))
    for document in documents:
        for name, trigger in document["triggers"].items():
            strange = [profile for profile in trigger["verificationProfile"] if profile not in known]
            for profile in strange:
                click.echo(f"note: {name} wants the profile {profile}, and none has that name", err=True)
            if not any("canonicalUrl" in part for part in (trigger, *trigger.get("variants", []))):
                click.echo(f"note: {name} has no URL of its own: enroll it with --url-template", err=True)
    file = root_of(consumer) / documents[0]["workflow"]
    try:
        content = file.read_bytes()
    except OSError:
        return  # its hash was given
    problem = start_problem(content, documents[0]["workflow"], documents[0]["event_type"])
    if problem is not None:
        click.echo(f"note: {problem}; then compile again", err=True)


def _compared(made: Sequence[Mapping[str, Any]], config: Path) -> list[dict[str, Any]]:
    """Each document against the enrolled ones of its workflow and connector: by their digests, what it changes."""
    base = load_base(config)
    named = {entry.enrollment.subscription for entry in enrollments.entries(base)}
    held = [one.subscription for one in enrollments.documents(base) if one.subscription is not None]
    rows = []
    for document in made:
        key = (document["repository"], document["workflow"], document["connector"])
        enrolled = [one for one in held if one.digest in named and (one.repository, one.workflow, one.connector) == key]
        differences = {
            one.digest: [asdict(change) | {"text": str(change)} for change in changes(one.document, document)]
            for one in enrolled
        }
        rows.append({"connector": document["connector"], "digest": document["digest"], "enrolled": differences})
    return rows


def _tell(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo(f"{row['connector']}: compiles to {row['digest']}")
        if row["digest"] in row["enrolled"]:
            click.echo("  enrolled, unchanged")
            continue
        if not row["enrolled"]:
            click.echo("  not enrolled")
        for digest, differences in row["enrolled"].items():
            click.echo(f"  enrolled is {digest}")
            for change in differences:
                click.echo(f"    {change['text']}")
