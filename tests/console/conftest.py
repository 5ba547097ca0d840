from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.configuration import Configuration
from gateway.keys import Keys
from gateway.store import Store
from tests.console.client import Client, write_configuration
from tests.valkey import PrivateValkey


@pytest.fixture(scope="session")
def console_valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as running:
        yield running


@pytest.fixture(scope="session")
def console_configuration(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    return write_configuration(tmp_path_factory.mktemp("console"))


@pytest.fixture
async def client(console_valkey: PrivateValkey, console_configuration: Configuration) -> AsyncIterator[Client]:
    with console_valkey.client() as redis:
        redis.flushall()
    store = await Store.open(console_valkey.url)
    yield Client(Gateway(console_configuration, Keys(console_configuration.settings, _no_session), store))
    await store.close()


def _no_session() -> aiohttp.ClientSession:  # no test here asks a provider for its keys
    raise AssertionError
