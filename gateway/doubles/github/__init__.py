"""A double of GitHub's REST API, as far as a GitHub App that dispatches to repositories uses it.

It holds the rules that GitHub documents (App JWTs, restricted installation tokens, permissions, limits of a dispatch) and
keeps what it was sent. Faults are scripted. Everything under `/_double/` is ours, unauthenticated, and the reason why it
belongs on loopback alone:

- `POST /_double/script` `{"repo": "o/r", "on": "dispatch", "answers": [...]}`: consumed in order, one a call. `on` is
  `dispatch` (default), `token`, `contents` or `repository`; the repo of an unrestricted token is `""`. An answer has `status`,
  `headers`, `body`; `delay_s` waits first; `cut` closes the connection without an answer; `taken` (for `dispatch`) takes the
  dispatch all the same, so that its outcome is unknown. One without `status` and `cut` goes on as if not scripted.
- `GET /_double/dispatches` what was taken (`body` decoded, `raw` as text); `GET /_double/state` counts, the repositories' ids and
  head commits; `DELETE /_double/state` forgets both, scripts and tokens.
- `GET /_double/event[?dispatch=ID][&workflow=PATH]` the event file of the run that the last dispatch started, or that one; 409
  where the workflow at the default branch does not list its type
- `POST /_double/repository` `{"repo", "id"?, "default_branch"?, "moved_to"?, "gone"?}`
- `POST /_double/contents` `{"repo", "path", "ref"?, "text"}` (without `ref`: at every ref; null text: removed)
- `POST /_double/installation` `{"id", "repositories"?, "permissions"?, "suspended"?, "gone"?}`
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from gateway.doubles.github.double import GitHubDouble
from gateway.doubles.github.world import TOKEN_LIFE_S
from gateway.structs import Value


class Running(Value):
    """A double that listens: its address, and itself for a look inside."""

    address: str
    double: GitHubDouble
    runner: web.AppRunner

    async def stop(self) -> None:
        """Close its sockets."""
        await self.runner.cleanup()


async def start(
    *,
    app_id: int,
    public_key_pem: bytes,
    installations: Mapping[int, Sequence[str]],
    host: str = "127.0.0.1",
    port: int = 0,
    slug: str = "gateway-double",
    bot_id: int = 200_000_001,
    token_life_s: float = TOKEN_LIFE_S,
    clock: Callable[[], float] = time.time,
) -> Running:
    """Start a double in this event loop; port 0 takes a free one. The caller stops it."""
    double = GitHubDouble(
        app_id=app_id,
        public_key_pem=public_key_pem,
        installations=installations,
        slug=slug,
        bot_id=bot_id,
        token_life_s=token_life_s,
        clock=clock,
    )
    runner = web.AppRunner(double.app(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    bound = runner.addresses[0]
    shown = f"[{host}]" if ":" in host else host
    return Running(f"http://{shown}:{bound[1]}", double, runner)


@asynccontextmanager
async def running(
    *, app_id: int, public_key_pem: bytes, installations: Mapping[int, Sequence[str]], **more: Any
) -> AsyncIterator[Running]:
    """`start` for a `with` block."""
    double = await start(app_id=app_id, public_key_pem=public_key_pem, installations=installations, **more)
    try:
        yield double
    finally:
        await double.stop()
