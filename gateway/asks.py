"""Modes: whether a sealed dispatch may leave. `auto` lets it, `deny` makes a dead letter, `ask` waits for an operator's yes.

The rule of this module: a mode can only narrow. A dispatch that was asked about needs its yes, also when the mode is
loosened meanwhile; everything but a plain yes keeps it here; a question that nobody answered ends with a dead letter.
"""

import logging
import time
from collections.abc import Awaitable, Callable

from gateway import audit, log
from gateway.settling import Gate
from gateway.store import Ask, Batch, Store
from gateway.subscriptions import Enrolled

TTL_S = 86_400.0
LOOK_S = 30.0  # how soon a held dispatch learns that its enrollment was revoked or denied; an answer is seen at once
EXPIRED = "ask-expired"


def gate(
    store: Store, *, clock: Callable[[], float] = time.time, ttl_s: float = TTL_S
) -> Callable[[Batch, Enrolled], Awaitable[Gate | None]]:
    """Return the dispatcher's gate: None lets the batch go."""

    async def judge(batch: Batch, enrolled: Enrolled) -> Gate | None:
        if enrolled.mode == "deny":
            return Gate("dead", "denied")
        if enrolled.mode == "auto":
            # A fresh batch has no reason yet; one that was held or tried may have been asked about.
            standing = await store.ask_of(batch.source, batch.dispatch) if batch.reason is not None else None
            return None if standing is None else verdict(standing, clock())
        known = await store.ask_of(batch.source, batch.dispatch)
        if known is None:
            known = await store.ask(batch.source, batch.dispatch, clock(), ttl_s)
            log.event(
                "ask",
                logging.WARNING,
                source=batch.source,
                subscription=batch.digest,
                trigger=batch.trigger,
                dispatch=batch.dispatch,
                events=len(batch.events),
                answer=f"gateway answer {batch.dispatch} yes",
            )
        return verdict(known, clock())

    return judge


def verdict(ask: Ask, now: float) -> Gate | None:
    """What an ask means at `now`; a yes that came in time stays one, whatever the hour of the send."""
    if ask.answer == "yes":
        return None
    if ask.answer is not None:
        return Gate("dead", "denied")
    if now >= ask.expires:
        return Gate("dead", EXPIRED)
    return Gate("hold", "asked", min(ask.expires, now + LOOK_S))


async def answer(store: Store, who: str | None, ident: str, given: str, now: float) -> str:
    """Answer a question once: `answered`, `unknown`, `already` or `expired`.

    It is written down first. One that another operator's answer overtook in between is followed by what became of it, so
    that the trail never shows two who decided.
    """
    source = await store.source_of(ident)
    known = None if source is None else await store.ask_of(source, ident)
    if source is None or known is None:
        return "unknown"
    if known.answer is not None or known.expires <= now:
        return "expired" if known.answer is None else "already"
    facts = {"source": source, "dispatch": ident, "answer": given}
    entry = await audit.record(store, "answer", who, **facts)
    status = await store.answer(source, ident, given, entry["who"], now)
    if status != "answered":
        await audit.record(store, "answer", who, **facts, void=status)
    return status
