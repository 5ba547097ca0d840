"""From queue to settled: sealing under leases, the outcomes of a send, dead letters, and the one run of a dispatch."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.errors import Unavailable
from gateway.store.client import Client, bounded, prefix
from gateway.store.ids import uuid7
from gateway.store.types import Batch, Depth, Dispatch, Limits, Refusal

log = logging.getLogger(__name__)
POINTER_S = 38 * 86_400  # a dispatch's source is known for as long as its dead letter and a week
JTI_S = 3_600  # a run's token lives for 15 minutes at most


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


def _seconds(millis: str | None) -> float | None:
    return int(millis) / 1000 if millis else None


def _lines(text: str | None) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


def pointer(dispatch: str) -> str:
    """Return the key that names the source of a dispatch (in its own slot: whoever asks knows the id alone)."""
    return f"gw:dispatch:{dispatch}"


def _batch(source: str, row: Sequence[str], lease: str) -> Batch:
    lane, dispatch, events, deliveries, attempts, first, reason = row
    digest, _, trigger = lane.rpartition(":")
    return Batch(
        source=source,
        lane=lane,
        digest=digest,
        trigger=trigger,
        dispatch=dispatch,
        events=_lines(events),
        deliveries=_lines(deliveries),
        attempts=int(attempts),
        first_attempt=_seconds(first),
        lease=lease,
        reason=reason or None,
    )


def read_dispatch(ident: str, source: str, row: Mapping[str, str]) -> Dispatch:
    """Make a Dispatch of its hash."""
    lane = row.get("lane", "")
    digest, _, trigger = lane.rpartition(":")
    return Dispatch(
        id=ident,
        source=source,
        lane=lane,
        digest=digest,
        trigger=trigger,
        status=row.get("status", ""),
        reason=row.get("reason") or None,
        attempts=int(row.get("attempts", 0)),
        events=_lines(row.get("events")),
        deliveries=_lines(row.get("deliveries")),
        envelope_digest=row.get("envelope_digest"),
        sealed_at=_seconds(row.get("sealed")),
        first_attempt=_seconds(row.get("first_attempt")),
        first_sent=_seconds(row.get("first_sent")),
        last_sent=_seconds(row.get("last_sent")),
        settled_at=_seconds(row.get("settled")),
        run=row.get("run"),
        admitted_at=_seconds(row.get("admitted")),
        count=int(row.get("count", 0)),
        refused=_refusal(row.get("refused", "")),
    )


def _refusal(text: str) -> Refusal | None:
    reason, run, at = text.split(" ") if text else ("", "", "")
    return Refusal(reason, run, int(at) / 1000) if text else None


class Queue:
    """Lanes, batches, dead letters and runs of every source."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._limits = limits

    async def seal(self, source: str, now: float, lease_s: float, limit: int) -> list[Batch]:
        """Lease up to `limit` lanes that are due, oldest due first, and return each one's sealed batch.

        A batch that is returned again (retry, or a lease that ended) is the same one. The lease ends by the server's
        clock; `now` only says what is due.
        """
        lease = uuid7()
        ids = orjson.dumps([uuid7() for _ in range(limit * 2)])
        sizes = (self._limits.batch_events, self._limits.batch_bytes)
        rows, lost = await self._client.run(
            "seal", prefix(source), _millis(now), _millis(lease_s), limit, *sizes, lease, ids
        )
        for dispatch in lost:
            log.error("dispatch-lost", extra={"source": source, "dispatch": dispatch})
        batches = [_batch(source, row, lease) for row in rows]
        await self._point(batches)
        return batches

    async def _point(self, batches: Iterable[Batch]) -> None:
        """Write where each dispatch lives before anyone can send it; a death before this is mended by the next lease."""
        targets = {pointer(batch.dispatch): batch.source for batch in batches}
        if not targets:
            return

        async def work(redis: Any) -> None:
            pipe = redis.pipeline(transaction=False)
            for key, source in targets.items():
                pipe.set(key, source, ex=POINTER_S)
            await pipe.execute()

        try:
            await self._client.call(work)
        except Unavailable as error:
            if error.reason != "store-oom":
                raise
            for key, source in targets.items():  # a full server takes no plain SET, and has to be sent empty
                await self._client.run("point", key, source, POINTER_S)

    async def started(self, batch: Batch, now: float, envelope_digest: str = "", lease_s: float = 0) -> bool:
        """Note the send before it happens. False: the lease was lost, do not send. `lease_s` starts the lease anew."""
        args = (batch.lane, batch.dispatch, batch.lease, _millis(now), envelope_digest, _millis(lease_s))
        return bool(await self._client.run_copied("started", prefix(batch.source), *args))

    async def renew(self, batch: Batch, now: float, lease_s: float) -> bool:
        """Keep the lease while waiting to send. False: it was lost."""
        args = (batch.lane, batch.lease, _millis(now), _millis(lease_s))
        return bool(await self._client.run("renew", prefix(batch.source), *args))

    async def done(self, batch: Batch, now: float, status: str = "sent") -> bool:
        """Settle a batch that was taken; also true to say after the lease was lost. False: it was settled already."""
        args = (batch.lane, batch.dispatch, batch.lease, _millis(now), status)
        return bool(await self._client.run("done", prefix(batch.source), *args))

    async def retry(self, batch: Batch, due: float, reason: str, now: float) -> bool:  # noqa: ARG002 (the dispatcher's clock, as for its siblings)
        """Give the batch another turn at `due`. False: the lease was lost, and its new holder decides."""
        args = (batch.lane, batch.dispatch, batch.lease, _millis(due), reason)
        return bool(await self._client.run("retry", prefix(batch.source), *args))

    async def release(
        self, batch: Batch, due: float | None = None, held_s: float = 0, status: str = "queued", reason: str = ""
    ) -> bool:
        """Give the batch back unsent, due now or at `due`; `held_s` stops its age clock for that long.

        Status `asked` keeps its runs out until it is sent. False: the lease was lost.
        """
        when = "" if due is None else _millis(due)
        args = (batch.lane, batch.dispatch, batch.lease, when, _millis(held_s), status, reason)
        return bool(await self._client.run("release", prefix(batch.source), *args))

    async def dead(self, batch: Batch, reason: str, now: float) -> bool:
        """Move the batch to the dead letters. Reason `denied` keeps its runs out. False: the lease was lost."""
        args = (batch.lane, batch.dispatch, batch.lease, _millis(now), reason, self._limits.dead)
        return bool(await self._client.run("dead", prefix(batch.source), *args))

    async def depth(self, source: str) -> Depth:
        """Count what waits in a source. Linear in its lanes."""
        lanes, waiting, sealed, dead, oldest = await self._client.run("depth", prefix(source))
        return Depth(int(lanes), int(waiting), int(sealed), int(dead), _seconds(oldest))

    async def source_of(self, dispatch: str) -> str | None:
        """Return the source that a dispatch belongs to, None where it is unknown."""

        async def work(redis: Any) -> str | None:
            found: str | None = await redis.get(pointer(dispatch))
            return found

        return await self._client.call(work)

    async def dispatch(self, ident: str) -> Dispatch | None:
        """Return what is known of a dispatch."""
        found = await self.dispatches([ident])
        return found[0] if found else None

    async def dispatches(self, ids: Sequence[str]) -> list[Dispatch]:
        """Return what is known of these dispatches, leaving out the unknown ones."""
        if not ids:
            return []

        async def sources(redis: Any) -> list[str | None]:
            pipe = redis.pipeline(transaction=False)
            for ident in ids:
                pipe.get(pointer(ident))
            found: list[str | None] = await pipe.execute()
            return found

        named = [(one, source) for one, source in zip(ids, await self._client.call(sources), strict=True) if source]
        return await self._read(named)

    async def _read(self, named: Sequence[tuple[str, str]]) -> list[Dispatch]:
        if not named:
            return []

        async def rows(redis: Any) -> list[dict[str, str]]:
            pipe = redis.pipeline(transaction=False)
            for ident, source in named:
                pipe.hgetall(f"{prefix(source)}dispatch:{ident}")
            found: list[dict[str, str]] = await pipe.execute()
            return found

        found = await self._client.call(rows)
        return [read_dispatch(*names, row) for names, row in zip(named, found, strict=True) if row.get("lane")]

    async def dead_letters(self, source: str, limit: int = 100, offset: int = 0) -> list[Dispatch]:
        """Return dead letters of a source, newest first."""

        async def ids(redis: Any) -> list[str]:
            found: list[str] = await redis.zrange(f"{prefix(source)}dead", offset, offset + limit - 1, desc=True)
            return found

        return await self._read([(ident, source) for ident in await self._client.call(ids)])

    async def replay_dead(self, source: str, ids: Sequence[str], now: float) -> list[str]:
        """Queue these dead letters again, ahead of what is unsealed, under their own dispatch ids. Returns those that were dead."""
        found: list[str] = await self._client.run_copied(
            "replay_dead", prefix(source), _millis(now), orjson.dumps(list(ids))
        )
        return found

    async def discard_dead(self, source: str, ids: Sequence[str]) -> list[str]:
        """Give these dead letters up for good. Returns those that were dead."""
        found: list[str] = await self._client.run("discard_dead", prefix(source), orjson.dumps(list(ids)))
        return found

    async def admit_run(self, dispatch: str, digest: str, run_id: str, jti: str, now: float, window_s: float) -> str:
        """Admit one run to a dispatch: `admitted`, `unknown`, `taken`, `expired` or `jti-used`.

        The token id is claimed between a look and the claim: it belongs to the first dispatch and run that it was
        accepted for, and the same run may repeat the call. The window runs from the last send.
        """
        return await bounded(lambda: self._admit_run(dispatch, digest, run_id, jti, now, window_s))

    async def _admit_run(self, dispatch: str, digest: str, run_id: str, jti: str, now: float, window_s: float) -> str:
        source = await self.source_of(dispatch)
        if source is None:
            return "unknown"
        args = (dispatch, digest, run_id, _millis(now), _millis(window_s))
        seen = str(await self._client.run("admit_run", prefix(source), *args, ""))
        if seen != "admitted":
            return seen
        if not await self._client.run_copied("claim_jti", f"gw:run-jti:{jti}", f"{dispatch} {run_id}", JTI_S):
            return "jti-used"
        return str(await self._client.run_copied("admit_run", prefix(source), *args, "1"))

    async def refuse_run(self, dispatch: str, digest: str, reason: str, run_id: str, now: float) -> bool:
        """Keep why a run was refused a dispatch of its subscription; the next refusal takes its place.

        False: the subscription was sent no such dispatch, or a run was admitted, which says more.
        """
        source = await self.source_of(dispatch)
        args = (dispatch, digest, f"{reason} {run_id} {_millis(now)}")
        return source is not None and bool(await self._client.run("refuse_run", prefix(source), *args))
