"""The App's credentials: its key and the JWTs made with it, and what an installation token is for and how long it serves.

The rule of this module: neither the private key, nor a JWT, nor a token stands in an error or a repr.
"""

import re
from datetime import UTC, datetime
from typing import Any, Literal

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.answers import Reply, decoded
from gateway.errors import ConfigError, Problem
from gateway.structs import Opaque, Value

MIN_KEY_BITS = 2048

# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
# `iat` 60 s in the past against clock drift; `exp` at most 10 minutes ahead.
JWT_BACKDATE_S = 60
JWT_LIFE_S = 480
JWT_REUSE_S = 240
TOKEN_MARGIN_S = 300.0
TOKEN_YOUNG_S = 10.0  # a 404 to a token that is older is read once more with a new one

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")

Permission = Literal["contents:write", "contents:read", "metadata:read"]


class Token(Opaque):
    """An installation token, when it was asked for and when it ends. What it reaches is what it did when it was made."""

    value: str
    expires_at: float
    asked_at: float


class Scope(Value):
    """What one token is for: the key under which it is cached and minted."""

    installation: int
    repository: str | None
    permission: Permission

    def body(self) -> bytes:
        """Return the request that restricts the token to one repository and one permission.

        https://docs.github.com/en/rest/apps/apps#create-an-installation-access-token-for-an-app: names without the owner.
        """
        name, level = self.permission.split(":")
        asked: dict[str, Any] = {"permissions": {name: level}}
        if self.repository is not None:
            asked["repositories"] = [self.repository.split("/")[1]]
        return orjson.dumps(asked)


class Proof:
    """The App's proof of itself: a JWT, made anew where the last one is old or was refused."""

    def __init__(self, app_id: int, private_key_pem: bytes) -> None:
        self._app_id = app_id
        self._key = load_key(private_key_pem)
        self._last: tuple[float, str] | None = None

    def jwt(self, now: float) -> str:
        """Return a JWT that GitHub takes at `now`."""
        if self._last is None or not 0 <= now - self._last[0] < JWT_REUSE_S:
            claims = {"iat": int(now) - JWT_BACKDATE_S, "exp": int(now) + JWT_LIFE_S, "iss": str(self._app_id)}
            self._last = (now, jwt.encode(claims, self._key, algorithm="RS256"))
        return self._last[1]

    def refused(self) -> None:
        """Forget the last JWT."""
        self._last = None


def load_key(pem: bytes) -> RSAPrivateKey:
    """Return the App's key; ConfigError says what is wrong without a byte of it."""
    problem = None
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = "is not an unencrypted PEM private key"
    else:
        if isinstance(key, RSAPrivateKey) and key.key_size >= MIN_KEY_BITS:
            return key
        problem = f"is not an RSA key of at least {MIN_KEY_BITS} bits"
    # Raised outside of the handler: the library's error, which may quote the input, is not its context.
    fix = "use the .pem file that GitHub made for the App"
    raise ConfigError([Problem("configuration", "github.private_key", problem, fix)])


def read_token(reply: Reply, asked_at: float) -> Token | None:
    """Return the token that an answer grants, None where it is malformed."""
    match decoded(reply):
        case {"token": str(value), "expires_at": str(text)} if _TOKEN.fullmatch(value):
            expires_at = _instant(text)
            return None if expires_at is None else Token(value, expires_at, asked_at)
    return None


def _instant(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
