"""What starts and stops the gateway gives it the time that it takes."""

import re
from pathlib import Path

import pytest

from gateway.embedded import STOP_S
from gateway.engines import DRAIN_S as ANSWERED_S
from gateway.workers import DRAIN_S

DEPLOY = Path(__file__).parent.parent / "deploy"
TO_THE_END_S = DRAIN_S + STOP_S


@pytest.mark.parametrize(
    ("file", "pattern", "before_s"),
    [
        ("gateway.service", r"^TimeoutStopSec=(\d+)$", 0),
        ("compose.yaml", r"^    stop_grace_period: (\d+)s\n    restart: unless-stopped\n\n  # Not started by `up`", 0),
        ("kubernetes/gateway.yaml", r"^      terminationGracePeriodSeconds: (\d+)$", 5),  # its preStop
    ],
)
def test_nobody_kills_it_before_it_is_drained(file: str, pattern: str, before_s: int) -> None:
    found = re.search(pattern, (DEPLOY / file).read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= TO_THE_END_S + before_s
    assert DRAIN_S > ANSWERED_S + 15  # a worker's requests, then its dispatches


def test_the_unit_never_gives_up_what_is_only_away() -> None:
    """At a boot without network each start ends with 3 within a second; ten of those in five minutes ended it for good."""
    unit = (DEPLOY / "gateway.service").read_text().splitlines()
    assert "StartLimitIntervalSec=0" in unit
    assert "Restart=on-failure" in unit
    assert "RestartPreventExitStatus=2" in unit
