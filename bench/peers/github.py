"""GitHub's double with a delay and a limit: argv PORT PUBLIC_KEY DELAY_S LIMIT WINDOW_S LIMITED INSTALLATIONS SUBSCRIPTIONS.

Of each installation (0: of none) at most LIMIT dispatches pass in a window; more get 403 with `retry-after`, as of GitHub's
secondary limits. LIMITED is one installation that gets 403 whatever it does, 0 for none. `GET /_bench` counts.
"""

import asyncio
import math
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from gateway.doubles.github.double import GitHubDouble, Handler


async def main(key: bytes) -> None:
    port = int(sys.argv[1])
    delay_s, limit, window_s = float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    limited, installations, count = (int(one) for one in sys.argv[6:9])
    of = {f"acme/target-{number}": 1 + number % installations for number in range(count)}
    repositories: dict[int, list[str]] = {}
    for name, installation in of.items():
        repositories.setdefault(installation, []).append(name)
    double = GitHubDouble(app_id=1, public_key_pem=key, installations=repositories)
    windows: dict[int, float] = {}
    used: Counter[int] = Counter()
    seen: Counter[str] = Counter()
    taken_at: list[tuple[float, int]] = []

    def wait_s(installation: int) -> int:
        """Seconds that this call is refused for, 0 where it may pass."""
        if installation == limited:
            return 60
        if not limit:
            return 0
        now = time.monotonic()
        if now >= windows.get(installation, 0.0):
            windows[installation], used[installation] = now + window_s, 0
        used[installation] += 1
        return max(1, math.ceil(windows[installation] - now)) if used[installation] > limit else 0

    @web.middleware
    async def shaped(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.endswith("/dispatches") or request.path.startswith("/_double"):
            return await handler(request)
        installation = of[request.path.removeprefix("/repos/").removesuffix("/dispatches")]
        await request.read()
        await asyncio.sleep(delay_s)
        wait = wait_s(installation)
        if wait:
            seen["refused"] += 1
            message = {"message": "You have exceeded a secondary rate limit."}
            return web.json_response(message, status=403, headers={"retry-after": str(wait)})
        answer = await handler(request)
        seen[str(answer.status)] += 1
        taken_at.append((time.time(), installation))
        return answer

    async def shown(_: web.Request) -> web.Response:
        events = [len(one["client_payload"]["gateway"]["events"]) for one in double.dispatches]
        others = [at for at, installation in taken_at if installation != limited]
        return web.json_response(
            {
                "calls": dict(seen),
                "events": sum(events),
                "sizes": dict(Counter(events)),
                "last": taken_at[-1][0] if taken_at else None,
                "others": len(others),
                "most_in_flight": double.most_in_flight,
            }
        )

    app = double.app()
    app.middlewares.append(shaped)
    app.router.add_get("/_bench", shown)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[2]).read_bytes()))
