"""What a delivery costs, counted: numbers that a busy machine does not change. docs/performance.md has the times."""

import asyncio
import copy
import sys
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

import gateway
from tests.test_app import SAMPLES, Driver, configuration, driver  # noqa: F401 (fixtures)
from tests.valkey import PrivateValkey

OURS = str(Path(gateway.__file__).parent)
CALLS = 290  # functions of ours entered for one admitted delivery: about 246, and a few where a second turned
SOURCE = "github-acme"


def numbered(through: Driver, number: int) -> tuple[dict[str, str], bytes]:
    sample = copy.deepcopy(SAMPLES[SOURCE])
    sample["body"]["issue"]["number"] = number
    sample["body"]["issue"]["html_url"] = f"https://github.com/acme/app/issues/{number}"
    headers, body = through.signed(SOURCE, sample)
    return {**headers, "x-github-delivery": str(uuid.uuid4())}, body


def calls(server: PrivateValkey, *commands: str) -> int:
    """How often the server was asked to run one of the commands."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)


async def post_all(
    through: Driver, deliveries: list[tuple[dict[str, str], bytes]], status: int, at_once: int = 32
) -> None:
    async def sender() -> None:
        while deliveries:
            headers, body = deliveries.pop()
            assert (await through.post(SOURCE, headers, body))[0] == status

    await asyncio.gather(*(sender() for _ in range(at_once)))


async def test_a_thousand_concurrent_admissions_share_their_round_trips(
    driver: Driver,  # noqa: F811
    server: PrivateValkey,
) -> None:
    deliveries = [numbered(driver, number) for number in range(1, 1001)]
    await post_all(driver, [deliveries.pop()], 200)
    before = calls(server, "evalsha", "eval")
    await post_all(driver, deliveries, 200)
    assert calls(server, "evalsha", "eval") - before < 150  # 999, were each to make its own


async def test_of_many_deliveries_one_writes_that_the_source_is_known(
    driver: Driver,  # noqa: F811
    server: PrivateValkey,
) -> None:
    await post_all(driver, [numbered(driver, 1)], 200)
    driver.gateway.store._known.clear()  # as a minute later
    before = calls(server, "sadd")
    await post_all(driver, [numbered(driver, number) for number in range(2, 200)], 200, at_once=198)
    assert calls(server, "sadd") - before == 1


async def test_a_forged_delivery_asks_the_store_for_nothing(
    driver: Driver,  # noqa: F811
    server: PrivateValkey,
) -> None:
    headers, body = numbered(driver, 1)
    assert (await driver.post(SOURCE, headers, body))[0] == 200  # a proven address is judged, not shut out
    await driver.gateway.store.flush()
    forged = {**headers, "x-hub-signature-256": "sha256=" + "0" * 64}
    before = calls(server, "evalsha", "eval")
    await post_all(driver, [(forged, body)] * 500, 401)
    await asyncio.sleep(1.5)  # records are written once a second
    assert 0 < calls(server, "evalsha", "eval") - before < 10  # their records alone, written together


async def test_functions_entered_for_one_delivery(driver: Driver) -> None:  # noqa: F811
    entered: list[str] = []

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            entered.append(frame.f_code.co_name)

    async def counted(headers: dict[str, str], body: bytes) -> int:
        entered.clear()
        sys.setprofile(seen)
        try:
            assert (await driver.post(SOURCE, headers, body))[0] == 200
        finally:
            sys.setprofile(None)
        return len(entered)

    for number in range(2000, 2005):  # caches are filled, what is done once a second is done
        await driver.post(SOURCE, *numbered(driver, number))
    found = min([await counted(*numbered(driver, number)) for number in range(3000, 3005)])
    assert 50 < found < CALLS
