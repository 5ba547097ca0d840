"""The README's first command, as a newcomer runs it."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

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


def test_a_demo_that_is_killed_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "gateway", "demo", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = descendants(process.pid)
        process.kill()
    assert len(children) >= 3  # receiver, its store, the double
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < end
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on."""
    children = [
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
    ]
    return [*children, *(below for child in children for below in descendants(child))]
