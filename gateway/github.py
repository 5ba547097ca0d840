"""`GitHubApp`: who we are at GitHub, and the few calls that we make there.

The rule of this module: every answer of GitHub, a missing one included, becomes an `Answer`. Nothing of aiohttp, PyJWT or
cryptography leaves it, and neither the private key, nor a JWT, nor a token stands in an error, a log line or a repr.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.errors import ConfigError, Problem, Unavailable
from gateway.metrics import Rate

# https://docs.github.com/en/rest/about-the-rest-api/api-versions
API_VERSION = "2022-11-28"
TOTAL_TIMEOUT_S = 10.0
ANSWER_BYTES = 65_536
CONTENT_BYTES = 1_048_576
MIN_KEY_BITS = 2048

# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
# `iat` 60 s in the past against clock drift; `exp` at most 10 minutes ahead.
JWT_BACKDATE_S = 60
JWT_LIFE_S = 480
JWT_REUSE_S = 240
TOKEN_MARGIN_S = 300.0

# https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#exceeding-the-rate-limit
# Without a stated time: at least one minute, then exponentially longer.
PARK_S = 60.0
PARK_MAX_S = 3_600.0
STATED_PARK_MAX_S = 86_400.0

_REPOSITORY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_.-]{1,100}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_DEAD = {403: "forbidden", 404: "not-found", 410: "gone", 413: "too-large", 422: "unprocessable"}

Kind = Literal["done", "retry", "park", "dead", "moved"]
Permission = Literal["contents:write", "contents:read", "metadata:read"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to. `status` is None where no answer arrived; `until` (Unix seconds) is set for `park` alone.

    `done` 204; `retry` may have been taken, or not; `park` the whole installation waits until `until`; `dead` will never
    work as it is; `moved` a redirect, which is never followed.
    """

    kind: Kind
    status: int | None
    reason: str
    until: float | None = None

    @property
    def outage(self) -> bool:
        """True where GitHub itself is in trouble or out of reach: what a circuit counts."""
        return self.kind == "retry" and (self.status is None or self.status >= 500)


class GitHubAway(Unavailable):
    """GitHub did not answer the question now (`retry`, `park`); `answer` says why."""

    def __init__(self, answer: Answer, retry_after_s: int = 5) -> None:
        super().__init__(answer.reason, retry_after_s)
        self.answer = answer


class GitHubRefusal(Exception):  # noqa: N818 (GitHub's answer, not a defect)
    """GitHub's answer is no (`dead`, `moved`); asking again changes nothing. `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer
        self.reason = answer.reason


@dataclass(frozen=True, slots=True)
class Repository:
    """What GitHub says of a repository: its lasting `id`, its name as GitHub spells it, its default branch."""

    id: int
    full_name: str
    default_branch: str


@dataclass(frozen=True, slots=True)
class About:
    """The App as GitHub knows it, and GitHub's own clock at that answer."""

    id: int
    slug: str
    date: float | None


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the App is installed, and what it was granted there."""

    id: int
    account: str
    permissions: Mapping[str, str]
    suspended: bool


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    expires_at: float


@dataclass(frozen=True, slots=True)
class _Reply:
    """One HTTP answer, its body cut at a limit (`whole` says whether all of it is here)."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes = field(repr=False)
    whole: bool


@dataclass(frozen=True, slots=True)
class _Scope:
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


def open_session(connections: int = 100) -> aiohttp.ClientSession:
    """Return the HTTP session that a `GitHubApp` wants: no cookies, bounded connections. The caller closes it."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(total=TOTAL_TIMEOUT_S),
    )


class GitHubApp:
    """One GitHub App at one API address.

    Safe for concurrent use in one event loop. It does not retry, but for one new token where GitHub refuses a cached one.
    """

    def __init__(
        self,
        api_url: str,
        app_id: int,
        private_key_pem: bytes,
        session: aiohttp.ClientSession,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.api_url = api_url.rstrip("/")
        self.app_id = app_id
        self._key = load_key(private_key_pem)
        self._session = session
        self._clock = clock
        self._jwt: tuple[float, str] | None = None
        self._tokens: dict[_Scope, _Token] = {}
        self._minting: dict[_Scope, asyncio.Task[_Token | Answer]] = {}
        self.rates: dict[int, Rate] = {}  # what each installation's last answer said of its budget
        self._limited: dict[int, int] = {}  # consecutive unstated rate limits of an installation

    def __repr__(self) -> str:
        return f"GitHubApp(api_url={self.api_url!r}, app_id={self.app_id})"

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def token(self, installation: int, repository: str) -> str:
        """Return an installation token for `contents: write` on `repository` alone; raises GitHubAway, GitHubRefusal."""
        got = await self._token(_Scope(installation, _checked(repository), "contents:write"))
        if isinstance(got, Answer):
            raise self._failure(got)
        return got.value

    async def dispatch(self, installation: int, repository: str, body: bytes) -> Answer:
        """Send one `repository_dispatch` and classify the answer; never raises for what GitHub or the network does.

        https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event (`contents: write`; 204).
        """
        scope = _Scope(installation, _checked(repository), "contents:write")
        reply = await self._as_installation(scope, "POST", f"/repos/{repository}/dispatches", body)
        answer = reply if isinstance(reply, Answer) else self._classify(installation, reply, done=204)
        if answer.reason == "repository-inaccessible":
            return await self._why_inaccessible(installation, repository, answer)
        return answer

    async def contents(self, installation: int, repository: str, path: str, ref: str) -> bytes:
        """Return the raw bytes of the file `path` at `ref`; raises GitHubRefusal (`not-found`, ...) or GitHubAway.

        https://docs.github.com/en/rest/repos/contents#get-repository-content (`contents: read`, raw media type).
        """
        scope = _Scope(installation, _checked(repository), "contents:read")
        where = f"/repos/{repository}/contents/{_checked_path(path)}?ref={quote(ref, safe='')}"
        reply = await self._as_installation(
            scope, "GET", where, accept="application/vnd.github.raw+json", limit=CONTENT_BYTES
        )
        got = self._expect(installation, reply, 200)
        if not got.whole:
            # A truncated file must never be taken for the file.
            raise GitHubRefusal(Answer("dead", got.status, "response-too-large"))
        return got.body

    async def repository(self, installation: int, repository: str) -> Repository:
        """Return what GitHub says of `repository`; raises GitHubRefusal (`not-found`, `repository-moved`) or GitHubAway.

        https://docs.github.com/en/rest/repos/repos#get-a-repository. Its token reads metadata alone and is not restricted
        by name, since a renamed repository could not be named in it.
        """
        scope = _Scope(installation, None, "metadata:read")
        reply = await self._as_installation(scope, "GET", f"/repos/{_checked(repository)}")
        got = self._expect(installation, reply, 200)
        match _json(got):
            case {"id": int(number), "full_name": str(name), "default_branch": str(branch)}:
                return Repository(number, name, branch)
        raise GitHubAway(Answer("retry", got.status, "answer-malformed"))

    async def app_bot_id(self) -> int:
        """Return the numeric user id of the App's bot account, which is not the App's id.

        https://docs.github.com/en/rest/apps/apps#get-the-authenticated-app, then
        https://docs.github.com/en/rest/users/users#get-a-user of `SLUG[bot]`.
        """
        app = self._expect(None, await self._as_app("GET", "/app"), 200)
        match _json(app):
            case {"slug": str(slug)}:
                where = f"/users/{quote(slug + '[bot]', safe='')}"
            case _:
                raise GitHubAway(Answer("retry", app.status, "answer-malformed"))
        # Asked as nobody: GitHub takes no App JWT there, and the bot's account is public.
        user = self._expect(None, await self._call("GET", where, None), 200)
        match _json(user):
            case {"id": int(number)}:
                return number
        raise GitHubAway(Answer("retry", user.status, "answer-malformed"))

    async def about(self) -> About:
        """Return what GitHub says of the App itself; raises GitHubRefusal or GitHubAway.

        https://docs.github.com/en/rest/apps/apps#get-the-authenticated-app
        """
        got = self._expect(None, await self._as_app("GET", "/app"), 200)
        match _json(got):
            case {"id": int(number), "slug": str(slug)}:
                date = _http_date(got.headers.get("date", ""))
                return About(number, slug, date)
        raise GitHubAway(Answer("retry", got.status, "answer-malformed"))

    async def installation(self, number: int) -> Installation:
        """Return an installation of the App, also a suspended one; raises GitHubRefusal (`not-found`) or GitHubAway.

        https://docs.github.com/en/rest/apps/apps#get-an-installation-for-the-authenticated-app
        """
        got = self._expect(None, await self._as_app("GET", f"/app/installations/{number}"), 200)
        match _json(got):
            case {"account": {"login": str(login)}, "permissions": dict(permissions), **rest}:
                granted = {str(name): str(level) for name, level in permissions.items()}
                return Installation(number, login, granted, rest.get("suspended_at") is not None)
        raise GitHubAway(Answer("retry", got.status, "answer-malformed"))

    # -- the App's own webhook ----------------------------------------------------------------------------------------

    async def hook_url(self) -> str | None:
        """Return where the App's webhook sends, None where it has none.

        https://docs.github.com/en/rest/apps/webhooks#get-a-webhook-configuration-for-an-app
        """
        try:
            reply = self._expect(None, await self._as_app("GET", "/app/hook/config"), 200)
        except GitHubRefusal:
            return None
        match _json(reply):
            case {"url": str(url)}:
                return url
        return None

    async def hook_deliveries(self, where: str | None = None) -> tuple[list[Any], str | None]:
        """Return one page of the App webhook's deliveries, newest first, and where the next page is.

        https://docs.github.com/en/rest/apps/webhooks#list-deliveries-for-an-app-webhook
        """
        path = "/app/hook/deliveries?per_page=100" if where is None else where
        reply = self._expect(None, await self._as_app("GET", path, limit=CONTENT_BYTES), 200)
        rows = _json(reply)
        if not isinstance(rows, list):
            raise GitHubAway(Answer("retry", reply.status, "answer-malformed"))
        following = next_link(reply.headers.get("link", ""))
        if following is not None and not following.startswith(self.api_url + "/"):
            following = None  # the App's proof goes to its own API alone
        return rows, following and following.removeprefix(self.api_url)

    async def redeliver(self, delivery: str) -> None:
        """Ask for another attempt; raises GitHubAway, GitHubRefusal.

        https://docs.github.com/en/rest/apps/webhooks#redeliver-a-delivery-for-an-app-webhook
        """
        self._expect(None, await self._as_app("POST", f"/app/hook/deliveries/{int(delivery)}/attempts"), 202)

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def _as_installation(
        self,
        scope: _Scope,
        method: str,
        where: str,
        body: bytes | None = None,
        *,
        accept: str = "application/vnd.github+json",
        limit: int = ANSWER_BYTES,
    ) -> _Reply | Answer:
        """Call with a cached token; where GitHub refuses it, once more with a new one."""
        for _ in range(2):
            token = await self._token(scope)
            if isinstance(token, Answer):
                return token
            reply = await self._call(method, where, f"Bearer {token.value}", body, accept=accept, limit=limit)
            if not isinstance(reply, Answer) and (rate := _rate(reply.headers)) is not None:
                self.rates[scope.installation] = rate
            if isinstance(reply, Answer) or reply.status != 401:
                return reply
            # Only the token that was refused: a concurrent call may have brought a new one already.
            if self._tokens.get(scope) is token:
                del self._tokens[scope]
        return Answer("retry", 401, "app-unauthorized")

    async def _as_app(
        self, method: str, where: str, body: bytes | None = None, *, limit: int = ANSWER_BYTES
    ) -> _Reply | Answer:
        reply = await self._call(method, where, f"Bearer {self._app_jwt()}", body, limit=limit)
        if not isinstance(reply, Answer) and reply.status == 401:
            self._jwt = None
            return Answer("retry", 401, "app-unauthorized")
        return reply

    def _app_jwt(self) -> str:
        now = self._clock()
        if self._jwt is None or not 0 <= now - self._jwt[0] < JWT_REUSE_S:
            claims = {"iat": int(now) - JWT_BACKDATE_S, "exp": int(now) + JWT_LIFE_S, "iss": str(self.app_id)}
            self._jwt = (now, jwt.encode(claims, self._key, algorithm="RS256"))
        return self._jwt[1]

    async def _token(self, scope: _Scope) -> _Token | Answer:
        """Return a token with five minutes left, from the cache or from the one request in flight for `scope`."""
        cached = self._tokens.get(scope)
        if cached is not None and cached.expires_at - self._clock() > TOKEN_MARGIN_S:
            return cached
        task = self._minting.get(scope)
        if task is None:
            task = asyncio.create_task(self._mint(scope))
            self._minting[scope] = task
            task.add_done_callback(lambda _: self._minting.pop(scope, None))
        # Shielded: one cancelled caller must not take the token from the others who wait for it.
        return await asyncio.shield(task)

    async def _mint(self, scope: _Scope) -> _Token | Answer:
        """Ask GitHub for a token; its failures are the `Answer` of the call that wanted it."""
        reply = await self._as_app("POST", f"/app/installations/{scope.installation}/access_tokens", scope.body())
        if isinstance(reply, Answer):
            return reply
        if reply.status != 201:
            return self._token_refused(scope.installation, reply)
        token = _read_token(reply)
        if token is None:
            return Answer("retry", reply.status, "token-malformed")
        now = self._clock()
        self._tokens = {key: kept for key, kept in self._tokens.items() if kept.expires_at > now}
        self._tokens[scope] = token
        return token

    def _token_refused(self, installation: int, reply: _Reply) -> Answer:
        """Classify as any answer, but say what the status means here: the installation or the repository is missing."""
        if 300 <= reply.status < 400:
            # The API's address is wrong, not the repository's: nothing to suspend.
            return Answer("retry", reply.status, "api-redirect")
        answer = self._classify(installation, reply, done=201)
        named = {404: "installation-gone", 422: "repository-inaccessible"}.get(reply.status)
        return answer if named is None else Answer("dead", reply.status, named)

    async def _why_inaccessible(self, installation: int, repository: str, answer: Answer) -> Answer:
        """Tell a renamed repository from one that the installation may not write: no token can be had for an old name."""
        try:
            await self.repository(installation, repository)
        except GitHubRefusal as error:
            return error.answer if error.answer.kind == "moved" else answer
        except GitHubAway as error:
            return error.answer
        return answer

    # -- one HTTP call -----------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        where: str,
        authorization: str | None,
        body: bytes | None = None,
        *,
        accept: str = "application/vnd.github+json",
        limit: int = ANSWER_BYTES,
    ) -> _Reply | Answer:
        """Make one call, redirects not followed (a POST answered 301 would become a GET answered 200).

        Returns instead of raising, so that no exception keeps the request's headers as its context.
        """
        headers = {"Accept": accept, "X-GitHub-Api-Version": API_VERSION, "User-Agent": "webhook-gateway"}
        if authorization is not None:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = URL(self.api_url + where, encoded=True)
        timeout = aiohttp.ClientTimeout(total=TOTAL_TIMEOUT_S)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                content, whole = await _read(response, limit)
                return _Reply(response.status, CIMultiDictProxy(CIMultiDict(response.headers)), content, whole)
        except TimeoutError:
            return Answer("retry", None, "timeout")
        except (aiohttp.ClientError, OSError):
            return Answer("retry", None, "connection")

    # -- what an answer means ----------------------------------------------------------------------------------------

    def _expect(self, installation: int | None, reply: _Reply | Answer, status: int) -> _Reply:
        if isinstance(reply, Answer):
            raise self._failure(reply)
        if reply.status == status:
            return reply
        raise self._failure(self._classify(installation, reply, done=status))

    def _failure(self, answer: Answer) -> GitHubAway | GitHubRefusal:
        if answer.kind in ("retry", "park"):
            wait_s = 5 if answer.until is None else max(1, round(answer.until - self._clock()))
            return GitHubAway(answer, wait_s)
        return GitHubRefusal(answer)

    def _classify(self, installation: int | None, reply: _Reply, done: int) -> Answer:
        """Return what `reply` means for the call that it answers; `done` is the one status that is success."""
        status = reply.status
        if status == done:
            if installation is not None:
                self._limited.pop(installation, None)
            return Answer("done", status, "done")
        if status == 429 or (status == 403 and _is_rate_limit(reply)):
            return Answer("park", status, "rate-limited", self._park_until(installation, reply))
        if 300 <= status < 400:
            return Answer("moved", status, "repository-moved")
        if 400 <= status < 500:
            # 401 never arrives here: the callers answer it with a new token.
            return Answer("dead", status, _DEAD.get(status, f"http-{status}"))
        return Answer("retry", status, "server-error" if status >= 500 else "unexpected-status")

    def _park_until(self, installation: int | None, reply: _Reply) -> float:
        now = self._clock()
        stated = _stated_wait_s(reply.headers, now)
        if stated is not None:
            return now + min(max(stated, 1.0), STATED_PARK_MAX_S)
        strikes = self._limited.get(installation or 0, 0)
        self._limited[installation or 0] = strikes + 1
        return now + float(min(PARK_S * 2 ** min(strikes, 10), PARK_MAX_S))


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


def _checked(repository: str) -> str:
    if _REPOSITORY.fullmatch(repository) is None or repository.split("/")[1] in (".", ".."):
        raise ValueError("a repository is written OWNER/NAME")
    return repository


def _checked_path(path: str) -> str:
    """Return `path` quoted; a dot segment would be folded into another address."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("a path in a repository has no empty and no dot segments")
    return quote(path, safe="/")


async def _read(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """Return at most `limit` bytes of the body, and whether that is all of it.

    A body that breaks off is no reason to forget the status that came before it: what is there is returned, not whole.
    """
    chunks = bytearray()
    try:
        while len(chunks) <= limit and (chunk := await response.content.read(limit + 1 - len(chunks))):
            chunks += chunk
    except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
        return bytes(chunks[:limit]), False
    return bytes(chunks[:limit]), len(chunks) <= limit


def _json(reply: _Reply) -> Any:
    """Return the decoded body, None where it is not JSON."""
    try:
        return orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None


def _read_token(reply: _Reply) -> _Token | None:
    match _json(reply):
        case {"token": str(value), "expires_at": str(text)} if _TOKEN.fullmatch(value):
            expires_at = _instant(text)
            return None if expires_at is None else _Token(value, expires_at)
    return None


def _instant(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_rate_limit(reply: _Reply) -> bool:
    """Tell a rate limit from a plain refusal, both of which GitHub answers with 403."""
    if "retry-after" in reply.headers or reply.headers.get("x-ratelimit-remaining") == "0":
        return True
    match _json(reply):
        case {"message": str(message)}:
            return "secondary rate limit" in message.lower() or "abuse detection" in message.lower()
    return False


def _stated_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that GitHub asks to wait: `retry-after`, else up to `x-ratelimit-reset` where nothing is left."""
    after = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", after):
        return float(after)
    if (date := _http_date(after)) is not None:
        return date - (_http_date(headers.get("date", "")) or now)
    reset = headers.get("x-ratelimit-reset", "").strip()
    if headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"[0-9]{1,12}", reset):
        # Against GitHub's own clock: ours may be wrong, and a reset in our past would be no wait at all.
        return float(reset) - (_http_date(headers.get("date", "")) or now)
    return None


def _rate(headers: Mapping[str, str]) -> Rate | None:
    """Read the budget that GitHub states beside every answer.

    https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#checking-the-status-of-your-rate-limit
    """
    texts = [headers.get(f"x-ratelimit-{name}", "") for name in ("remaining", "limit", "reset")]
    if not all(re.fullmatch(r"[0-9]{1,12}", text) for text in texts):
        return None
    remaining, limit, reset = map(int, texts)
    return Rate(remaining, limit, reset)


def next_link(header: str) -> str | None:
    """Return the link of the next page. https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api."""
    found = re.search(r'<([^<>]+)>;\s*rel="next"', header)
    return found[1] if found else None


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
