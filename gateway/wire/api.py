"""Calls to a provider's API: bounded, no redirects followed, and no token or secret in any error."""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp

from gateway.answers import next_link
from gateway.errors import Unavailable

TIMEOUT_S = 30.0  # creating a Graph subscription waits for our own answer to its validation
ANSWER_BYTES = 4 * 1024 * 1024
MESSAGE_CHARS = 200
PAGES = 200
LEAST = 4  # shorter parts stand in ordinary words


class WireRefused(Exception):  # noqa: N818 (the provider's answer, not a defect)
    """The provider's answer is no. The text names status and call, and what the provider says about it."""

    def __init__(self, status: int, call: str, message: str) -> None:
        super().__init__(f"{call} was answered {status}" + (f": {message}" if message else ""))
        self.status = status


@dataclass(slots=True)
class OAuthClient:
    """Client credentials of a provider's API (https://www.rfc-editor.org/rfc/rfc6749#section-4.4); the token is cached."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str
    _token: str = field(default="", repr=False)
    _until: float = 0.0

    async def token(self, session: aiohttp.ClientSession) -> str:
        """Return a token with a minute left. Raises WireRefused or Unavailable."""
        if time.monotonic() < self._until:
            return self._token
        form = {"grant_type": "client_credentials", "client_id": self.client_id, "scope": self.scope}
        body = urlencode({**form, "client_secret": self.client_secret}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        status, answer, _ = await exchange(session, "POST", self.token_url, headers, body)
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
            raise WireRefused(status, f"POST {self.token_url}", _plain(_message(answer), (self.client_secret,)))
        lifetime = answer.get("expires_in")
        seconds = float(lifetime) if isinstance(lifetime, int | float | str) and str(lifetime).isdecimal() else 300.0
        self._token, self._until = answer["access_token"], time.monotonic() + max(0.0, seconds - 60)
        return self._token


class Api:
    """One provider's API, with a static token or client credentials."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        authorize: Callable[[str], Mapping[str, str]],
        credential: str | OAuthClient,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._session, self.base = session, base.rstrip("/")
        self._authorize, self._credential = authorize, credential
        # What is sent for a credential (Basic encodes it) and a password alone are as secret as the whole.
        sent = "" if isinstance(credential, OAuthClient) else authorize(credential).get("Authorization", "")
        parts = (sent.rpartition(" ")[2], *(secret.partition(":")[2] for secret in secrets))
        hidden = {*(part for part in parts if len(part) >= LEAST), *(secret for secret in secrets if secret)}
        self._secrets = tuple(sorted(hidden, key=len, reverse=True))

    def __repr__(self) -> str:
        return f"Api({self.base!r})"

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make one call and return its decoded answer. `path` is relative to the base, or a link of the API itself.

        Raises WireRefused for a 4xx or 3xx, Unavailable where the provider is away or overloaded.
        """
        answer, _ = await self._call(method, path, body)
        return answer

    async def page(self, path: str) -> tuple[Any, str | None]:
        """Make a GET call; return its answer and the link of the next page. Raises as `call` does."""
        answer, link = await self._call("GET", path, None)
        return answer, next_link(link)

    async def _call(self, method: str, path: str, body: Any) -> tuple[Any, str]:
        if isinstance(self._credential, OAuthClient):
            headers: Mapping[str, str] = bearer(await self._credential.token(self._session))
        else:
            headers = self._authorize(self._credential)
        sent = None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers = {**headers, "Content-Type": "application/json"}
        status, answer, link = await exchange(self._session, method, self.address(path), headers, sent)
        if status == 429 or status >= 500:
            raise Unavailable("provider-busy" if status == 429 else "provider-error", 60)
        if not 200 <= status < 300:
            raise WireRefused(status, f"{method} {self.address(path)}", self.said(_message(answer)))
        return answer, link

    def said(self, text: str) -> str:
        """What a provider says of a refusal: short, printable, and without our secrets should it repeat them."""
        return _plain(text, self._secrets)

    def address(self, path: str) -> str:
        """The whole URL of a path; a link to another place is not followed, since the token would go there."""
        if path == "" or path.startswith("/"):
            return self.base + path
        if not path.startswith(self.base + "/"):
            raise WireRefused(0, "a link", "it leads outside of the provider's API")
        return path


async def exchange(
    session: aiohttp.ClientSession, method: str, url: str, headers: Mapping[str, str], body: bytes | None
) -> tuple[int, Any, str]:
    """One HTTP exchange: status, decoded JSON (None where it is none), and the `link` header."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    sent = {"User-Agent": "webhook-gateway", "Accept": "application/json", **headers}
    try:
        async with session.request(
            method, url, data=body, headers=sent, allow_redirects=False, timeout=timeout
        ) as response:
            content = await response.content.read(ANSWER_BYTES)
            while len(content) < ANSWER_BYTES and (more := await response.content.read(ANSWER_BYTES - len(content))):
                content += more
            status, link = response.status, response.headers.get("link", "")
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise Unavailable("provider-unreachable", 30) from None
    try:
        return status, json.loads(content) if content else None, link
    except (ValueError, RecursionError):
        return status, None, link


def pages(what: str) -> Iterator[int]:
    """Number the pages of a list; a list without end is a refusal."""
    yield from range(1, PAGES + 1)
    raise WireRefused(200, what, f"it has more than {PAGES} pages")


def bearer(token: str) -> dict[str, str]:
    """https://www.rfc-editor.org/rfc/rfc6750#section-2.1."""
    return {"Authorization": f"Bearer {token}"}


def basic(credential: str) -> dict[str, str]:
    """`user:password`: https://www.rfc-editor.org/rfc/rfc7617."""
    return {"Authorization": "Basic " + base64.b64encode(credential.encode()).decode()}


def _message(answer: Any) -> str:
    """Where the known APIs say why."""
    if not isinstance(answer, dict):
        return ""
    error = answer.get("error")
    candidates = (answer.get("message"), answer.get("error_description"), answer.get("errorMessages"))
    inner = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error,)
    return next((str(one) for one in (*candidates, *inner) if one), "")


def _plain(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MESSAGE_CHARS]
