"""`gateway wire` as a process that is killed at its worst moment, and as two processes at once."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.doubles import providers
from gateway.errors import Unavailable
from gateway.store import Store
from gateway.wire import turn
from tests.operating import gateway, write
from tests.valkey import PrivateValkey

HOLD_S = 30.0


@dataclass
class Desk:
    """A configuration whose provider is the double, behind a proxy that can hold answers back."""

    config: Path
    double: providers.ProvidersDouble
    holding: str = ""  # calls whose body has this are done, and their answer is kept
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "gateway", "wire", "linear-acme", "--json", "--config", str(self.config))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)

    async def run(self) -> tuple[int | None, str, str]:
        process = await self.start()
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def desk(server: PrivateValkey, tmp_path: Path) -> AsyncIterator[Desk]:
    with server.client() as client:
        client.flushall()
    async with providers.running() as doubles, aiohttp.ClientSession() as session:
        desks: list[Desk] = []

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
            async with session.post(f"{doubles.address}/linear/graphql", data=body, headers=headers) as response:
                answer = web.Response(
                    status=response.status, body=await response.read(), content_type="application/json"
                )
            if desks[0].holding and desks[0].holding in body.decode():
                desks[0].held.set()
                await asyncio.sleep(HOLD_S)
            return answer

        app = web.Application()
        app.router.add_post("/graphql", forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        (tmp_path / "token").write_text(providers.TOKEN)
        api = f"http://127.0.0.1:{runner.addresses[0][1]}/graphql"
        source = [f'api_url = "{api}"', f'api_token = "file:{tmp_path}/token"']
        more = ["[server]", 'public_url = "https://hooks.acme.example"']
        desks.append(Desk(write(tmp_path, server.url, source=source, more=more), doubles.double))
        yield desks[0]
        await runner.cleanup()


def hooks(out: str) -> list[Any]:
    return [(row["state"], row["done"]) for row in json.loads(out)["hooks"]]


async def test_a_run_that_is_killed_after_the_provider_took_its_hook_leaves_one(
    desk: Desk, server: PrivateValkey
) -> None:
    desk.holding = "webhookCreate"
    process = await desk.start()
    await asyncio.wait_for(desk.held.wait(), 30)
    process.kill()
    await process.communicate()
    assert len(desk.double.kept.linear) == 1
    desk.holding = ""
    code, _, err = await desk.run()
    assert (code, "another-run-is-wiring" in err) == (3, True)  # it could still be at work: soon it cannot
    with server.client() as client:
        assert 0 < client.ttl("gw:fact:wiring:linear-acme") <= turn.TURN_S
        client.delete("gw:fact:wiring:linear-acme")
    code, out, err = await desk.run()
    assert (code, hooks(out)) == (0, [("good", "updated")]), err  # its secret was not noted: it is set once more
    assert len(desk.double.kept.linear) == 1
    assert hooks((await desk.run())[1]) == [("good", None)]


async def test_of_two_runs_at_once_one_works_and_the_other_says_so(desk: Desk) -> None:
    desk.holding = "webhookCreate"
    first = await desk.start()
    await asyncio.wait_for(desk.held.wait(), 30)
    desk.holding = ""
    code, _, err = await desk.run()
    assert (code, "another-run-is-wiring" in err) == (3, True)
    check = await asyncio.to_thread(gateway, desk.config, "wire", "linear-acme", "--check", "--json")
    assert (check.exit_code, hooks(check.stdout)) == (0, [("good", None)])  # looking needs no turn
    first.kill()
    await first.communicate()
    assert len(desk.double.kept.linear) == 1


async def test_a_turn_is_kept_while_its_owner_works_and_given_back(
    server: PrivateValkey, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(turn, "TURN_S", 1)
    store = await Store.open(server.url, require=True)
    async with turn.alone(store, "s", "one"):
        await asyncio.sleep(1.6)
        with pytest.raises(Unavailable, match="another-run"):
            async with turn.alone(store, "s", "two"):
                raise AssertionError("two at once")
    async with turn.alone(store, "s", "two"):
        pass
    await store.close()
