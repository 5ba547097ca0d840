"""Open the store that a configuration names, for a server and for commands alike."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.configuration import Base, Configuration
from gateway.embedded import Embedded
from gateway.errors import ConfigError
from gateway.store import Store


async def open_store(stack: AsyncExitStack, configuration: Configuration | Base) -> tuple[Store, Callable[[], bool]]:
    """Open the store, starting the embedded one where that is configured; closed and stopped by the stack.

    The second value says whether the embedded store's disk is nearly full; for another server that is its operator's watch.
    """
    settings = configuration.settings.store
    low_on_disk, url = (lambda: False), settings.url
    if settings.embedded is not None:
        folder = configuration.file.parent.absolute() / settings.embedded
        try:
            embedded = await stack.enter_async_context(Embedded(folder))
        except ConfigError as error:
            raise error.at(str(configuration.file)) from None
        low_on_disk, url = embedded.low_on_disk, embedded.url
    assert url is not None  # one of the two is set: settings refuse anything else
    store = await Store.open(
        url,
        file=str(configuration.file),
        relaxed=settings.durability == "relaxed",
        wait_replicas=settings.wait_replicas,
    )
    stack.push_async_callback(store.close)
    return store, low_on_disk


def never_started(configuration: Configuration | Base) -> bool:
    """Whether the configured store is an embedded one that nobody has started yet: nothing was ever stored."""
    embedded = configuration.settings.store.embedded
    return embedded is not None and not (configuration.file.parent / embedded).exists()


@asynccontextmanager
async def opened(configuration: Configuration | Base) -> AsyncIterator[Store]:
    """The store for the duration of a command. Raises Unavailable where nobody answers."""
    async with AsyncExitStack() as stack:
        store, _ = await open_store(stack, configuration)
        await store.ping()
        yield store
