"""Keep alive what expires: Graph subscriptions at two thirds of their life, and what their provider's notices ask for.

One process at a time acts on a source: a short lock in the store. Only what an operator has wired is renewed or made
again; drift is reported and left for `gateway wire`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from gateway import log, wire
from gateway.configuration import Configuration
from gateway.errors import Unavailable
from gateway.store import Notice, Store, uuid7
from gateway.wire import Row, Wiring

ROUND_S = 60.0
LOOK_S = 600.0  # without a notice, how often the provider is asked
GAP_S = 30 * 86_400


class Renewer:
    """Runs until cancelled. `configuration` gives the one in force, since a reload swaps it."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        store: Store,
        session: aiohttp.ClientSession,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configuration, self._store, self._session, self._clock = configuration, store, session, clock
        self._looked: dict[str, float] = {}
        self._me = uuid7()

    async def run(self) -> None:
        """One round a minute; whatever goes wrong costs this round alone."""
        while True:
            await self.round()
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """Give every source whose hooks expire its turn."""
        configuration = self._configuration()
        for name, source in configuration.sources.items():
            provider = wire.BY_PROFILE.get(source.profile.name)
            settings = configuration.settings.sources[name]
            if provider is None or provider.life_s is None or not (settings.api_token or settings.api_oauth):
                continue
            try:
                if await self._store.remember_first(f"renewing:{name}", self._me, int(ROUND_S) - 5):
                    await self._turn(configuration, name)
            except (Unavailable, wire.WireRefused, wire.WireProblem) as error:
                log.event("renewal-failed", logging.ERROR, source=name, problem=str(error))
            except Exception:  # noqa: BLE001 (a bug must neither end the loop nor stay unseen)
                log.LOGGER.exception("renewal-bug")

    async def _turn(self, configuration: Configuration, name: str) -> None:
        notices = await self._store.notices(name)
        now = self._clock()
        if not notices and now - self._looked.get(name, 0.0) < LOOK_S:
            return
        wiring = wire.wiring_for(configuration, name, self._session)
        asked = {notice.subscription for notice in notices if notice.event == "reauthorizationRequired"}
        async with wire.alone(self._store, name, self._me):
            rows = await wire.look(wiring.provider, wiring.api, wiring.want, self._store, wiring.key, now)
            self._looked[name] = now
            for row in rows:
                await self._keep_alive(wiring, name, row, asked, now)
        for notice in notices:
            await self._settle(name, notice, now)

    async def _keep_alive(self, wiring: Wiring, name: str, row: Row, asked: set[str], now: float) -> None:
        """Renew a hook that is due or challenged; make one again that we had made and that is gone."""
        if row.hook is None:
            return
        parts = (wiring.provider, wiring.api, wiring.want)
        if row.state == "missing":
            if await self._store.recall(wire.mark_name(name, row.scope)) is None:
                return
            (made,) = await wire.apply(*parts, [row], self._store, wiring.key, now)
            log.event("renewal", logging.WARNING, source=name, scope=row.scope, done=made.done, hook=made.id)
            await self._gap(name, now)
            return
        late = row.expires is not None and wire.due(row.expires, wiring.provider.life_s or 0.0, now)
        if row.id is not None and wiring.provider.renew is not None and (late or row.id in asked):
            made_ = await wire.renew(wiring.provider, wiring.api, row, now)
            log.event("renewal", source=name, scope=row.scope, done="renewed", hook=made_.id)
        if row.state == "drifted":
            log.event(
                "hook-drift", logging.WARNING, source=name, scope=row.scope, fields=[d.name for d in row.differences]
            )

    async def _settle(self, name: str, notice: Notice, now: float) -> None:
        """A notice that was acted on is dropped. `missed` can only be told: the provider does not send those again."""
        if notice.event == "missed":
            log.event("notifications-missed", logging.ERROR, source=name, hook=notice.subscription)
            await self._gap(name, now)
        await self._store.forget_notice(name, notice)

    async def _gap(self, name: str, now: float) -> None:
        """Remember for `gateway doctor` that events of this source were lost at the provider."""
        await self._store.remember(f"gap:{name}", f"{now:.0f}", GAP_S)
