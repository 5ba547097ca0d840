import hypothesis
import pytest

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is no defect
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
