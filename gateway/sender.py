"""Who we are at GitHub as a sender: the App's bot user, by its numeric id.

A run's sender must be it, and an event that it caused is our own. https://docs.github.com/en/rest/users/users#get-a-user
"""

import asyncio
import contextlib
import logging
from typing import Final, TypeVar

from gateway import log
from gateway.answers import GitHubRefusal
from gateway.configuration import Base, Configuration
from gateway.errors import Unavailable
from gateway.github import GitHubApp
from gateway.profiles import Source
from gateway.settings import GITHUB_ACTIONS_BOT, GitHub
from gateway.store import Store
from gateway.structs import replace

REMEMBER_S: Final = 400 * 86_400
KNOWN_S: Final = 2.0  # a start that knows the answer waits no longer for it: providers wait for the start
C = TypeVar("C", Base, Configuration)


async def sender_id(configured: int | None, github: GitHubApp, store: Store) -> int:
    """Return the bot's user id: as configured, else from GitHub, else as last known. Raises Unavailable `sender-unknown`."""
    if configured is not None:
        return configured
    fact, known = _fact(github.app_id), None
    with contextlib.suppress(Unavailable):  # a store that is away now is no matter where GitHub answers
        known = await store.recall(fact)
    try:
        async with asyncio.timeout(None if known is None else KNOWN_S):
            found = await github.app_bot_id()
    except (Unavailable, GitHubRefusal, TimeoutError) as error:
        reason = "timeout" if isinstance(error, TimeoutError) else error.reason
        if known is None:
            log.event("sender-unknown", logging.ERROR, reason=reason, fix="set github.sender_id")
            raise Unavailable("sender-unknown", 60) from None
        log.event("sender-remembered", logging.WARNING, reason=reason, sender_id=int(known))
        return int(known)
    if found == GITHUB_ACTIONS_BOT:  # any job could pass as it
        raise Unavailable("sender-unknown", 60)
    with contextlib.suppress(Unavailable):  # a store that is away now is told at the next start
        await store.remember(fact, str(found), REMEMBER_S)
    return found


async def known_sender(settings: GitHub, store: Store) -> int | None:
    """Return the bot's user id as configured or as the gateway last learnt it; asks nobody."""
    known = settings.sender_id or await store.recall(_fact(settings.app_id))
    return None if known is None else int(known)


def _fact(app_id: int) -> str:
    return f"sender-id:{app_id}"


def with_sender(configuration: C, sender: int) -> C:
    """Return the configuration whose GitHub sources know the App's own bot user as themselves, so that no loop starts."""

    def own(source: Source) -> Source:
        if source.profile.name != "github":  # ids of other providers mean other users
            return source
        return replace(source, self_ids=source.self_ids | {str(sender)})

    sources = {name: own(source) for name, source in configuration.sources.items()}
    return replace(configuration, sources=sources)
