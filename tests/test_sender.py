"""Who we are at GitHub: configured, read, remembered, or unknown."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.errors import Unavailable
from gateway.github import GitHubApp, open_session
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


async def test_a_start_that_knows_the_answer_does_not_wait_for_a_github_that_hangs(home: House) -> None:
    """Its port is bound already, and a provider's delivery waits with it."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    await home.store.remember("sender-id:4711", str(BOT), 60)
    hanging = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with hanging, open_session() as session:
        app = GitHubApp(f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}", 4711, key, session)
        began = time.monotonic()
        assert await sender_id(None, app, home.store) == BOT
        assert time.monotonic() - began < 5
