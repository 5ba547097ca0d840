"""`GitHubApp`: the few calls that we make at GitHub, each with the credential that it wants.

The rule of this module: every answer of GitHub, a missing one included, becomes an `Answer`. Nothing of aiohttp, PyJWT or
cryptography leaves it, and neither the private key, nor a JWT, nor a token stands in an error, a log line or a repr.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.answers import (
    STATED_PARK_MAX_S,
    About,
    Answer,
    GitHubAway,
    GitHubRefusal,
    Installation,
    Rate,
    Reply,
    Repository,
    decoded,
    failure,
    http_date,
    is_rate_limit,
    meaning,
    next_link,
    rate_of,
    stated_wait_s,
    unstated_wait_s,
)
from gateway.credentials import TOKEN_MARGIN_S, TOKEN_YOUNG_S, Proof, Scope, Token, read_token

# https://docs.github.com/en/rest/about-the-rest-api/api-versions
API_VERSION = "2022-11-28"
TOTAL_TIMEOUT_S = 10.0
ANSWER_BYTES = 65_536
CONTENT_BYTES = 1_048_576

_REPOSITORY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_.-]{1,100}")


def open_session(connections: int = 100) -> aiohttp.ClientSession:
    """Return the HTTP session that a `GitHubApp` wants: no cookies, bounded connections. The caller closes it."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(total=TOTAL_TIMEOUT_S),
    )


class GitHubApp:
    """One GitHub App at one API address.

    Safe for concurrent use in one event loop. It does not retry, but for one new token where GitHub refuses a cached one
    or knows nothing there.
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
        self._proof = Proof(app_id, private_key_pem)
        self._session = session
        self._clock = clock
        self._tokens: dict[Scope, Token] = {}
        self._minting: dict[Scope, asyncio.Task[Token | Answer]] = {}
        self.rates: dict[int, Rate] = {}  # what each installation's last answer said of its budget
        self._limited: dict[int, int] = {}  # consecutive unstated rate limits of an installation

    def __repr__(self) -> str:
        return f"GitHubApp(api_url={self.api_url!r}, app_id={self.app_id})"

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def token(self, installation: int, repository: str) -> str:
        """Return an installation token for `contents: write` on `repository` alone; raises GitHubAway, GitHubRefusal."""
        got = await self._token(Scope(installation, _checked(repository), "contents:write"))
        if isinstance(got, Answer):
            raise failure(got, self._clock())
        return got.value

    async def dispatch(self, installation: int, repository: str, body: bytes) -> Answer:
        """Send one `repository_dispatch` and classify the answer; never raises for what GitHub or the network does.

        https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event (`contents: write`; 204).
        """
        scope = Scope(installation, _checked(repository), "contents:write")
        reply = await self._as_installation(scope, "POST", f"/repos/{repository}/dispatches", body)
        answer = reply if isinstance(reply, Answer) else self._classify(installation, reply, done=204)
        if answer.reason == "repository-inaccessible":
            return await self._why_inaccessible(installation, repository, answer)
        return answer

    async def contents(self, installation: int, repository: str, path: str, ref: str) -> bytes:
        """Return the raw bytes of the file `path` at `ref`; raises GitHubRefusal (`not-found`, ...) or GitHubAway.

        https://docs.github.com/en/rest/repos/contents#get-repository-content (`contents: read`, raw media type).
        """
        scope = Scope(installation, _checked(repository), "contents:read")
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
        scope = Scope(installation, None, "metadata:read")
        reply = await self._as_installation(scope, "GET", f"/repos/{_checked(repository)}")
        got = self._expect(installation, reply, 200)
        match decoded(got):
            case {"id": int(number), "full_name": str(name), "default_branch": str(branch)}:
                return Repository(number, name, branch)
        raise GitHubAway(Answer("retry", got.status, "answer-malformed"))

    async def app_bot_id(self) -> int:
        """Return the numeric user id of the App's bot account, which is not the App's id.

        https://docs.github.com/en/rest/apps/apps#get-the-authenticated-app, then
        https://docs.github.com/en/rest/users/users#get-a-user of `SLUG[bot]`.
        """
        app = self._expect(None, await self._as_app("GET", "/app"), 200)
        match decoded(app):
            case {"slug": str(slug)}:
                where = f"/users/{quote(slug + '[bot]', safe='')}"
            case _:
                raise GitHubAway(Answer("retry", app.status, "answer-malformed"))
        # Asked as nobody: GitHub takes no App JWT there, and the bot's account is public.
        user = self._expect(None, await self._call("GET", where, None), 200)
        match decoded(user):
            case {"id": int(number)}:
                return number
        raise GitHubAway(Answer("retry", user.status, "answer-malformed"))

    async def about(self) -> About:
        """Return what GitHub says of the App itself; raises GitHubRefusal or GitHubAway.

        https://docs.github.com/en/rest/apps/apps#get-the-authenticated-app
        """
        got = self._expect(None, await self._as_app("GET", "/app"), 200)
        match decoded(got):
            case {"id": int(number), "slug": str(slug)}:
                date = http_date(got.headers.get("date", ""))
                return About(number, slug, date)
        raise GitHubAway(Answer("retry", got.status, "answer-malformed"))

    async def installation(self, number: int) -> Installation:
        """Return an installation of the App, also a suspended one; raises GitHubRefusal (`not-found`) or GitHubAway.

        https://docs.github.com/en/rest/apps/apps#get-an-installation-for-the-authenticated-app
        """
        got = self._expect(None, await self._as_app("GET", f"/app/installations/{number}"), 200)
        match decoded(got):
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
        match decoded(reply):
            case {"url": str(url)}:
                return url
        return None

    async def hook_deliveries(self, where: str | None = None) -> tuple[list[Any], str | None]:
        """Return one page of the App webhook's deliveries, newest first, and where the next page is.

        https://docs.github.com/en/rest/apps/webhooks#list-deliveries-for-an-app-webhook
        """
        path = "/app/hook/deliveries?per_page=100" if where is None else where
        reply = self._expect(None, await self._as_app("GET", path, limit=CONTENT_BYTES), 200)
        rows = decoded(reply)
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
        scope: Scope,
        method: str,
        where: str,
        body: bytes | None = None,
        *,
        accept: str = "application/vnd.github+json",
        limit: int = ANSWER_BYTES,
    ) -> Reply | Answer:
        """Call with a cached token; where GitHub refuses it, or knows nothing there, once more with a new one.

        A token reaches the repositories that the installation had when it was made, so a 404 may mean one added since. One
        that is gone costs a token in `TOKEN_YOUNG_S` at most, however often it is asked for.
        """
        for again in (False, True):
            token = await self._token(scope)
            if isinstance(token, Answer):
                return token
            reply = await self._call(method, where, f"Bearer {token.value}", body, accept=accept, limit=limit)
            if not isinstance(reply, Answer) and (rate := rate_of(reply.headers)) is not None:
                self.rates[scope.installation] = rate
            if isinstance(reply, Answer) or reply.status not in (401, 404):
                return reply
            if reply.status == 404 and (again or 0 <= self._clock() - token.asked_at < TOKEN_YOUNG_S):
                return reply
            # Only the token that was refused: a concurrent call may have brought a new one already.
            if self._tokens.get(scope) is token:
                del self._tokens[scope]
        return Answer("retry", 401, "app-unauthorized")

    async def _as_app(
        self, method: str, where: str, body: bytes | None = None, *, limit: int = ANSWER_BYTES
    ) -> Reply | Answer:
        reply = await self._call(method, where, f"Bearer {self._proof.jwt(self._clock())}", body, limit=limit)
        if not isinstance(reply, Answer) and reply.status == 401:
            self._proof.refused()
            return Answer("retry", 401, "app-unauthorized")
        return reply

    async def _token(self, scope: Scope) -> Token | Answer:
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

    async def _mint(self, scope: Scope) -> Token | Answer:
        """Ask GitHub for a token; its failures are the `Answer` of the call that wanted it."""
        asked_at = self._clock()
        reply = await self._as_app("POST", f"/app/installations/{scope.installation}/access_tokens", scope.body())
        if isinstance(reply, Answer):
            return reply
        if reply.status != 201:
            return self._token_refused(scope.installation, reply)
        token = read_token(reply, asked_at)
        if token is None:
            return Answer("retry", reply.status, "token-malformed")
        now = self._clock()
        self._tokens = {key: kept for key, kept in self._tokens.items() if kept.expires_at > now}
        self._tokens[scope] = token
        return token

    def _token_refused(self, installation: int, reply: Reply) -> Answer:
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
    ) -> Reply | Answer:
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
                return Reply(response.status, CIMultiDictProxy(CIMultiDict(response.headers)), content, whole)
        except TimeoutError:
            return Answer("retry", None, "timeout")
        except (aiohttp.ClientError, OSError):
            return Answer("retry", None, "connection")

    # -- what an answer means ----------------------------------------------------------------------------------------

    def _expect(self, installation: int | None, reply: Reply | Answer, status: int) -> Reply:
        if isinstance(reply, Answer):
            raise failure(reply, self._clock())
        if reply.status == status:
            return reply
        raise failure(self._classify(installation, reply, done=status), self._clock())

    def _classify(self, installation: int | None, reply: Reply, done: int) -> Answer:
        """Return what `reply` means for the call that it answers; `done` is the one status that is success."""
        if is_rate_limit(reply):
            return Answer("park", reply.status, "rate-limited", self._park_until(installation, reply))
        if reply.status == done and installation is not None:
            self._limited.pop(installation, None)
        return meaning(reply.status, done)

    def _park_until(self, installation: int | None, reply: Reply) -> float:
        now = self._clock()
        stated = stated_wait_s(reply.headers, now)
        if stated is not None:
            return now + min(max(stated, 1.0), STATED_PARK_MAX_S)
        strikes = self._limited.get(installation or 0, 0)
        self._limited[installation or 0] = strikes + 1
        return now + unstated_wait_s(strikes)


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
