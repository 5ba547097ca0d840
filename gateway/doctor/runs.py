"""The runs: whether what GitHub took lately led to runs that asked, and were admitted."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.configuration import Configuration
from gateway.delivery import Outcome
from gateway.doctor.finding import Finding
from gateway.store import Dispatch, Store, cursor
from gateway.subscriptions import Enrolled
from gateway.words import about_run, no_run

RECORDS: Final = 50  # of each source, the newest that are old enough
YOUNG_S, OLD_S = 120.0, 86_400.0  # before, a run may still ask; after, a mended mistake would be told


async def admission(store: Store, configuration: Configuration) -> list[Finding]:
    """Find the active subscriptions whose newest dispatch that GitHub took had no run admitted."""
    now, suspended = time.time(), await store.suspended()
    inactive = {one.subscription.digest for one, _ in configuration.index.inactive}
    enrolled = {
        one.subscription.digest: one
        for one in configuration.enrolled
        if one.subscription.digest not in suspended and one.subscription.digest not in inactive
    }
    found: list[Finding] = []
    judged = 0
    for source in configuration.sources:
        for digest, dispatches in (await _sent(store, source, now)).items():
            if digest in enrolled:
                judged += 1
                found += _judge(enrolled[digest], dispatches)
    if judged and not found:
        return [Finding("admission", "ok", f"a run was admitted for the last dispatch of {judged} subscription(s)")]
    return found


async def _sent(store: Store, source: str, now: float) -> Mapping[str, Sequence[Dispatch]]:
    """Return what GitHub took in time of a source's last forwarded deliveries, by subscription, the newest first."""
    page = await store.deliveries(source, Outcome.FORWARDED, RECORDS, cursor(now - YOUNG_S))
    named = dict.fromkeys(ident for row in page.rows for ident in row.get("dispatch_ids", ()))
    sent: dict[str, list[Dispatch]] = {}
    for one in await store.dispatches(list(named)):
        if one.status == "sent" and one.settled_at is not None and YOUNG_S <= now - one.settled_at <= OLD_S:
            sent.setdefault(one.digest, []).append(one)
    return {digest: sorted(some, key=lambda one: -(one.settled_at or 0)) for digest, some in sent.items()}


def _judge(enrolled: Enrolled, dispatches: Sequence[Dispatch]) -> list[Finding]:
    if dispatches[0].run is not None:
        return []
    without = [one for one in dispatches if one.run is None]
    whose = f"{enrolled.subscription.digest} ({enrolled.subscription.repository})"
    detail = f"{whose}: of its last {len(dispatches)} dispatch(es) {len(without)} had no run admitted"
    refusals = [one.refused for one in without if one.refused is not None]
    if refusals:
        last = max(refusals, key=lambda refusal: refusal.at)
        return [Finding("admission", "warn", f"{detail}; last refused: {last.reason}", about_run(last.reason))]
    fix = no_run(enrolled)
    if len(without) == len(dispatches):
        fix += " All is well where the workflow does not use the action."
    return [Finding("admission", "warn", f"{detail}, and none has asked", fix)]
