"""`/api/v1/`: what scripts read and change. Reads need nothing on loopback, changes an operator's token as a bearer.

Errors are `{"error": text}`: 400 a bad parameter, 401 no token, 404 unknown, 503 the store is away.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.configuration import Configuration
from gateway.console.acts import Acts
from gateway.console.guard import is_local
from gateway.console.session import Operator, Operators
from gateway.deliveries import delivery_page, one_delivery
from gateway.errors import Unavailable
from gateway.health import Asked, Look, Lookout, SourceHealth
from gateway.store import Dispatch, Store
from gateway.structs import asdict

BODY_BYTES = 65_536
Handler = Callable[[Request], Awaitable[Any]]


class Wrong(Exception):  # noqa: N818 (told to the caller)
    """An answer other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Api:
    """The routes."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        store: Store,
        lookout: Lookout,
        operators: Operators,
        acts: Acts,
    ) -> None:
        self._configuration, self._store, self._lookout = configuration, store, lookout
        self._operators, self._acts = operators, acts

    def routes(self) -> list[Route]:
        """All of them."""
        read = {
            "/deliveries": self.deliveries,
            "/deliveries/{id}": self.delivery,
            "/subscriptions": self.subscriptions,
            "/sources": self.sources,
            "/dead": self.dead,
            "/asks": self.asks,
        }
        change = {
            "/dead/replay": self.replay,
            "/dead/discard": self.discard,
            "/sources/{name}/test": self.test,
            "/asks/{id}": self.answer,
        }
        return [
            *(Route(f"/api/v1{path}", self._reading(one), methods=["GET"]) for path, one in read.items()),
            *(Route(f"/api/v1{path}", self._changing(one), methods=["POST"]) for path, one in change.items()),
        ]

    # -- who may ----------------------------------------------------------------------------------------------------

    async def may_read(self, request: Request) -> bool:
        """Anybody on this machine; from elsewhere an operator."""
        return (
            is_local(request.scope)
            or await self._operators.of_session(request, self._store) is not None
            or self._operators.of_bearer(request) is not None
        )

    def _reading(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def read(request: Request) -> Response:
            if not await self.may_read(request):
                return refused()
            return await _answer(handler(request))

        return read

    def _changing(
        self, handler: Callable[[Operator, Request, dict[str, Any]], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def change(request: Request) -> Response:
            operator = self._operators.of_bearer(request)  # never a cookie: a browser adds that by itself
            if operator is None:
                return refused()

            async def work() -> Any:
                return await handler(operator, request, await _json_body(request))

            return await _answer(work())

        return change

    # -- reads ------------------------------------------------------------------------------------------------------

    async def deliveries(self, request: Request) -> Any:
        """Records, newest first."""
        return await delivery_page(self._store, request.query_params)

    async def delivery(self, request: Request) -> Any:
        """One record."""
        found = await one_delivery(self._store, request.path_params["id"])
        if found is None:
            raise Wrong(404, "no such delivery or dispatch, or its record was trimmed")
        return found

    async def subscriptions(self, request: Request) -> Any:
        """Enrolled subscriptions."""
        _known(request, "source")
        look, source = await self._looked(), request.query_params.get("source")
        return {"subscriptions": [asdict(row) for row in look.subscriptions if source in {None, row.source}]}

    async def sources(self, request: Request) -> Any:
        """Sources with their health."""
        _known(request)
        return {"sources": [source_row(one) for one in (await self._looked()).sources]}

    async def dead(self, request: Request) -> Any:
        """Dead letters, newest first a source."""
        _known(request, "source", "limit", "offset")
        limit, offset = _number(request, "limit", 100, 1, 500), _number(request, "offset", 0, 0, 1_000_000)
        source, skip, letters = request.query_params.get("source"), offset, list[Dispatch]()
        for one in (await self._looked()).sources:
            if source in {None, one.name} and len(letters) < limit:
                if skip < one.depth.dead:
                    letters += await self._store.dead_letters(one.name, limit - len(letters), skip)
                skip = max(0, skip - one.depth.dead)
        return {"dead": [dead_row(one) for one in letters]}

    async def asks(self, request: Request) -> Any:
        """Dispatches that wait for an operator."""
        _known(request)
        return {"asks": [ask_row(one) for one in (await self._looked()).asks]}

    async def _names(self) -> list[str]:
        return [one.name for one in (await self._looked()).sources]

    async def _looked(self) -> Look:
        look = await self._lookout.look()
        if look.away is not None:
            raise Unavailable(look.away)
        return look

    # -- changes ----------------------------------------------------------------------------------------------------

    async def replay(self, operator: Operator, _: Request, body: dict[str, Any]) -> Any:
        """Queue dead letters again: `{"ids": [...]}`, `{"source": NAME}` or `{"all": true}`."""
        return {"replayed": await self._acts.replay(operator, await self._letters(body))}

    async def discard(self, operator: Operator, _: Request, body: dict[str, Any]) -> Any:
        """Give dead letters up."""
        return {"discarded": await self._acts.discard(operator, await self._letters(body))}

    async def test(self, operator: Operator, request: Request, body: dict[str, Any]) -> Any:
        """Send a signed sample to a source."""
        if body:
            raise Wrong(400, "takes no parameter")
        sent = await self._acts.test(operator, request.path_params["name"])
        if sent is None:
            raise Wrong(404, "no such source, or no sample that can be signed for it")
        return {"status": sent.status, "delivery": sent.delivery}

    async def answer(self, operator: Operator, request: Request, body: dict[str, Any]) -> Any:
        """Answer an ask: `{"answer": "yes"}` or no."""
        if body not in ({"answer": "yes"}, {"answer": "no"}):
            raise Wrong(400, 'give {"answer": "yes"} or {"answer": "no"}')
        ident = request.path_params["id"]
        status = await self._acts.answer(operator, ident, body["answer"])
        if status != "answered":
            raise Wrong(404 if status == "unknown" else 409, status)
        await self._lookout.look(fresh=True)
        return {"id": ident, "answer": body["answer"], "status": status}

    async def _letters(self, body: dict[str, Any]) -> list[str]:
        match body:
            case {"ids": list(ids)} if len(body) == 1 and ids and all(isinstance(one, str) for one in ids):
                return ids[:1000]
            case {"source": str(source)} if len(body) == 1:
                if source not in await self._names():
                    raise Wrong(404, "no such source")
                return await self._acts.letters(source)
            case {"all": True} if len(body) == 1:
                return [one for name in await self._names() for one in await self._acts.letters(name)]
        raise Wrong(400, 'give exactly one of {"ids": [...]}, {"source": NAME} and {"all": true}')


# -- rows ---------------------------------------------------------------------------------------------------------------


def source_row(one: SourceHealth) -> dict[str, Any]:
    """A source with its health; times are Unix seconds, null where there was none."""
    return {
        "name": one.name,
        "profile": one.profile,
        "health": one.state,
        "last_good": one.last_good,
        "last_refused": one.last_refused,
        "waiting": one.depth.waiting,
        "sealed": one.depth.sealed,
        "oldest": one.depth.oldest,
        "dead": one.depth.dead,
    }


def dead_row(one: Dispatch) -> dict[str, Any]:
    """A dead letter: never its events."""
    return {
        "id": one.id,
        "source": one.source,
        "digest": one.digest,
        "trigger": one.trigger,
        "reason": one.reason,
        "events": len(one.events),
        "deliveries": list(one.deliveries),
        "attempts": one.attempts,
        "dead_at": one.settled_at,
    }


def ask_row(one: Asked) -> dict[str, Any]:
    """A dispatch that waits for an answer."""
    return {
        "id": one.dispatch.id,
        "source": one.dispatch.source,
        "digest": one.dispatch.digest,
        "trigger": one.dispatch.trigger,
        "events": len(one.dispatch.events),
        "sealed_at": one.dispatch.sealed_at,
        "expires_at": one.expires,
    }


# -- answers ------------------------------------------------------------------------------------------------------------


def refused() -> Response:
    """Nobody that we know."""
    return JSONResponse({"error": "needs an operator's token"}, 401, {"www-authenticate": "Bearer"})


async def _answer(work: Awaitable[Any]) -> Response:
    try:
        return JSONResponse(await work)
    except Wrong as error:
        return JSONResponse({"error": error.text}, error.status)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    except Unavailable as error:
        return JSONResponse({"error": error.reason}, 503, {"retry-after": str(error.retry_after_s)})


async def read_body(request: Request) -> bytes:
    """The whole body, or Wrong where it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise Wrong(413, "too large")
    return bytes(body)


async def _json_body(request: Request) -> dict[str, Any]:
    text = await read_body(request)
    try:
        body = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise Wrong(400, "not JSON") from None
    if not isinstance(body, dict):
        raise Wrong(400, "not a JSON object")
    return body


def _known(request: Request, *names: str) -> None:
    unknown = request.query_params.keys() - set(names)
    if unknown:
        raise ValueError(f"unknown parameter {min(unknown)}")


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and least <= int(text) <= most):
        raise ValueError(f"{name} must be {least} to {most}")
    return int(text)
