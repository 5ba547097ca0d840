"""`POST /admission`: bytes in, a closed answer out. Every refusal is `{"admitted": false, "reason": slug}`."""

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import log
from gateway.admission import MAX_BODY_BYTES, Admission, Run
from gateway.errors import Rejection, Unavailable
from gateway.receive import Vanished, receive_delivery
from gateway.store import uuid7

DEADLINE_S = 5.0


def _nobody(_run: Run | None, _reason: str, _began: float) -> None:
    """Nobody is told."""


def admission_route(
    admission: Callable[[], Admission | None], told: Callable[[Run | None, str, float], None] = _nobody
) -> Route:
    """Return the route; without an `Admission` it answers 503, since nothing can be decided.

    `told` learns of each answer: the run (None: refused), the reason, and when the request came.
    """

    async def endpoint(request: Request) -> Response:
        began = time.time()
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
            log.event("admission-refused", logging.WARNING, status=error.status, reason=error.reason, **error.about)
            told(None, error.reason, began)
            return _answer(error.status, {"admitted": False, "reason": error.reason})
        except Unavailable as error:
            log.event("admission-refused", logging.WARNING, status=503, reason=error.reason, **error.about)
            told(None, error.reason, began)
            body = {"admitted": False, "reason": error.reason}
            return _answer(503, body, {"retry-after": str(error.retry_after_s)})
        told(run, "admitted", began)
        return _answer(200, run.to_json())

    return Route("/admission", endpoint, methods=["POST"])


def _judge(admission: Admission | None) -> Admission:
    if admission is None:
        raise Unavailable("admission-off", 60)
    return admission


def _answer(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(body, status, {"cache-control": "no-store", **challenge, **(headers or {})})
