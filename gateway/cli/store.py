"""The store for a command's own duration: the running embedded one, or one that is started and stopped here."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from gateway.configuration import Base, Configuration
from gateway.errors import ConfigError, Unavailable
from gateway.store import Store

T = TypeVar("T")


def ask(base: Base | Configuration, question: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, ask it one thing, close it. Raises Unavailable or ConfigError."""
    from gateway.storage import opened  # noqa: PLC0415 (commands that ask no store start faster)

    async def work() -> T:
        async with opened(base) as store:
            return await question(store)

    return asyncio.run(work())


def ask_if_there(base: Base, question: Callable[[Store], Awaitable[Any]], otherwise: str, empty: str = "") -> Any:
    """Ask where the store answers; else say on standard error what is therefore not known, and return None.

    `empty` is said of an embedded store that nobody has started yet.
    """
    from gateway.storage import never_started  # noqa: PLC0415 (as above)

    if never_started(base):
        if empty:
            click.echo(empty, err=True)
        return None  # nothing has ever been stored
    try:
        return ask(base, question)
    except Unavailable as error:
        click.echo(f"the store is away ({error.reason}): {otherwise}", err=True)
    except ConfigError as error:
        click.echo(f"the store is not fit to use ({error.problems[0].problem}): {otherwise}", err=True)
    return None
