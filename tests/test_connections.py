"""Connections are counted by address and never take every descriptor."""

import logging
import resource

import pytest

from gateway.connections import Connections, raise_limit


async def test_one_address_gets_half_and_there_is_room_for_another(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(100)
    taken = sum(connections.take("a") for _ in range(100))
    assert taken == 50
    assert connections.take("b")
    assert not connections.take("a")
    for _ in range(taken):
        connections.give("a")
    assert sum(connections.take("c") for _ in range(100)) == 50
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message for record in said] == ["too-many-connections"]  # once a minute, however many are refused


def test_as_many_descriptors_as_we_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], before[1], 512), before[1]))
    try:
        assert raise_limit() <= before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
