"""Progress of a command that waits: on a terminal alone, on standard error; never beside JSON."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Bar:
    """How far a command is. Without a terminal it does nothing."""

    def __init__(self, progress: Progress | None = None, text: str = "", total: int | None = None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(text, total=total)

    def step(self) -> None:
        """One more is done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def say(self, line: str) -> None:
        """Print a line on standard output above the bar."""
        if self._progress is None:
            click.echo(line)
            return
        self._progress.stop()
        click.echo(line)
        self._progress.start()


@contextmanager
def waiting(text: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Bar]:
    """Show `text` with a bar, or without `total` a spinner, while the block runs; nothing stays behind."""
    if quiet or not sys.stderr.isatty():
        yield Bar()
        return
    counted = () if total is None else (BarColumn(), MofNCompleteColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    with shown:
        yield Bar(shown, text, total)
