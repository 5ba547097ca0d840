"""What a running receiver logged: a line is written a turn after its answer, so it is waited for."""

import asyncio
import json
import time
from typing import Any

from gateway.demo import Stage


def lines(stage: Stage) -> list[dict[str, Any]]:
    text = (stage.folder / "gateway.log").read_text().rpartition("\n")[0]  # the last line may still be written
    return [json.loads(line) for line in text.splitlines() if line[:1] == "{"]


async def until_logged(stage: Stage, *, after: int = 0, within_s: float = 20, **fields: Any) -> dict[str, Any]:
    """The first line from line `after` on that has all of `fields`."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for line in lines(stage)[after:]:
            if fields.items() <= line.items():
                return line
        await asyncio.sleep(0.05)
    raise AssertionError(f"{fields} was not logged: {lines(stage)[after:]}")
