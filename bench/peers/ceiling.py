"""The ceiling: the same server reading the body and answering, nothing else. argv: PORT ENGINE."""

import asyncio
import signal
import socket
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def read(request: Request) -> Response:
    await request.body()
    return Response(status_code=202)


APP = Starlette(routes=[Route("/hooks/{source}", read, methods=["POST"])])


async def serve_hypercorn(app: Starlette, port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.include_date_header = config.include_server_header = False
    config.keep_alive_max_requests = 10_000_000
    config.accesslog = config.errorlog = None
    await serve(app, config, shutdown_trigger=stop.wait)


async def serve_uvicorn(app: Starlette, port: int) -> None:
    import uvicorn

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", access_log=False))
    task = asyncio.create_task(server.serve())
    await stop.wait()
    server.should_exit = True
    await task


if __name__ == "__main__":
    import uvloop

    uvloop.run((serve_uvicorn if sys.argv[2] == "uvicorn" else serve_hypercorn)(APP, int(sys.argv[1])))
