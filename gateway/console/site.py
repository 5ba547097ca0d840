"""The admin side put together: health, metrics, API and pages behind one guard."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.app import Gateway, Hooks, health_routes
from gateway.console.acts import Acts
from gateway.console.api import Api, refused
from gateway.console.guard import Guard
from gateway.console.pages import Pages
from gateway.console.session import Operators
from gateway.health import Lookout
from gateway.metrics import CONTENT_TYPE

STATIC = Path(__file__).parent / "static"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


def admin_app(gateway: Gateway, lookout: Lookout | None = None) -> ASGIApp:
    """What operators reach. It answers only for its own Host names (DNS rebinding)."""

    def settings() -> Any:
        return gateway.configuration.settings.server

    lookout = lookout or Lookout(lambda: gateway.configuration, gateway.store)
    operators = Operators(lambda: settings().operator_tokens, trusted=lambda: gateway.overload.trusted)
    acts = Acts(
        lambda: gateway.configuration,
        gateway.keys,
        gateway.store,
        inner_post(gateway),
        lambda source: gateway.wake(source),  # noqa: PLW0108 (the server sets it later)
    )
    api = Api(lambda: gateway.configuration, gateway.store, lookout, operators, acts)
    pages = Pages(gateway, lookout, operators, acts)

    async def metrics(request: Request) -> Response:
        if not await api.may_read(request):
            return refused()
        return Response(await gateway.watch.present(gateway.store, await lookout.gauges()), media_type=CONTENT_TYPE)

    routes = [
        *health_routes(gateway),
        Route("/metrics", metrics, methods=["GET"]),
        *api.routes(),
        *_static_routes(),
        *pages.routes(),
    ]
    app = Starlette(routes=routes, exception_handlers=pages.errors())
    app.router.redirect_slashes = False  # a redirect would repeat the client's own Host and scheme
    return Guard(app, lambda: tuple(name.lower() for name in settings().admin_hosts))


def _static_routes() -> list[Route]:
    """The few files of the pages, read once: no path of a request ever names a file."""

    def route(name: str, body: bytes, kind: str) -> Route:
        async def static(_request: Request) -> Response:
            return Response(body, media_type=kind, headers={"cache-control": "no-cache"})

        return Route(f"/static/{name}", static, methods=["GET"])

    files = sorted(path for path in STATIC.iterdir() if path.suffix in TYPES)
    return [route(path.name, path.read_bytes(), TYPES[path.suffix]) for path in files]


def inner_post(gateway: Gateway) -> Callable[[str, dict[str, str], bytes], Awaitable[tuple[int, str | None]]]:
    """Deliver to this process's own hooks without a socket: the public side may be another process's."""
    hooks = Hooks(gateway)

    async def post(source: str, headers: dict[str, str], body: bytes) -> tuple[int, str | None]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/hooks/{source}",
            "query_string": b"",
            "client": ("127.0.0.1", 0),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await hooks(scope, receive, send)
        pairs = dict(sent[0]["headers"])
        delivery = pairs.get(b"gateway-delivery")
        return sent[0]["status"], delivery.decode() if delivery is not None else None

    return post
