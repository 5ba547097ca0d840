"""Who we are at GitHub: configured, read, remembered, or unknown."""

from collections.abc import AsyncIterator

import pytest

from gateway.errors import Unavailable
from gateway.sender import sender_id
from tests.destination_house import BOT, House, house
from tests.valkey import PrivateValkey


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server) as made:
        yield made


async def test_it_is_read_remembered_and_then_known_without_github(home: House) -> None:
    assert await sender_id(7, home.app, home.store) == 7
    assert home.github.double.calls["app"] == 0
    assert await sender_id(None, home.app, home.store) == BOT
    await home.github.stop()
    assert await sender_id(None, home.app, home.store) == BOT
    await home.store.forget("sender-id:4711")
    with pytest.raises(Unavailable, match="sender-unknown"):
        await sender_id(None, home.app, home.store)


async def test_github_actions_own_bot_is_nobody(home: House) -> None:
    home.github.double.bot_id = 41898282
    with pytest.raises(Unavailable, match="sender-unknown"):
        await sender_id(None, home.app, home.store)
