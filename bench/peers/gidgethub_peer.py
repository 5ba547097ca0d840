"""A durable receiver with gidgethub on Hypercorn, as its user writes it: sansio.Event, redis-py, one script. argv: PORT URL SECRET."""

import json
import sys
from pathlib import Path

from gidgethub import ValidationFailure
from gidgethub.sansio import Event
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PORT, URL, SECRET = sys.argv[1:]
REDIS = Redis.from_url(URL)
ADMIT = REDIS.register_script((Path(__file__).parent / "admit.lua").read_text())


async def hook(request: Request) -> Response:
    body = await request.body()
    try:
        event = Event.from_http(request.headers, body, secret=SECRET)
    except ValidationFailure:
        return Response(status_code=401)
    data = event.data
    if data.get("action") == "opened" and "issue" in data:
        entry = {
            "url": data["issue"]["html_url"],
            "type": "issues.opened",
            "repository": data["repository"]["full_name"],
        }
        await ADMIT(keys=[f"seen:{event.delivery_id}", "queue"], args=[json.dumps(entry)])
    return Response(status_code=202)


if __name__ == "__main__":
    import uvloop
    from ceiling import serve_hypercorn

    uvloop.run(serve_hypercorn(Starlette(routes=[Route("/hooks/{source}", hook, methods=["POST"])]), int(PORT)))
