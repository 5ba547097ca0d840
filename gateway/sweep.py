"""Ask GitHub and GitLab again for what never arrived: neither sends a delivery twice by itself.

Every five minutes the delivery log of each hook is read, newest first, back to the last delivery that was settled, and a
redelivery is asked for of each that failed for a reason that time mends (no answer, or 5xx and the like). The provider keeps
its delivery id, so one that did arrive is answered as a duplicate: asking too often queues nothing twice. Bounded by the
provider's own window, by attempts of a delivery, and by requests of a round.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import aiohttp

from gateway import log, wire
from gateway.answers import GitHubRefusal
from gateway.configuration import Configuration
from gateway.errors import Unavailable
from gateway.github import GitHubApp
from gateway.store import Store, uuid7
from gateway.structs import Value

TICK_S = 60.0
ROUND_S = 300.0  # of one hook; sooner where the last round had more to ask for than it may
ATTEMPTS = 5  # of one delivery, the provider's first included
OVERLAP_S = 120.0  # times of a log have whole seconds, and rows may come late
WAIT_S = 60.0  # after the first attempt, doubling: one may still be under way
PAGES = 50
MARK_S = 10 * 86_400
GITHUB_S = 3 * 86_400 - 3_600
# GitHub redelivers what is at most 3 days old:
# https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
GITHUB_ASKS = 100
# Five resends a minute, for all hooks of a project: https://docs.gitlab.com/administration/settings/rate-limit-on-webhook-operations/
GITLAB_ASKS = 4
PASSING = frozenset({0, 408, 425, 429})  # refusals that another attempt can mend, beside every 5xx; 0 is no answer


class Attempt(Value):
    """One attempt at one delivery, as the provider logged it.

    `delivery` is what all attempts of one delivery share; `position` orders attempts (a time, or a growing id); `at` is its
    time where the log has one.
    """

    id: str
    delivery: str
    status: int
    position: float
    at: float | None = None
    redelivery: bool = False

    @property
    def good(self) -> bool:
        """Whether it was taken."""
        return 200 <= self.status < 300

    @property
    def passing(self) -> bool:
        """Whether the same bytes may be taken next time."""
        return self.status in PASSING or self.status >= 500


class Plan(Value):
    """What follows from a log: attempts to ask for again, deliveries to wait for, those given up, and the next mark."""

    ask: tuple[Attempt, ...]
    waiting: int
    given_up: int
    mark: float


def plan(attempts: Iterable[Attempt], now: float, most: int, mark: float = 0.0) -> Plan:
    """Decide over what a log holds after `mark`. Oldest first; a delivery that arrived, by any attempt, is settled.

    One of which only redeliveries are left after the mark was settled before it, or given up.
    """
    by_delivery: dict[str, list[Attempt]] = {}
    newest = mark
    for attempt in attempts:
        by_delivery.setdefault(attempt.delivery, []).append(attempt)
        newest = max(newest, attempt.position - (0.0 if attempt.at is None else OVERLAP_S))
    ask: list[Attempt] = []
    open_since: list[float] = []
    given_up = 0
    for tries in by_delivery.values():
        tries.sort(key=lambda one: (one.position, one.redelivery))
        first, last = tries[0], tries[-1]
        if first.redelivery or any(one.good for one in tries) or not last.passing:
            continue
        if len(tries) >= ATTEMPTS:
            given_up += 1
            continue
        open_since.append(math.nextafter(first.position, -math.inf))
        if last.at is None or now - last.at >= WAIT_S * 2 ** (len(tries) - 1):
            ask.append(last)
    ask.sort(key=lambda one: one.position)
    return Plan(tuple(ask[:most]), len(open_since), given_up, min([newest, *open_since]))


class Log(Protocol):
    """One hook's delivery log at its provider."""

    @property
    def scope(self) -> str:
        """Its name: the same for as long as the hook stands."""
        ...

    @property
    def most(self) -> int:
        """How many attempts one turn may ask for."""
        ...

    async def page(self, where: str | None) -> tuple[list[Attempt], str | None]:
        """Return one page of attempts, newest first, and where the next one is."""
        ...

    async def again(self, attempt: Attempt) -> None:
        """Ask for another attempt."""
        ...


def _github_rows(rows: Any) -> list[Attempt]:
    """https://docs.github.com/en/rest/repos/webhooks#list-deliveries-for-a-repository-webhook."""
    found = []
    for row in rows:
        at = datetime.fromisoformat(row["delivered_at"]).timestamp()
        status = int(row["status_code"] or 0)
        found.append(Attempt(str(row["id"]), str(row["guid"]), status, at, at, bool(row["redelivery"])))
    return found


class GitHubHook(Value):
    """A repository's or an organization's hook, read with the source's own token."""

    api: wire.Api
    scope: str
    most: int = GITHUB_ASKS

    async def page(self, where: str | None) -> tuple[list[Attempt], str | None]:
        """Return one page; GitHub's `link` header leads to the next."""
        rows, following = await self.api.page(where or f"/{self.scope}/deliveries?per_page=100")
        return _github_rows(rows), following

    async def again(self, attempt: Attempt) -> None:
        """https://docs.github.com/en/rest/repos/webhooks#redeliver-a-delivery-for-a-repository-webhook."""
        await self.api.call("POST", f"/{self.scope}/deliveries/{attempt.id}/attempts")


class AppHook(Value):
    """The App's own hook, read as the App."""

    app: GitHubApp
    scope: str = "app/hook"
    most: int = GITHUB_ASKS

    async def page(self, where: str | None) -> tuple[list[Attempt], str | None]:
        """https://docs.github.com/en/rest/apps/webhooks#list-deliveries-for-an-app-webhook."""
        rows, following = await self.app.hook_deliveries(where)
        return _github_rows(rows), following

    async def again(self, attempt: Attempt) -> None:
        """https://docs.github.com/en/rest/apps/webhooks#redeliver-a-delivery-for-an-app-webhook."""
        await self.app.redeliver(attempt.id)


class GitLabHook(Value):
    """A project's or group's hook. Its log of 7 days has no times that its documentation names: growing ids stand for them.

    https://docs.gitlab.com/api/project_webhooks/#list-all-events-for-a-project-webhook,
    https://docs.gitlab.com/api/group_webhooks/#list-all-group-hook-events
    """

    api: wire.Api
    scope: str
    most: int = GITLAB_ASKS

    async def page(self, where: str | None) -> tuple[list[Attempt], str | None]:
        """Return one page of at most 20."""
        number = int(where or "1")
        rows = await self.api.call("GET", f"/{self.scope}/events?per_page=20&page={number}")
        return [_gitlab_row(row) for row in rows], str(number + 1) if len(rows) == 20 else None

    async def again(self, attempt: Attempt) -> None:
        """https://docs.gitlab.com/api/project_webhooks/#resend-a-project-webhook-event."""
        await self.api.call("POST", f"/{self.scope}/events/{attempt.id}/resend")


def _gitlab_row(row: Mapping[str, Any]) -> Attempt:
    """A resend keeps the `Idempotency-Key`; a status that is no number stands for no answer."""
    headers = {str(name).lower(): str(value) for name, value in (row.get("request_headers") or {}).items()}
    delivery = headers.get("idempotency-key") or headers.get("webhook-id") or str(row["id"])
    status = str(row.get("response_status") or "")
    at = row.get("created_at")
    return Attempt(
        str(row["id"]),
        delivery,
        int(status) if status.isdecimal() else 0,
        float(row["id"]),
        datetime.fromisoformat(at).timestamp() if isinstance(at, str) else None,
    )


async def _group_hooks(api: wire.Api, want: wire.Want) -> list[str]:
    """The hooks of the groups above the granted projects that send to us, where the token may list them (an Owner's may).

    https://docs.gitlab.com/api/projects/#list-all-ancestor-groups, https://docs.gitlab.com/api/group_webhooks/
    """
    groups: set[int] = set()
    for project in want.granted("projects"):
        groups |= {int(row["id"]) for row in await _listed(api, f"/projects/{project}/groups")}
    found = []
    for group in sorted(groups):
        try:
            rows = await _listed(api, f"/groups/{group}/hooks")
        except wire.WireRefused as error:
            if error.status not in (403, 404):
                raise
            continue  # another's group, or a tier without group hooks
        found += [f"groups/{group}/hooks/{row['id']}" for row in rows if row["url"] == want.url]
    return found


async def _listed(api: wire.Api, path: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for number in range(1, PAGES + 1):
        rows = await api.call("GET", f"{path}?per_page=100&page={number}")
        found += rows
        if len(rows) < 100:
            break
    return found


class Sweeper:
    """Runs until cancelled. `configuration` gives the one in force, since a reload swaps it."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        store: Store,
        session: aiohttp.ClientSession,
        app: GitHubApp,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configuration, self._store, self._session, self._app = configuration, store, session, app
        self._clock = clock
        self._me = uuid7()
        self._due: dict[str, float] = {}

    async def run(self) -> None:
        """Look every minute which hook has its turn; whatever goes wrong costs this turn alone."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.round()

    async def round(self) -> None:
        """Give every source whose provider does not send again its turn."""
        configuration = self._configuration()
        for name, source in configuration.sources.items():
            provider = wire.BY_PROFILE.get(source.profile.name)
            now = self._clock()
            if provider is None or provider.title not in {"GitHub", "GitLab"} or now < self._due.get(name, 0.0):
                continue
            if not any(one.source == name for one in configuration.enrolled):
                continue  # nothing is wanted of it yet
            self._due[name] = now + ROUND_S
            try:
                if await self._store.remember_first(f"sweeping:{name}", self._me, int(TICK_S) - 5):
                    more = [await self._sweep(name, one) for one in await self._logs(configuration, name)]
                    if any(more):
                        self._due[name] = now + TICK_S
            except (Unavailable, wire.WireRefused, wire.WireProblem, GitHubRefusal) as error:
                log.event("sweep-failed", logging.WARNING, source=name, problem=str(error))
            except Exception:  # noqa: BLE001 (a bug, or an answer of another form, must neither end the loop nor stay unseen)
                log.LOGGER.exception("sweep-bug")

    async def _logs(self, configuration: Configuration, name: str) -> Sequence[Log]:
        """The hooks that send to this source: those its token can see, and the App's own where it has our URL."""
        found: list[Log] = []
        settings = configuration.settings.sources[name]
        provider = wire.BY_PROFILE[configuration.sources[name].profile.name]
        if settings.api_token is not None or settings.api_oauth is not None:
            wiring = wire.wiring_for(configuration, name, self._session)
            hooks = await provider.find(wiring.api, wiring.want, provider.desired(wiring.want))
            kind = GitHubHook if provider.title == "GitHub" else GitLabHook
            scopes = [f"{hook.scope}/hooks/{hook.id}" for hook in hooks]
            if kind is GitLabHook:
                scopes += await _group_hooks(wiring.api, wiring.want)
            found += [kind(wiring.api, scope) for scope in scopes]
        public = configuration.settings.server.public_url
        if provider.title == "GitHub" and public is not None and await self._app.hook_url() == f"{public}/hooks/{name}":
            found.append(AppHook(self._app))
        return found

    async def _sweep(self, name: str, hook: Log) -> bool:
        """Read one log, ask for what is missing, move the mark. True: there is more to ask for than one turn may."""
        key, now = f"sweep:{name}:{hook.scope}", self._clock()
        mark = float(await self._store.recall(key) or 0.0)
        attempts = await _read(hook, mark, now)
        decided = plan(attempts, now, hook.most, mark)
        for attempt in decided.ask:
            await hook.again(attempt)
        await self._store.remember(key, repr(decided.mark), MARK_S)
        if decided.ask or decided.given_up:
            log.event(
                "sweep",
                logging.WARNING,
                source=name,
                scope=hook.scope,
                asked=len(decided.ask),
                waiting=decided.waiting - len(decided.ask),
                given_up=decided.given_up,
            )
        if decided.given_up:
            await self._store.remember(f"gap:{name}", f"{now:.0f}", 30 * 86_400)
        return len(decided.ask) == hook.most


async def _read(hook: Log, mark: float, now: float) -> list[Attempt]:
    """Read a log back to the mark, the provider's window, or the most pages."""
    found: list[Attempt] = []
    where: str | None = None
    for _ in range(PAGES):
        rows, where = await hook.page(where)
        found += [row for row in rows if row.position > mark and (row.at is None or now - row.at < GITHUB_S)]
        if where is None or len(rows) == 0 or any(row.position <= mark for row in rows):
            return found
        if any(row.at is not None and now - row.at >= GITHUB_S for row in rows):
            return found
    log.event("sweep-cut", logging.WARNING, scope=hook.scope, read=len(found))
    return found
