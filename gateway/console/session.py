"""Operators: who holds a token, the browser's session that follows from one, and the proof that a form is ours.

A session is a cookie signed with a key made of the operator's token: it holds in every process, also while the store is
away, and ends with the token. One that was logged out is remembered as ended until its time is over. A form carries a
value made of the same key and the session's nonce, which another site cannot know.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from gateway.console.guard import LOOPBACK, host_name
from gateway.errors import Unavailable
from gateway.keys import SecretValue
from gateway.overload import Network, client_address
from gateway.settings_checks import LEAST_TOKEN
from gateway.store import Store
from gateway.structs import Opaque

COOKIE = "gateway_session"
SESSION_S = 12 * 3600
FAILURES, FAILURES_S = 10, 60.0
ADDRESSES = 1_000


class Operator(Opaque):
    """Who acts: the position of the token, never the token. `csrf` is what this session's forms must carry."""

    name: str
    csrf: str
    ends: float = 0.0


class Guesses:
    """Wrong tokens by address: who sent too many within a minute is not looked at, whoever else is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def failed(self, address: str) -> None:
        """Note a wrong token."""
        self._failed.setdefault(address, deque(maxlen=FAILURES)).append(self._clock())
        self._failed.move_to_end(address)
        if len(self._failed) > ADDRESSES:
            self._failed.popitem(last=False)

    def locked(self, address: str) -> bool:
        """Whether no token of this address is looked at, right or wrong."""
        times = self._failed.get(address)
        return times is not None and len(times) == FAILURES and 0 <= self._clock() - times[0] < FAILURES_S


class Operators:
    """The holders of the configured tokens."""

    def __init__(
        self,
        references: Callable[[], tuple[str, ...]],
        clock: Callable[[], float] = time.time,
        trusted: Callable[[], Collection[Network]] = tuple,
    ) -> None:
        self._references, self._clock, self._trusted = references, clock, trusted
        self._held: dict[str, SecretValue] = {}
        self._guesses = Guesses(clock)
        self._ended: dict[str, float] = {}  # sessions that were logged out here, by their form's value

    @property
    def configured(self) -> bool:
        """Whether anybody can be an operator at all."""
        return bool(self._references())

    def _tokens(self) -> list[bytes]:
        references = self._references()
        self._held = {one: self._held.get(one) or SecretValue(one) for one in references}
        for value in self._held.values():
            value.refresh()
        return [self._held[one].value for one in references]

    def holder(self, token: str) -> int | None:
        """The position of the token's holder. Every token is compared, in constant time.

        A file that was changed to something too short makes nobody an operator.
        """
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for position, value in enumerate(self._tokens()):
            if hmac.compare_digest(given, hashlib.sha256(value).digest()) and len(value) >= LEAST_TOKEN:
                found = position
        return found

    def _address(self, request: Request) -> str:
        return client_address(request.scope, self._trusted())

    def locked(self, request: Request) -> bool:
        """Whether too many wrong tokens came from this address within a minute."""
        return self._guesses.locked(self._address(request))

    def login(self, token: str, address: str = "") -> str | None:
        """Return a new session's cookie value for the right token; None counts as a failure."""
        position = self.holder(token)
        if position is None:
            self._guesses.failed(address)
            return None
        head = f"{int(self._clock()) + SESSION_S}.{position}.{secrets.token_urlsafe(18)}"
        return f"{head}.{self._mac(position, 'session', head)}"

    def login_of(self, request: Request, token: str) -> str | None:
        """Log a browser in."""
        return self.login(token, self._address(request))

    def _mac(self, position: int, purpose: str, text: str) -> str:
        key = hashlib.sha256(b"gateway session key\0" + self._tokens()[position]).digest()
        return hmac.new(key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()

    def of_cookie(self, cookie: str) -> Operator | None:
        """Whose session this is, None where it is over, altered, or of a token that is no more."""
        head, _, mac = cookie.rpartition(".")
        end, _, rest = head.partition(".")
        place, _, _ = rest.partition(".")
        if not (end.isascii() and end.isdecimal() and place.isascii() and place.isdecimal() and len(place) < 4):
            return None
        position = int(place)
        if position >= len(self._references()) or int(end[:12]) <= self._clock():
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(position, "session", head).encode()):
            return None
        return Operator(f"operator/{position}", self._mac(position, "form", head), int(end))

    async def of_session(self, request: Request, store: Store) -> Operator | None:
        """Whose browser this is."""
        cookie = request.cookies.get(COOKIE)
        operator = self.of_cookie(cookie) if cookie else None
        if operator is None or operator.csrf in self._ended:
            return None
        with suppress(Unavailable):  # then only sessions that ended in this process are known to have
            if await store.recall(_ended(operator)) is not None:
                return None
        return operator

    async def end(self, operator: Operator, store: Store) -> None:
        """End a session in all processes, so that a copy of its cookie is worth nothing. Raises Unavailable."""
        now = self._clock()
        self._ended = {csrf: ends for csrf, ends in self._ended.items() if ends > now} | {operator.csrf: operator.ends}
        await store.remember(_ended(operator), "1", max(1, int(operator.ends - now)))

    def of_bearer(self, request: Request) -> Operator | None:
        """Whose `Authorization: Bearer` this is; wrong ones are counted as wrong logins are."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token or self.locked(request):
            return None
        position = self.holder(token.strip())
        if position is None:
            self._guesses.failed(self._address(request))
            return None
        return Operator(f"operator/{position}", "")


def _ended(operator: Operator) -> str:
    return f"session-ended:{operator.csrf}"


def keep(response: Response, request: Request, cookie: str) -> None:
    """Give the browser its session. Only a loopback name may have it without encryption."""
    secure = host_name(request.headers) not in LOOPBACK
    response.set_cookie(COOKIE, cookie, SESSION_S, path="/", secure=secure, httponly=True, samesite="strict")


def same_origin(request: Request) -> bool:
    """Whether a browser says that its own page sent this; what is no browser says nothing."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").strip().lower()


def good_form(operator: Operator, sent: str) -> bool:
    """Whether a form carries its session's own value."""
    return bool(operator.csrf) and hmac.compare_digest(sent.encode(), operator.csrf.encode())
