"""The operators' side of the store: the audit trail, and questions that hold a dispatch until they are answered."""

import time
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.store.client import Client, prefix
from gateway.structs import Value

AUDIT_KEY = "gw:audit"
MODES_KEY = "gw:modes"
AUDIT_MOST = 100_000  # entries; older ones are in the logs
USED_S = 400 * 86_400
NOTICES = 1_000


class Ask(Value):
    """A question about one sealed dispatch: when it was asked, when it ends by itself, and its answer once there is one."""

    asked: float
    expires: float
    answer: str | None = None
    by: str | None = None


class Notice(Value):
    """A provider's notice about its own subscription, such as `reauthorizationRequired`."""

    event: str
    subscription: str
    at: float


class Trail:
    """Audit entries, questions and when each secret was last used."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def write_audit(self, entry: Mapping[str, Any]) -> str:
        """Append an entry; returns its id. A stream only grows at its end: nothing here changes or removes an entry."""
        text = orjson.dumps(entry).decode()

        async def work(redis: Any) -> str:
            written: str = await redis.xadd(AUDIT_KEY, {"entry": text}, maxlen=AUDIT_MOST, approximate=True)
            return written

        return await self._client.call(work, again=False)

    async def audit(self, limit: int = 100, before: str | None = None) -> list[dict[str, Any]]:
        """Return entries, newest first; `before` is the `id` of the last one seen. ValueError where it is none."""
        if before is not None and not before.replace("-", "", 1).isdecimal():
            raise ValueError("not an id of an audit entry")

        async def work(redis: Any) -> list[tuple[str, dict[str, str]]]:
            top = "+" if before is None else f"({before}"
            found: list[tuple[str, dict[str, str]]] = await redis.xrevrange(AUDIT_KEY, top, "-", count=limit)
            return found

        return [{"id": ident, **orjson.loads(row["entry"])} for ident, row in await self._client.call(work)]

    async def ask(self, source: str, dispatch: str, now: float, ttl_s: float) -> Ask:
        """Ask about a sealed dispatch, or return the question that stands; asked again it keeps its first time."""
        row = await self._client.run_copied("ask", prefix(source), dispatch, round(now * 1000), round(ttl_s * 1000))
        asked, expires, answer, by = row
        return Ask(int(asked) / 1000, int(expires) / 1000, answer or None, by or None)

    async def ask_of(self, source: str, dispatch: str) -> Ask | None:
        """Return the question about a dispatch, None where none was asked."""

        async def work(redis: Any) -> list[str | None]:
            fields = ("ask_asked", "ask_expires", "ask_answer", "ask_by")
            found: list[str | None] = await redis.hmget(f"{prefix(source)}dispatch:{dispatch}", fields)
            return found

        asked, expires, answer, by = await self._client.call(work)
        return Ask(int(asked) / 1000, int(expires) / 1000, answer, by) if asked and expires else None

    async def answer(self, source: str, dispatch: str, answer: str, by: str, now: float) -> str:
        """Answer a question once: `answered`, `unknown`, `already` or `expired`. A yes makes its lane due at once."""
        args = (dispatch, answer, by, round(now * 1000))
        return str(await self._client.run_copied("answer", prefix(source), *args))

    async def asked(self, source: str) -> dict[str, float]:
        """Return the dispatches of a source that wait for an answer, each with the end of its question, soonest first."""

        async def work(redis: Any) -> list[tuple[str, float]]:
            found: list[tuple[str, float]] = await redis.zrange(f"{prefix(source)}asks", 0, -1, withscores=True)
            return found

        return {ident: ends / 1000 for ident, ends in await self._client.call(work)}

    async def modes(self) -> dict[str, str]:
        """Return the modes other than `auto` by digest, as some process last saw them."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(MODES_KEY)
            return found

        return await self._client.call(work)

    async def set_modes(self, modes: Mapping[str, str]) -> None:
        """Keep the modes other than `auto`; one field an enrolled subscription."""

        async def work(redis: Any) -> None:
            pipe = redis.pipeline(transaction=True)
            pipe.delete(MODES_KEY)
            if modes:
                pipe.hset(MODES_KEY, mapping=dict(modes))
            await pipe.execute()

        await self._client.call(work)

    async def secret_used(self, source: str, times: Mapping[str, float]) -> None:
        """Note when each secret of a source (by its reference) last proved a delivery."""

        async def work(redis: Any) -> None:
            pipe = redis.pipeline(transaction=False)
            key = f"{prefix(source)}used"
            pipe.hset(key, mapping={name: f"{at:.3f}" for name, at in times.items()})
            pipe.expire(key, USED_S)
            await pipe.execute()

        await self._client.call(work)

    async def secrets_used(self, source: str) -> dict[str, float]:
        """Return when each secret of a source, by its reference, last proved a delivery."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(f"{prefix(source)}used")
            return found

        return {name: float(at) for name, at in (await self._client.call(work)).items()}

    async def keep_notice(self, source: str, event: str, subscription: str, now: float) -> bool:
        """Keep a provider's notice about one of its subscriptions. False: too many are kept already."""
        args = (f"{event} {subscription}", round(now * 1000), NOTICES)
        return bool(await self._client.run_copied("notice", prefix(source), *args))

    async def notices(self, source: str) -> list[Notice]:
        """Return the notices that were not acted on yet, oldest first."""

        async def work(redis: Any) -> dict[str, str]:
            found: dict[str, str] = await redis.hgetall(f"{prefix(source)}notices")
            return found

        rows = [(field.partition(" "), int(at)) for field, at in (await self._client.call(work)).items()]
        return sorted((Notice(name[0], name[2], at / 1000) for name, at in rows), key=lambda notice: notice.at)

    async def forget_notice(self, source: str, notice: Notice) -> bool:
        """Drop a notice that was acted on. False: it came again meanwhile, and stays."""
        args = (f"{notice.event} {notice.subscription}", round(notice.at * 1000))
        return bool(await self._client.run("forget_notice", prefix(source), *args))

    async def server_state(self) -> dict[str, Any]:
        """Return what the server says of its persistence and replicas: INFO's fields, of one node in a cluster."""

        async def work(redis: Any) -> dict[str, Any]:
            answer: dict[str, Any] = await redis.info()
            nested = answer and all(isinstance(value, dict) and "redis_version" in value for value in answer.values())
            return next(iter(answer.values())) if nested else answer

        return await self._client.call(work)

    async def server_time(self) -> float:
        """Return the clock of the server, for a look at ours."""

        async def work(redis: Any) -> tuple[int, int]:
            found: tuple[int, int] = await redis.time()
            return found

        seconds, micros = await self._client.call(work)
        return seconds + micros / 1e6 if seconds else time.time()
