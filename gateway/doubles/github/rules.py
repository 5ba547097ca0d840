"""What GitHub's documentation says of a call's form: who asks, by which proof, and what a dispatch may hold; else a refusal."""

from collections.abc import Mapping
from typing import Any

import jwt
import orjson
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

# https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event
MAX_EVENT_TYPE = 100
MAX_PAYLOAD_KEYS = 10
MAX_PAYLOAD_CHARACTERS = 65_535
# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
MAX_JWT_AHEAD_S = 600


class Refused(Exception):  # noqa: N818 (an answer)
    """An answer of GitHub other than success."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "message": message,
            "documentation_url": "https://docs.github.com/rest",
            "status": str(status),
            **more,
        }
        self.headers = dict(headers or {})


def check_jwt(request: web.Request, key: RSAPublicKey, app_id: int, now: float) -> None:
    """Refuse an App JWT outside of GitHub's documented limits, with 401."""
    try:
        claims = jwt.decode(
            bearer(request),
            key,
            algorithms=["RS256"],
            # The times are checked below against our clock; the issuer may be a number or text.
            options={
                "verify_exp": False,
                "verify_iat": False,
                "verify_iss": False,
                "require": ["iat", "exp", "iss"],
            },
        )
    except jwt.PyJWTError:
        raise Refused(401, "A JSON web token could not be decoded") from None
    iat, exp = claims["iat"], claims["exp"]
    if not (_is_number(iat) and _is_number(exp)):
        raise Refused(401, "'Issued at' and 'Expiration time' claims must be numbers")
    if iat > now + 5:
        raise Refused(
            401, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
        )
    if exp <= now:
        raise Refused(401, "'Expiration time' claim ('exp') must be a numeric value representing the future time")
    if exp > now + MAX_JWT_AHEAD_S:
        raise Refused(401, "'Expiration time' claim ('exp') is too far in the future")
    if str(claims["iss"]) != str(app_id):
        raise Refused(401, "Integration not found")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_user_agent(request: web.Request) -> None:
    """https://docs.github.com/en/rest/using-the-rest-api/getting-started-with-the-rest-api#user-agent: it is required."""
    if not request.headers.get("User-Agent"):
        raise Refused(
            403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent header"
        )


def bearer(request: web.Request) -> str:
    """Return the credential of the call. GitHub takes both words, but a JWT only after `Bearer`."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() not in ("bearer", "token") or not value:
        raise Refused(401, "Requires authentication")
    return value


def repo_name(request: web.Request) -> str:
    """Return the repository that a call is about, as it spells it."""
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def json_object(body: bytes, empty: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a body that is a JSON object, `empty` where there is none."""
    if not body and empty is not None:
        return empty
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refused(400, "Problems parsing JSON") from None
    if not isinstance(document, dict):
        raise Refused(422, "Invalid request: the body is not an object")
    return document


def names_of(value: Any) -> list[str] | None:
    """Return the repositories that a token is asked for, None where it is asked for all."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise Refused(422, "Invalid request: repositories is not a list of names")
    return value


def dispatch_document(body: bytes) -> dict[str, Any]:
    """Return the body of a dispatch within GitHub's documented limits, else refuse it with 422."""
    document = json_object(body)
    event_type = document.get("event_type")
    if not isinstance(event_type, str) or not event_type:
        raise Refused(422, 'Invalid request: "event_type" wasn\'t supplied.')
    if len(event_type) > MAX_EVENT_TYPE:
        raise Refused(422, "event_type is too long (maximum is 100 characters)")
    if set(document) - {"event_type", "client_payload"}:
        raise Refused(422, "Invalid request: an unpermitted key was supplied")
    payload = document.get("client_payload", {})
    if not isinstance(payload, dict):
        raise Refused(422, "Invalid request: client_payload is not an object")
    if len(payload) > MAX_PAYLOAD_KEYS:
        raise Refused(422, "No more than 10 properties are allowed; the client_payload has more")
    if len(orjson.dumps(payload).decode()) > MAX_PAYLOAD_CHARACTERS:
        raise Refused(422, "client_payload is too large")
    return document
