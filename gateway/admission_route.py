"""`POST /admission`: bytes in, a closed answer out. Every refusal is `{"admitted": false, "reason": slug}`."""

import logging
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import log
from gateway.admission import MAX_BODY_BYTES, Admission
from gateway.errors import Rejection, Unavailable
from gateway.receive import Vanished, receive_delivery
from gateway.store import uuid7

DEADLINE_S = 5.0


def admission_route(admission: Callable[[], Admission | None]) -> Route:
    """Return the route; without an `Admission` it answers 503, since nothing can be decided."""

    async def endpoint(request: Request) -> Response:
        try:
            raw = await receive_delivery(
                request.scope,
                request.receive,
                delivery=uuid7(),
                source="",
                limit_bytes=MAX_BODY_BYTES,
                deadline_s=DEADLINE_S,
            )
            authorization = raw.header("authorization")
            run = await _judge(admission()).admit(authorization, raw.body)
        except Vanished:
            return Response(status_code=400)  # nobody reads it
        except Rejection as error:
            log.event("admission", logging.WARNING, status=error.status, reason=error.reason)
            return _answer(error.status, {"admitted": False, "reason": error.reason})
        except Unavailable as error:
            log.event("admission", logging.WARNING, status=503, reason=error.reason)
            body = {"admitted": False, "reason": error.reason}
            return _answer(503, body, {"retry-after": str(error.retry_after_s)})
        return _answer(200, run.to_json())

    return Route("/admission", endpoint, methods=["POST"])


def _judge(admission: Admission | None) -> Admission:
    if admission is None:
        raise Unavailable("admission-off", 60)
    return admission


def _answer(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(body, status, {"cache-control": "no-store", **challenge, **(headers or {})})
