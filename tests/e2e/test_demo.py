"""The README's first command, as a newcomer runs it."""

import asyncio
import json
import subprocess
import sys

import pytest

from gateway import envelope

pytestmark = pytest.mark.e2e

KEYS = {"source", "profile", "case", "status", "outcome", "reason", "delivery", "dispatch", "envelope"}


async def test_demo_once_json() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "demo", "--once", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0, err.decode() + out.decode()
    assert {frozenset(line) for line in lines} == {frozenset(KEYS)}
    profiles = {line["profile"] for line in lines if line["case"] == "valid"}
    assert {"github", "linear", "slack", "microsoft-graph", "forge", "gitlab-signing"} <= profiles
    for line in lines:
        if line["case"] == "valid":
            envelope.validate(line["envelope"])
            assert line["envelope"]["client_payload"]["gateway"]["dispatch"] == line["dispatch"]
        else:
            assert line["envelope"] is None
            assert line["reason"]
