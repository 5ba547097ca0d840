"""Every call of the store: bounded in time, translated in failure, its script reloaded where the server lost it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import (
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as BrokenConnectionError

from gateway.errors import ConfigError, Problem, Unavailable
from gateway.store.connect import CALL_S, CONNECTIONS
from gateway.store.scripts import script

log = logging.getLogger(__name__)
SCHEMA = "2"
SCHEMA_KEY = "gw:schema"
COPIED_KEY = "gw:copied"
OLDEST = (6, 2)
# scripts whose answer to a repeated call is another: their callers look again instead
ONCE = frozenset({"seal", "started", "done", "retry", "release", "dead", "replay_dead", "discard_dead", "answer"})
# error replies that the client library turns into classes of its own, whose text has lost the code
FIT_S = 60.0  # how long a look at the server stands; a connection that broke ends it
FIT_AGAIN_S = 1.0
CODES = {OutOfMemoryError: "store-oom", ReadOnlyError: "store-readonly", BusyLoadingError: "store-loading"}
T = TypeVar("T")


def prefix(source: str) -> str:
    """Return the start of every key of a source: one hash tag, so that a script's keys share a slot."""
    return f"gw:{{{source}}}:"


def _slug(error: BaseException) -> str:
    """Name an error reply by its code (`OOM`, `MISCONF`, `READONLY`, ...), never by its text."""
    for kind, slug in CODES.items():
        if isinstance(error, kind):
            return slug
    if not isinstance(error, ResponseError):
        return "store-away"
    code = str(error).partition(" ")[0]
    return f"store-{code.lower()}" if code.isalpha() and code.isupper() else "store-error"


async def bounded(work: Callable[[], Awaitable[T]]) -> T:
    """Run one exchange with the server within `CALL_S`; whatever fails is Unavailable.

    A caller that is cancelled meanwhile is cancelled: the client library can lose that while it connects.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(CALL_S):
            answer = await work()
    except TimeoutError:
        raise Unavailable("store-timeout") from None
    except (RedisError, RedisClusterException, OSError, asyncio.IncompleteReadError) as error:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise Unavailable(_slug(error)) from error
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer


class Client:
    """A client with the store's manners. It checks schema and durability before the first exchange, and again and again."""

    def __init__(self, redis: Any, *, file: str, relaxed: bool, wait_replicas: int) -> None:
        self.redis = redis
        self.file = file
        self.relaxed = relaxed
        self.wait_replicas = wait_replicas
        self._fit_until = 0.0
        self._ahead: float | None = None  # of the monotonic clock
        self._said = -FIT_AGAIN_S
        self._seen = False  # the schema key stood there once
        self._fitting = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS)  # a Cluster's and a Sentinel's pool have no queue of their own

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CALL_S):
                await self.redis.aclose()
                pool = getattr(self.redis, "connection_pool", None)
                for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
                    await sentinel.aclose()  # the library leaves these open

    async def check(self) -> None:
        """Check schema version and durability: ConfigError says what to do, Unavailable that nobody answered."""
        problems = await bounded(self._problems)
        if problems:
            raise ConfigError(problems)
        self._fit_until = time.monotonic() + FIT_S

    def clock(self) -> float:
        """Return the store's time (Unix seconds), which all processes share; this machine's until the store has said it.

        It runs on by the monotonic clock: neither a step of this machine's clock nor its distance moves what is due.
        """
        return time.time() if self._ahead is None else time.monotonic() + self._ahead

    async def _problems(self) -> list[Problem]:
        self._ahead = await _server_time(self.redis) - time.monotonic()
        problems = [] if self.relaxed else await check_durability(self.redis, self.file)
        found = await self.redis.get(SCHEMA_KEY)
        if found is None:
            if self._seen:  # flushed, or another server under the same address: what was queued is gone
                log.error("store-emptied", extra={"problem": "emptied while in use: what had been queued is lost"})
            await self.redis.set(SCHEMA_KEY, SCHEMA, nx=True)
            found = await self.redis.get(SCHEMA_KEY)
        self._seen = True
        if found != SCHEMA:
            fix = "run the release that wrote it, or point store.url at an empty database once its queue is drained"
            problem = f"holds data of schema version {found}, this release uses {SCHEMA}"
            problems.append(Problem(self.file, "store.url", problem, fix))
        return problems

    async def _check_once(self) -> None:
        """Check unless another call did so while this one waited for its turn."""
        if time.monotonic() < self._fit_until:
            return
        try:
            await self.check()
        except Unavailable:
            if not self._seen:
                raise
            self._fit_until = time.monotonic() + FIT_AGAIN_S  # it was fit: the call itself tells whether it answers
        except ConfigError as error:  # away at start, or another server by now: too late to refuse the start
            if time.monotonic() - self._said >= FIT_AGAIN_S:  # every call looks again; not each one says so
                self._said = time.monotonic()
                log.error("store-unfit: %s", error)  # noqa: TRY400 (a configuration's fault needs no traceback)
            raise Unavailable("store-unfit", 60) from error

    async def call(self, work: Callable[[Any], Awaitable[T]], *, again: bool = True) -> T:
        """Run commands on the client, at most `CALL_S` in all.

        `again`: repeat them once where the connection broke, as one does that was idle for long or whose server was
        started anew. (The library's own retries do not cover this, and hold a call of a stopped server for 25 s.)
        """

        async def checked() -> T:
            if time.monotonic() >= self._fit_until:
                async with self._fitting:
                    await self._check_once()
            async with self._turns:
                try:
                    return await work(self.redis)
                except (BrokenConnectionError, OSError):
                    self._fit_until = 0.0  # started anew, or failed over to another: looked at before the next call
                    if not again:
                        raise
                return await work(self.redis)

        return await bounded(checked)

    async def run(self, name: str, key: str, *args: str | bytes | float) -> Any:
        """Run the script `name` on the source prefix (or single key) `key`, loading it where the server has lost it."""
        code = script(name)

        async def work(redis: Any) -> Any:
            try:
                return await redis.evalsha(code.sha, 1, key, *args)
            except NoScriptError:  # restarted, flushed or failed over: EVAL runs and keeps it
                return await redis.eval(code.text, 1, key, *args)

        return await self.call(work, again=name not in ONCE)

    async def run_copied(self, name: str, key: str, *args: str | bytes | float) -> Any:
        """Run a script and wait until `wait_replicas` replicas have what it wrote; too few of them is Unavailable."""
        if not self.wait_replicas:
            return await self.run(name, key, *args)
        code = script(name)

        async def work(redis: Any) -> tuple[Any, Any]:
            try:
                return await self._with_wait(redis, "EVALSHA", code.sha, key, args)
            except NoScriptError:
                return await self._with_wait(redis, "EVAL", code.text, key, args)

        answer, copies = await self.call(work, again=name not in ONCE)
        if copies < self.wait_replicas:
            raise Unavailable("store-replicas")
        return answer

    async def _with_wait(self, redis: Any, verb: str, code: str, key: str, args: Sequence[Any]) -> tuple[Any, Any]:
        """Send script and WAIT on one connection: WAIT counts only what its own connection wrote.

        A repeated call finds what the first one wrote and writes nothing, on another connection: a write of its own comes
        between, which is copied after all that was written before it. https://valkey.io/commands/wait/
        """
        pipe = redis.pipeline(transaction=False)
        pipe.execute_command(verb, code, 1, key, *args)
        pipe.execute_command("SET", COPIED_KEY, "1", "EX", 60)
        pipe.execute_command("WAIT", self.wait_replicas, int(CALL_S * 400))  # two of them fit: see NoScriptError
        answers = await pipe.execute(raise_on_error=False)
        for result in answers:
            if isinstance(result, Exception):
                raise result
        return answers[0], answers[2]


async def _server_time(redis: Any) -> float:
    """Of a Cluster the time of any node. https://valkey.io/commands/time/."""
    asked = {"target_nodes": RedisCluster.RANDOM} if isinstance(redis, RedisCluster) else {}
    answer = await redis.time(**asked)
    seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return float(seconds) + float(micros) / 1_000_000


def _nodes_of(answer: Any) -> list[dict[str, Any]]:
    """INFO answers one mapping, or in a cluster one for each node."""
    if answer and all(isinstance(value, dict) and "redis_version" in value for value in answer.values()):
        return list(answer.values())
    return [answer]


async def check_durability(redis: Any, file: str = "gateway.toml") -> list[Problem]:
    """List what would let the server lose an acknowledged delivery: its version, no append-only file, eviction of any key."""
    asked = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(redis, RedisCluster) else {}
    problems: list[Problem] = []
    for info in _nodes_of(await redis.info(**asked)):
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            problems.append(
                Problem(file, "store.url", f"the server is version {version}", "use Valkey or Redis 6.2 or newer")
            )
        if not int(info.get("aof_enabled", 0)):
            problem = "the server has no append-only file: a crash loses acknowledged deliveries"
            fix = "set appendonly yes (appendfsync always or everysec), or store.durability = 'relaxed' to accept the loss"
            problems.append(Problem(file, "store.url", problem, fix))
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys-"):
            problem = f"the server evicts any key when memory is short (maxmemory-policy {policy})"
            problems.append(Problem(file, "store.url", problem, "set maxmemory-policy noeviction"))
    return problems
