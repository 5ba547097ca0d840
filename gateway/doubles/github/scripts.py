"""Scripted faults: what the next calls of one kind about one repository are answered instead."""

import asyncio
from collections import deque
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """What is told to the double: nothing that it does not know."""

    model_config = ConfigDict(extra="forbid")


class ScriptedAnswer(Model):
    """One scripted answer; see the module."""

    status: int | None = Field(default=None, ge=200, le=599)
    headers: dict[str, str] = {}
    body: Any = None
    delay_s: float = Field(default=0.0, ge=0)
    cut: bool = False
    taken: bool = False


class Script(Model):
    """Answers for the next calls of one kind about one repository."""

    repo: str
    on: str = Field(default="dispatch", pattern="^(dispatch|token|contents|repository)$")
    answers: list[ScriptedAnswer]


class Scripts:
    """The scripted answers that were not played yet, by kind of call and repository."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[ScriptedAnswer]] = {}

    def add(self, script: Script) -> None:
        """Add answers behind those that wait."""
        self._waiting.setdefault((script.on, script.repo.lower()), deque()).extend(script.answers)

    async def next(self, on: str, repo: str) -> ScriptedAnswer | None:
        """Return the next scripted answer, after its delay; None where the call goes on as usual."""
        waiting = self._waiting.get((on, repo.lower()))
        if not waiting:
            return None
        answer = waiting.popleft()
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        return answer if answer.cut or answer.status is not None else None

    def left(self) -> list[dict[str, Any]]:
        """Return how many answers of each kind are left."""
        return [{"on": on, "repo": repo, "left": len(left)} for (on, repo), left in self._waiting.items() if left]

    def clear(self) -> None:
        """Forget them."""
        self._waiting.clear()


def play(request: web.Request, answer: ScriptedAnswer) -> web.StreamResponse:
    """Return the answer as scripted, or cut the connection."""
    if answer.cut:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)
    body = b"" if answer.body is None else orjson.dumps(answer.body)
    headers = {"Content-Type": "application/json", **answer.headers}
    return web.Response(status=answer.status or 500, body=body, headers=headers)
