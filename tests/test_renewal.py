"""Renewal on a real store against the Graph double: at two thirds of a life, on a challenge, and after a removal."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway import notices, wire
from gateway.configuration import Configuration, load_configuration
from gateway.delivery import RawDelivery
from gateway.doubles import providers
from gateway.environment import data_folder
from gateway.renewal import LOOK_S, Renewer
from gateway.settings import SourceSettings
from gateway.store import Store
from gateway.usage import Usage
from gateway.verify import ItemProof, VerifiedDelivery
from tests.operating import write
from tests.valkey import PrivateValkey

NOW = 1_800_000_000.0
TEAMS = json.loads((data_folder("subscriptions") / "examples" / "teams-channel-message-created.json").read_bytes())


class House:
    """A configured Graph source, the double, and a renewer with a clock of its own."""

    def __init__(self, configuration: Configuration, store: Store, session: aiohttp.ClientSession, double: Any) -> None:
        self.configuration, self.store, self.session, self.double = configuration, store, session, double
        self.now = NOW
        self.renewer = Renewer(lambda: configuration, store, session, clock=lambda: self.now)

    async def wire(self) -> list[wire.Row]:
        wiring = wire.wiring_for(self.configuration, "teams", self.session)
        parts = (wiring.provider, wiring.api, wiring.want)
        rows = await wire.look(*parts, self.store, wiring.key, self.now)
        return await wire.apply(*parts, rows, self.store, wiring.key, self.now)

    async def round(self) -> None:
        await self.store.forget("renewing:teams")
        await self.renewer.round()

    @property
    def graph(self) -> dict[str, dict[str, Any]]:
        kept: dict[str, dict[str, Any]] = self.double.kept.graph
        return kept


@pytest.fixture
async def house(server: PrivateValkey, tmp_path: Path) -> AsyncIterator[House]:
    with server.client() as client:
        client.flushall()

    async def hook(request: web.Request) -> web.Response:
        return web.Response(text=request.query["validationToken"], content_type="text/plain")

    app = web.Application()
    app.router.add_post("/hooks/teams", hook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    clock = [NOW]
    async with providers.running(clock=lambda: clock[0]) as doubles, aiohttp.ClientSession() as session:
        (tmp_path / "token").write_text(providers.TOKEN)
        source = [
            "[sources.teams]",
            'profile = "microsoft-graph"',
            f'secrets = ["file:{tmp_path}/linear"]',
            f"identity.tenant = {json.dumps(TEAMS['grants']['tenants'])}",
            f'api_url = "{doubles.address}/graph/v1.0"',
            f'api_token = "file:{tmp_path}/token"',
            "[[enrollments]]",
            f'subscription = "{TEAMS["digest"]}"',
            'source = "teams"',
            "installation = 11",
        ]
        config = write(
            tmp_path,
            server.url,
            source=source,
            more=["[server]", f'public_url = "http://127.0.0.1:{runner.addresses[0][1]}"'],
        )
        store = await Store.open(server.url, require=True)
        made = House(load_configuration(config), store, session, doubles.double)
        made.clock = clock  # type: ignore[attr-defined]  # the double's time
        yield made
        await store.close()
    await runner.cleanup()


async def test_a_subscription_is_renewed_at_two_thirds_and_not_before(house: House) -> None:
    (made,) = await house.wire()
    assert made.scope == "/teams/55555555-5555-4555-8555-555555555555/channels/19:triage@thread.tacv2/messages"
    await house.round()
    before = house.graph[str(made.id)]["expirationDateTime"]
    house.now = house.clock[0] = NOW + 50 * 3600  # type: ignore[attr-defined]
    await house.round()
    assert house.graph[str(made.id)]["expirationDateTime"] > before


async def test_a_challenge_renews_at_once_and_its_notice_is_gone(house: House) -> None:
    (made,) = await house.wire()
    before = house.graph[str(made.id)]["expirationDateTime"]
    item = {"lifecycleEvent": "reauthorizationRequired", "subscriptionId": made.id}
    await notices.keep(house.store, "teams", [item, item], NOW)
    house.now = house.clock[0] = NOW + 60  # type: ignore[attr-defined]
    await house.round()
    assert house.graph[str(made.id)]["expirationDateTime"] > before
    assert await house.store.notices("teams") == []


async def test_a_removed_subscription_is_made_again_only_where_an_operator_had_wired_it(house: House) -> None:
    await notices.keep(house.store, "teams", [{"lifecycleEvent": "subscriptionRemoved", "subscriptionId": "gone"}], NOW)
    await house.round()
    assert house.graph == {}
    (made,) = await house.wire()
    house.graph.clear()
    await notices.keep(
        house.store, "teams", [{"lifecycleEvent": "subscriptionRemoved", "subscriptionId": made.id}], NOW
    )
    await house.round()
    assert len(house.graph) == 1
    assert made.id not in house.graph
    assert await house.store.recall("gap:teams")


async def test_one_process_acts_and_a_failure_keeps_the_notice(house: House) -> None:
    (made,) = await house.wire()
    await notices.keep(house.store, "teams", [{"lifecycleEvent": "missed", "subscriptionId": made.id}], NOW)
    await house.store.remember_first("renewing:teams", "another", 60)
    house.double.kept.calls.clear()
    await house.renewer.round()
    assert house.double.kept.calls == []
    house.double.fault(503)
    await house.round()
    assert [notice.event for notice in await house.store.notices("teams")] == ["missed"]
    await house.round()
    assert await house.store.notices("teams") == []
    assert await house.store.recall("gap:teams")


async def test_without_a_notice_the_provider_is_asked_rarely(house: House) -> None:
    await house.wire()
    await house.round()
    house.double.kept.calls.clear()
    await house.round()
    assert house.double.kept.calls == []
    house.now += LOOK_S + 1
    await house.round()
    assert house.double.kept.calls


async def test_a_notice_that_comes_again_meanwhile_stays(house: House) -> None:
    await house.store.keep_notice("teams", "missed", "s", NOW)
    (notice,) = await house.store.notices("teams")
    await house.store.keep_notice("teams", "missed", "s", NOW + 1)
    assert not await house.store.forget_notice("teams", notice)
    await notices.keep(house.store, "teams", [{"lifecycleEvent": "other", "subscriptionId": "s"}, {}], NOW)
    assert len(await house.store.notices("teams")) == 1


async def test_the_secret_that_proved_a_delivery_is_noted_by_its_reference(house: House, tmp_path: Path) -> None:
    usage = Usage()
    settings = SourceSettings(profile="linear", secrets=("env:NEW", "env:OLD"))
    raw = RawDelivery("d", "teams", NOW, (), b"", b"")
    usage.saw(house.store, settings, VerifiedDelivery(raw, "1", {}, None, None))
    usage.saw(house.store, settings, VerifiedDelivery(raw, "", {}, None, (ItemProof({}, "0", None),)))
    usage.saw(house.store, settings, VerifiedDelivery(raw, "kid", {}, None, None))
    await usage.close(house.store)
    assert await house.store.secrets_used("teams") == {"env:OLD": NOW, "env:NEW": NOW}
