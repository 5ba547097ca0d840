"""What commands, API and console say about the run of a dispatch, on a store that a real dispatcher and admissions wrote."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.configuration import Configuration
from gateway.keys import Keys
from tests.console.client import Client, write_configuration
from tests.destination_house import House, house
from tests.operating import gateway, write
from tests.valkey import PrivateValkey

OLD = "on: repository_dispatch\n"


@dataclass
class Stage:
    """A house, and the three places that show what happened in it."""

    home: House
    config: Path
    client: Client

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it wrote."""
        done = await asyncio.to_thread(gateway, self.config, *arguments)
        assert done.exit_code == code, done.output
        return done.output

    async def explained(self, ident: str) -> dict[str, Any]:
        """Return the record as the API gives it, which the command's JSON agrees with."""
        row: dict[str, Any] = (await self.client.get(f"/api/v1/deliveries/{ident}")).json()
        told = json.loads(await self.command("explain", ident, "--json"))
        assert told["dispatches"] == row["dispatches"]
        return row

    async def page(self, ident: str) -> str:
        """Return the console's page of a delivery, its white space as a browser shows it."""
        answered = await self.client.get(f"/deliveries/{ident}")
        assert answered.status == 200
        return " ".join(answered.text.split())

    async def newest(self) -> str:
        """Return the id of the newest record."""
        return str((await self.home.store.deliveries(limit=1)).rows[0]["id"])


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as running:
        yield running


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    return write_configuration(tmp_path_factory.mktemp("console"))


def _no_session() -> aiohttp.ClientSession:  # nobody here asks a provider for its keys
    raise AssertionError


@pytest.fixture
async def stage(valkey: PrivateValkey, configuration: Configuration, tmp_path: Path) -> AsyncIterator[Stage]:
    async with house(valkey, OLD) as home:
        shown = Gateway(configuration, Keys(configuration.settings, _no_session), home.store)
        made = Stage(home, write(tmp_path, valkey.url), Client(shown))
        await made.client.log_in()
        yield made


async def test_an_admitted_run_is_named_wherever_its_dispatch_is(stage: Stage) -> None:
    dispatch = await stage.home.dispatch()
    delivery = await stage.newest()
    assert f"> {dispatch} sent\n" in await stage.command("deliveries")
    await stage.home.admit(stage.home.token(run_id="9000000064"), dispatch)
    assert f"> {dispatch} sent, admitted (run 9000000064)\n" in await stage.command("deliveries")
    listed = {"id": dispatch, "status": "sent", "admitted": True, "run": "9000000064"}
    assert json.loads(await stage.command("deliveries", "--json"))["deliveries"][0]["dispatches"] == [listed]
    assert json.loads(await stage.command("deliveries", "--export"))["dispatches"] == [listed]
    (shown,) = (await stage.explained(delivery))["dispatches"]
    assert shown["run"] == "9000000064"
    assert "run 9000000064 admitted 20" in await stage.command("explain", delivery)
    assert '<span class="id">9000000064</span>' in await stage.page(delivery)
