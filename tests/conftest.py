import logging
from collections.abc import Iterator

import hypothesis
import pytest

from tests.valkey import PrivateValkey

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is no defect
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command run in this process sets levels and handlers for all of it: the next test must not hear less for that."""
    loggers = [logging.getLogger(name) for name in (None, "gateway", "gateway.store")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateValkey]:
    """A store of a test file's own, as it comes."""
    with PrivateValkey() as running:
        yield running
