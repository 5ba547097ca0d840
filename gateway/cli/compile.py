"""`gateway compile`: a consumer workflow and its imports become frozen subscription documents."""

from pathlib import Path

import click

from gateway.cli.options import show_problems
from gateway.compile import compile_file, encode
from gateway.errors import ConfigError

EXIT_REFUSED = 1


@click.command(
    "compile",
    epilog="Example: gateway compile .github/workflows/triage.md --repo acme/widgets -o subscriptions/enrolled/triage.json",
)
@click.argument("consumer", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repo", "repository", required=True, help="OWNER/NAME of the repository that runs the workflow.")
@click.option("--repository-id", type=click.IntRange(min=1), help="The repository's numeric id.")
@click.option("--workflow", help="Path of the workflow that runs; by default the consumer's sibling .lock.yml.")
@click.option("--workflow-hash", help="sha256:HEX of that file; by default read from it.")
@click.option("--origin", default="https://github.com", show_default=True, help="Web origin for GitHub families.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="A file, or with several connectors a folder.")
def compile_(
    consumer: Path,
    repository: str,
    repository_id: int | None,
    workflow: str | None,
    workflow_hash: str | None,
    origin: str,
    output: Path | None,
) -> None:
    """Compile CONSUMER.md into subscription documents, one a connector; print them, or write them with -o."""
    try:
        documents = compile_file(
            consumer,
            repository,
            repository_id=repository_id,
            workflow=workflow,
            workflow_hash=workflow_hash,
            origin=origin,
        )
    except ConfigError as error:
        show_problems(error)
        raise SystemExit(EXIT_REFUSED) from None
    if output is None:
        for document in documents:
            click.echo(encode(document), nl=False)
        return
    if len(documents) > 1:
        output.mkdir(parents=True, exist_ok=True)
        files = [output / f"{document['connector']}.json" for document in documents]
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        files = [output]
    for file, document in zip(files, documents, strict=True):
        file.write_bytes(encode(document))
        click.echo(f"{file}: {document['digest']}", err=True)
