"""The store: what it would survive, which secrets were used, and what waits in it for somebody."""

import logging
import time
from collections.abc import Awaitable, Callable

import aiohttp

from gateway.configuration import Configuration
from gateway.doctor.finding import Finding, Findings, of_problem, skew
from gateway.doctor.runs import admission
from gateway.errors import ConfigError, Unavailable
from gateway.storage import opened
from gateway.store import Store
from gateway.suspension import state_of
from gateway.words import RESUME

STUCK_S = 3_600.0


async def store_side(configuration: Configuration, _session: aiohttp.ClientSession) -> Findings:
    """Whether the store answers, what it would survive, which secrets were used, what waits in it, and whether runs were admitted."""
    logging.getLogger("gateway.store").setLevel(logging.CRITICAL)  # it is reported here
    try:
        async with opened(configuration) as store:
            for part in (_durability, _usage, _waiting, admission):
                for finding in await part(store, configuration):
                    yield finding
    except ConfigError as error:
        for problem in error.problems:
            yield of_problem("store", problem)
    except Unavailable as error:
        yield Finding("store", "fail", f"does not answer: {error.reason}", "start it, or correct store.url")


async def _durability(store: Store, configuration: Configuration) -> list[Finding]:
    state, settings = await store.server_state(), configuration.settings.store
    version = state.get("valkey_version") or state.get("redis_version")
    found = [Finding("store", "ok", f"version {version}, append-only file on")]
    if not int(state.get("aof_enabled", 0)):
        fix = "set appendonly yes; store.durability = 'relaxed' accepts the loss"
        found = [
            Finding("store", "warn", f"version {version}, no append-only file: a crash loses what was accepted", fix)
        ]
    if state.get("aof_last_write_status", "ok") != "ok":
        found.append(Finding("store", "fail", "its last write to the append-only file failed", "free disk space there"))
    replicas = int(state.get("connected_slaves", 0))
    if replicas < settings.wait_replicas:
        detail = f"{replicas} replica(s) in touch, store.wait_replicas asks for {settings.wait_replicas}"
        found.append(
            Finding("store", "fail", detail, "bring the replicas back: deliveries are answered 503 until then")
        )
    limit, used = int(state.get("maxmemory", 0)), int(state.get("used_memory", 0))
    if limit and used > limit * 0.8:
        found.append(Finding("store", "warn", f"{used / limit:.0%} of its memory is used", "raise maxmemory, or drain"))
    return [*found, skew("the store", await store.server_time(), time.time())]


async def _usage(store: Store, configuration: Configuration) -> list[Finding]:
    """Which of a source's live secrets was used last, and when: a rotation is through when only the new one is."""
    found = []
    for name, source in configuration.settings.sources.items():
        references = list(dict.fromkeys(reference for _, reference, _ in source.references()))
        used = await store.secrets_used(name)
        if not references:
            continue
        told = ", ".join(f"{r} {f'last used {_ago(used[r])} ago' if r in used else 'never used'}" for r in references)
        times = sorted((used[r], r) for r in references if r in used)
        old = [r for r in references if times and r != times[-1][1]]
        if len(references) > 1 and old:
            fix = f"once the provider uses {times[-1][1]} alone, remove {', '.join(old)}"
            found.append(Finding("rotation", "warn", f"source {name}: {told}", fix))
        else:
            found.append(Finding("rotation", "ok", f"source {name}: {told}"))
    return found


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


async def _waiting(store: Store, configuration: Configuration) -> list[Finding]:
    """Work that needs somebody: dead letters, questions, suspensions, parks, old queues, notices."""
    found: list[Finding] = []
    look: list[Callable[[str], Awaitable[Finding | None]]] = [
        lambda name: _queue(store, name),
        lambda name: _asked(store, name),
        lambda name: _lost(store, name),
    ]
    for name in configuration.sources:
        found += [one for each in look if (one := await each(name)) is not None]
    enrolled = {one.subscription.digest for one in configuration.enrolled}
    for digest, reason in (await store.suspended()).items():
        if digest not in enrolled:
            continue  # revoked
        told, fix = f"{digest}: {reason}", RESUME.get(reason, "mend the cause, then enroll the subscription again")
        if state_of(reason) == "mismatched":  # a rollover on its way: nothing is wrong
            found.append(Finding("rollover", "ok", f"{told}. {fix}"))
        else:
            found.append(Finding("suspended", "warn", told, fix))
    for installation, until in (await store.parked()).items():
        detail = f"installation {installation} waits for GitHub's rate limit, {until - time.time():.0f} s more"
        found.append(Finding("rate limit", "warn", detail, "nothing to do: it goes on by itself"))
    if all(one.state == "ok" for one in found):
        found.append(Finding("queue", "ok", "nothing waits for an operator"))
    return found


async def _queue(store: Store, name: str) -> Finding | None:
    depth = await store.depth(name)
    if depth.oldest is not None and time.time() - depth.oldest > STUCK_S:
        detail = f"source {name}: {depth.waiting + depth.sealed} waiting, the oldest for {_ago(depth.oldest)}"
        return Finding("queue", "warn", detail, "gateway asks; the log of the dispatcher says why it retries")
    if depth.dead:
        fix = f"gateway dead list --source {name}"
        return Finding("dead letters", "warn", f"source {name}: {depth.dead}", fix)
    return None


async def _asked(store: Store, name: str) -> Finding | None:
    asked = await store.asked(name)
    return Finding("asks", "warn", f"source {name}: {len(asked)} wait for an answer", "gateway asks") if asked else None


async def _lost(store: Store, name: str) -> Finding | None:
    gap, pending = await store.recall(f"gap:{name}"), await store.notices(name)
    if gap is not None:
        fix = "look at the provider for what happened then: it does not send those again"
        return Finding(
            "provider", "warn", f"source {name}: events were lost at the provider {_ago(float(gap))} ago", fix
        )
    old = [notice for notice in pending if time.time() - notice.at > STUCK_S]
    if old:
        fix = f"gateway wire {name}"
        return Finding("provider", "fail", f"source {name}: {old[0].event} {_ago(old[0].at)} ago is not settled", fix)
    return None
