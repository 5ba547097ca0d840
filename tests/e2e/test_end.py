"""How a receiver ends: drained by SIGTERM, or killed at any instruction. Nothing answered 2xx may be lost either way."""

import asyncio
import copy
import json
import signal
import time
from typing import Any

import aiohttp
import pytest

from gateway.demo import Stage

pytestmark = pytest.mark.e2e


def numbered(stage: Stage, number: int) -> tuple[dict[str, str], bytes]:
    sample = copy.deepcopy(next(s for s in stage.samples if s["source"] == "github-acme"))
    sample["body"]["issue"]["number"] = number
    sample["body"]["issue"]["html_url"] = f"https://github.com/acme/app/issues/{number}"
    return stage.signed(sample, time.time())


async def load(stage: Stage, numbers: range, accepted: set[int]) -> None:
    """Post numbered issues until the receiver is gone; note those it took."""
    for number in numbers:
        headers, body = numbered(stage, number)
        try:
            async with stage.session.post(f"{stage.public}/hooks/github-acme", data=body, headers=headers) as response:
                if response.status == 200:
                    accepted.add(number)
        except aiohttp.ClientError:
            return


async def dispatched(stage: Stage) -> list[Any]:
    async with stage.session.get(f"{stage.github}/_double/dispatches") as response:
        return [entry["body"] for entry in (await response.json())["dispatches"]]


def numbers_in(bodies: list[Any]) -> list[int]:
    events = [event for body in bodies for event in body["client_payload"]["gateway"]["events"]]
    return [int(event["url"].rpartition("/")[2]) for event in events]


@pytest.mark.parametrize("engine", ["hypercorn", "uvicorn"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_accepted_is_lost(number: signal.Signals, engine: str) -> None:
    async with Stage(engine) as stage:
        accepted: set[int] = set()
        loaders = [asyncio.create_task(load(stage, range(n, 100_000, 8), accepted)) for n in range(1, 9)]
        await asyncio.sleep(1.5)
        stage.receiver.send_signal(number)
        status = await asyncio.wait_for(stage.receiver.wait(), 30)
        await asyncio.gather(*loaders)
        assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert len(accepted) > 20
        await stage.start_receiver()
        for _ in range(300):
            if accepted <= set(numbers_in(await dispatched(stage))):
                break
            await asyncio.sleep(0.2)
        bodies = await dispatched(stage)
        assert accepted - set(numbers_in(bodies)) == set()
        by_dispatch: dict[str, str] = {}
        for body in bodies:  # the same dispatch id always carries the same members
            text = json.dumps(body, sort_keys=True)
            assert by_dispatch.setdefault(body["client_payload"]["gateway"]["dispatch"], text) == text
        once = numbers_in([json.loads(text) for text in by_dispatch.values()])
        assert len(once) == len(set(once))  # no event under two dispatch ids


async def test_a_taken_port_exits_3_and_a_bad_configuration_2() -> None:
    async with Stage() as stage:
        second = await stage.spawn("-m", "gateway", "serve", "--config", str(stage.folder / "gateway.toml"))
        assert await asyncio.wait_for(second.wait(), 20) == 3
        config = stage.folder / "gateway.toml"
        config.write_text(config.read_text() + "\n[nonsense]\nx = 1\n")
        third = await stage.spawn("-m", "gateway", "check", "--json", "--config", str(config))
        out, _ = await third.communicate()
        assert third.returncode == 2
        assert [problem["key"] for problem in json.loads(out)["problems"]] == ["nonsense"]
