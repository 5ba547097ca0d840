"""A double of GitHub's REST API, as far as a GitHub App that dispatches to repositories uses it.

It holds the rules that GitHub documents (App JWTs, restricted installation tokens, permissions, limits of a dispatch) and
keeps what it was sent. Faults are scripted. Everything under `/_double/` is ours, unauthenticated, and the reason why it
belongs on loopback alone:

- `POST /_double/script` `{"repo": "o/r", "on": "dispatch", "answers": [...]}`: consumed in order, one a call. `on` is
  `dispatch` (default), `token`, `contents` or `repository`; the repo of an unrestricted token is `""`. An answer has `status`,
  `headers`, `body`; `delay_s` waits first; `cut` closes the connection without an answer; `taken` (for `dispatch`) takes the
  dispatch all the same, so that its outcome is unknown. One without `status` and `cut` goes on as if not scripted.
- `GET /_double/dispatches` what was taken (`body` decoded, `raw` as text); `GET /_double/state` counts; `DELETE /_double/state` forgets both, scripts and tokens.
- `POST /_double/repository` `{"repo", "id"?, "default_branch"?, "moved_to"?, "gone"?}`
- `POST /_double/contents` `{"repo", "path", "ref"?, "text"}` (without `ref`: at every ref; null text: removed)
- `POST /_double/installation` `{"id", "repositories"?, "permissions"?, "suspended"?, "gone"?}`
"""

import argparse
import asyncio
import io
import signal
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, TypeVar

import jwt
import orjson
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.doubles.deliveries import PERIOD_S, Log

# https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event
MAX_EVENT_TYPE = 100
MAX_PAYLOAD_KEYS = 10
MAX_PAYLOAD_CHARACTERS = 65_535
# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-an-installation-access-token-for-a-github-app
TOKEN_LIFE_S = 3_600.0
# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
MAX_JWT_AHEAD_S = 600
LEVELS = {"read": 1, "write": 2}
DEFAULT_PERMISSIONS = {"contents": "write", "metadata": "read"}
DEFAULT_CONTENTS = {"gateway-dispatch": True}

M = TypeVar("M", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedAnswer(_Model):
    """One scripted answer; see the module."""

    status: int | None = Field(default=None, ge=200, le=599)
    headers: dict[str, str] = {}
    body: Any = None
    delay_s: float = Field(default=0.0, ge=0)
    cut: bool = False
    taken: bool = False


class Script(_Model):
    """Answers for the next calls of one kind about one repository."""

    repo: str
    on: str = Field(default="dispatch", pattern="^(dispatch|token|contents|repository)$")
    answers: list[ScriptedAnswer]


class RepositoryChange(_Model):
    """A repository that appears, changes, moves or goes."""

    repo: str
    id: int | None = None
    default_branch: str | None = None
    moved_to: str | None = None
    gone: bool | None = None


class ContentsChange(_Model):
    """A file of a repository."""

    repo: str
    path: str
    ref: str | None = None
    text: str | None


class InstallationChange(_Model):
    """An installation of the App."""

    id: int
    repositories: list[str] | None = None
    permissions: dict[str, str] | None = None
    suspended: bool | None = None
    gone: bool | None = None


@dataclass(slots=True)
class Repo:
    """A repository as the double knows it."""

    id: int
    full_name: str
    default_branch: str = "main"
    moved_to: str | None = None
    contents: dict[tuple[str, str | None], bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Installation:
    """An installation: the repositories that it may reach, and what it may do there."""

    repositories: set[str]
    permissions: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_PERMISSIONS))
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """An installation token: `repositories` holds lower-case full names."""

    installation: int
    repositories: frozenset[str]
    permissions: Mapping[str, str]
    expires_at: float


async def _taken(_delivery: str) -> int:
    """Answer a redelivery where no test says otherwise."""
    return 200


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


class GitHubDouble:
    """The double's state and its handlers; `app()` is the web application."""

    def __init__(
        self,
        *,
        app_id: int,
        public_key_pem: bytes,
        installations: Mapping[int, Sequence[str]],
        slug: str = "gateway-double",
        bot_id: int = 200_000_001,
        token_life_s: float = TOKEN_LIFE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        key = load_pem_public_key(public_key_pem)
        if not isinstance(key, RSAPublicKey):
            raise TypeError("the App's public key is an RSA key")
        self.app_id, self.slug, self.bot_id = app_id, slug, bot_id
        self.token_life_s = token_life_s
        self.dispatches: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.hook_url: str | None = None
        self.log = Log(_taken, clock)
        self._key = key
        self._clock = clock
        self._tokens: dict[str, Token] = {}
        self._scripts: dict[tuple[str, str], deque[ScriptedAnswer]] = {}
        self._repos: dict[str, Repo] = {}
        self._installations: dict[int, Installation] = {}
        for number, names in installations.items():
            for name in names:
                self.add_repository(name)
            self._installations[number] = Installation({name.lower() for name in names})

    def app(self) -> web.Application:
        """Return the web application, GitHub's routes and the double's own."""
        app = web.Application(middlewares=[self._middleware], client_max_size=4 * 1024 * 1024)
        app.add_routes(
            [
                web.post("/app/installations/{id:\\d+}/access_tokens", self._access_tokens),
                web.get("/app", self._app),
                web.get("/app/hook/config", self._hook_config),
                web.get("/app/hook/deliveries", self._hook_deliveries),
                web.post("/app/hook/deliveries/{id:\\d+}/attempts", self._hook_attempts),
                web.get("/app/installations/{id:\\d+}", self._installation),
                web.get("/users/{login}", self._user),
                web.post("/repos/{owner}/{name}/dispatches", self._dispatches),
                web.get("/repos/{owner}/{name}", self._repository),
                web.get("/repos/{owner}/{name}/contents/{path:.+}", self._contents),
                web.get("/_double/dispatches", self._double_dispatches),
                web.get("/_double/state", self._double_state),
                web.delete("/_double/state", self._double_reset),
                web.post("/_double/script", self._double_script),
                web.post("/_double/repository", self._double_repository),
                web.post("/_double/contents", self._double_contents),
                web.post("/_double/installation", self._double_installation),
            ]
        )
        return app

    def add_repository(self, name: str, number: int | None = None) -> Repo:
        """Return the repository `name`, made where it is unknown, with a stable id of its own."""
        repo = self._repos.get(name.lower())
        if repo is None:
            repo = Repo(zlib.crc32(name.lower().encode()) if number is None else number, name)
            repo.contents[(".github/workflows/aw.json", None)] = orjson.dumps(DEFAULT_CONTENTS)
            self._repos[name.lower()] = repo
        return repo

    def script(self, repo: str, *answers: Mapping[str, Any], on: str = "dispatch") -> None:
        """Add scripted answers, as `POST /_double/script` does."""
        self._add_script(
            Script.model_validate({"repo": repo, "on": on, "answers": [dict(answer) for answer in answers]})
        )

    def revoke_tokens(self) -> None:
        """Forget every token: the next call with one is answered 401."""
        self._tokens.clear()

    # -- GitHub's side -----------------------------------------------------------------------------------------------

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_double/"):
            return await handler(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            _check_user_agent(request)
            return await handler(request)
        except Refused as error:
            return web.json_response(error.body, status=error.status, headers=error.headers)
        finally:
            self.in_flight -= 1

    async def _access_tokens(self, request: web.Request) -> web.StreamResponse:
        """Issue a token. https://docs.github.com/en/rest/apps/apps#create-an-installation-access-token-for-an-app."""
        self.calls["token"] += 1
        self._check_jwt(request)
        number = int(request.match_info["id"])
        asked = _object(await request.read(), empty={})
        names = _names(asked.get("repositories"))
        installation = self._installations.get(number)
        scripted_for = self._named_in(installation, names)
        if (answer := await self._scripted("token", scripted_for)) is not None:
            return self._play(request, answer)
        if installation is None:
            raise Refused(404, "Not Found")
        if installation.suspended:
            raise Refused(403, "This installation has been suspended")
        token = self._grant(number, installation, names, asked)
        value = f"ghs_{token_urlsafe(27)}"
        self._tokens[value] = token
        expires = datetime.fromtimestamp(token.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        selection = "all" if names is None else "selected"
        body = {
            "token": value,
            "expires_at": expires,
            "permissions": token.permissions,
            "repository_selection": selection,
        }
        return web.json_response(body, status=201)

    def _grant(
        self, number: int, installation: Installation, names: list[str] | None, asked: Mapping[str, Any]
    ) -> Token:
        repositories = {name for name in installation.repositories if self._here(name) is not None}
        if names is not None:
            wanted = {name.lower() for name in names}
            repositories = {name for name in repositories if name.split("/")[1] in wanted}
            if len(repositories) < len(wanted):
                raise Refused(
                    422,
                    "There is at least one repository that does not exist or is not accessible to the parent installation.",
                )
        permissions = asked.get("permissions", installation.permissions)
        if not isinstance(permissions, dict) or any(
            LEVELS.get(level, 3) > LEVELS.get(installation.permissions.get(name, ""), 0)
            for name, level in permissions.items()
        ):
            raise Refused(422, "The permissions requested are not granted to this installation.")
        # GitHub adds `metadata: read` to every token.
        permissions = {**permissions, "metadata": "read"}
        return Token(number, frozenset(repositories), permissions, self._clock() + self.token_life_s)

    async def _dispatches(self, request: web.Request) -> web.StreamResponse:
        self.calls["dispatch"] += 1
        name = _repo_name(request)
        body = await request.read()
        answer = await self._scripted("dispatch", name)
        if answer is not None and not answer.taken:
            return self._play(request, answer)
        token = self._check_token(request, name, "contents", "write")
        document = _dispatch_document(body)
        self.dispatches.append(
            {
                "repo": self._repos[name.lower()].full_name,
                "installation": token.installation,
                "received_at": self._clock(),
                "event_type": document["event_type"],
                "client_payload": document.get("client_payload", {}),
                "body": document,
                "raw": body.decode("utf-8"),
            }
        )
        return web.Response(status=204) if answer is None else self._play(request, answer)

    async def _repository(self, request: web.Request) -> web.StreamResponse:
        self.calls["repository"] += 1
        name = _repo_name(request)
        if (answer := await self._scripted("repository", name)) is not None:
            return self._play(request, answer)
        self._check_token(request, name, "metadata", "read")
        repo = self._repos[name.lower()]
        owner, short = repo.full_name.split("/")
        body = {
            "id": repo.id,
            "name": short,
            "full_name": repo.full_name,
            "owner": {"login": owner},
            "default_branch": repo.default_branch,
        }
        return web.json_response(body)

    async def _contents(self, request: web.Request) -> web.StreamResponse:
        """Answer a file in the raw media type alone. https://docs.github.com/en/rest/repos/contents#get-repository-content."""
        self.calls["contents"] += 1
        name = _repo_name(request)
        if (answer := await self._scripted("contents", name)) is not None:
            return self._play(request, answer)
        self._check_token(request, name, "contents", "read")
        repo = self._repos[name.lower()]
        path = request.match_info["path"]
        held = repo.contents.get((path, request.query.get("ref", repo.default_branch)), repo.contents.get((path, None)))
        if held is None:
            raise Refused(404, "Not Found")
        if "raw" not in request.headers.get("Accept", ""):
            raise Refused(415, "This double answers contents in the raw media type alone")
        return web.Response(body=io.BytesIO(held), content_type="application/vnd.github.raw+json")

    async def _hook_config(self, request: web.Request) -> web.StreamResponse:
        """https://docs.github.com/en/rest/apps/webhooks#get-a-webhook-configuration-for-an-app."""
        self._check_jwt(request)
        return web.json_response(
            {"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": self.hook_url}
        )

    async def _hook_deliveries(self, request: web.Request) -> web.StreamResponse:
        self._check_jwt(request)
        return self.log.github(request)

    async def _hook_attempts(self, request: web.Request) -> web.StreamResponse:
        self._check_jwt(request)
        if not await self.log.again(request.match_info["id"], PERIOD_S):
            raise Refused(404, "Not Found")
        return web.json_response({}, status=202)

    async def _app(self, request: web.Request) -> web.StreamResponse:
        self.calls["app"] += 1
        self._check_jwt(request)
        return web.json_response({"id": self.app_id, "slug": self.slug, "name": self.slug})

    async def _installation(self, request: web.Request) -> web.StreamResponse:
        """https://docs.github.com/en/rest/apps/apps#get-an-installation-for-the-authenticated-app."""
        self.calls["installation"] += 1
        self._check_jwt(request)
        number = int(request.match_info["id"])
        installation = self._installations.get(number)
        if installation is None:
            raise Refused(404, "Not Found")
        owner = min(installation.repositories, default="nobody/x").partition("/")[0]
        suspended = "2026-01-01T00:00:00Z" if installation.suspended else None
        body = {
            "id": number,
            "app_id": self.app_id,
            "account": {"login": owner},
            "permissions": installation.permissions,
            "suspended_at": suspended,
        }
        return web.json_response(body)

    async def _user(self, request: web.Request) -> web.StreamResponse:
        self.calls["user"] += 1
        login = f"{self.slug}[bot]"
        if request.match_info["login"].lower() != login.lower():
            raise Refused(404, "Not Found")
        return web.json_response({"id": self.bot_id, "login": login, "type": "Bot"})

    # -- proofs ------------------------------------------------------------------------------------------------------

    def _check_jwt(self, request: web.Request) -> None:
        """Refuse an App JWT outside of GitHub's documented limits, with 401."""
        try:
            claims = jwt.decode(
                _bearer(request),
                self._key,
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
        now, iat, exp = self._clock(), claims["iat"], claims["exp"]
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
        if str(claims["iss"]) != str(self.app_id):
            raise Refused(401, "Integration not found")

    def _check_token(self, request: web.Request, name: str, permission: str, level: str) -> Token:
        """Return the token of the call, which may `level` the `permission` of the repository `name`."""
        token = self._tokens.get(_bearer(request))
        if token is None or token.expires_at <= self._clock():
            raise Refused(401, "Bad credentials")
        repo = self._repos.get(name.lower())
        if repo is not None and repo.moved_to is not None:
            moved = f"{request.url.origin()}/repositories/{repo.id}"
            raise Refused(301, "Moved Permanently", {"Location": moved}, url=moved)
        if repo is None or name.lower() not in token.repositories:
            # GitHub does not tell a repository that does not exist from one that the token may not see.
            raise Refused(404, "Not Found")
        if LEVELS.get(token.permissions.get(permission, ""), 0) < LEVELS[level]:
            raise Refused(403, "Resource not accessible by integration")
        return token

    def _here(self, name: str) -> Repo | None:
        repo = self._repos.get(name)
        return None if repo is None or repo.moved_to is not None else repo

    # -- scripts -----------------------------------------------------------------------------------------------------

    def _named_in(self, installation: Installation | None, names: list[str] | None) -> str:
        """Return the full name of the one repository that a token is asked for, "" where there is none."""
        if installation is None or names is None or len(names) != 1:
            return ""
        found = (name for name in installation.repositories if name.split("/")[1] == names[0].lower())
        return next(found, "")

    def _add_script(self, script: Script) -> None:
        self._scripts.setdefault((script.on, script.repo.lower()), deque()).extend(script.answers)

    async def _scripted(self, on: str, repo: str) -> ScriptedAnswer | None:
        """Return the next scripted answer, after its delay; None where the call goes on as usual."""
        waiting = self._scripts.get((on, repo.lower()))
        if not waiting:
            return None
        answer = waiting.popleft()
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        return answer if answer.cut or answer.status is not None else None

    def _play(self, request: web.Request, answer: ScriptedAnswer) -> web.StreamResponse:
        if answer.cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        body = b"" if answer.body is None else orjson.dumps(answer.body)
        headers = {"Content-Type": "application/json", **answer.headers}
        return web.Response(status=answer.status or 500, body=body, headers=headers)

    # -- the double's own side ---------------------------------------------------------------------------------------

    async def _double_dispatches(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"dispatches": self.dispatches})

    async def _double_state(self, _: web.Request) -> web.StreamResponse:
        scripts = [{"on": on, "repo": repo, "left": len(left)} for (on, repo), left in self._scripts.items() if left]
        state = {
            "calls": dict(self.calls),
            "dispatches": len(self.dispatches),
            "tokens": len(self._tokens),
            "scripts": scripts,
            "most_in_flight": self.most_in_flight,
            "repositories": {repo.full_name: repo.id for repo in self._repos.values()},
        }
        return web.json_response(state)

    async def _double_reset(self, _: web.Request) -> web.StreamResponse:
        self.dispatches.clear()
        self.calls.clear()
        self._scripts.clear()
        self._tokens.clear()
        self.most_in_flight = self.in_flight
        return web.Response(status=204)

    async def _double_script(self, request: web.Request) -> web.StreamResponse:
        self._add_script(_parsed(Script, await request.read()))
        return web.Response(status=204)

    async def _double_repository(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(RepositoryChange, await request.read())
        if change.gone:
            self._repos.pop(change.repo.lower(), None)
            return web.Response(status=204)
        repo = self.add_repository(change.repo, change.id)
        repo.id = repo.id if change.id is None else change.id
        repo.default_branch = change.default_branch or repo.default_branch
        if change.moved_to is not None:
            repo.moved_to = change.moved_to
            self.add_repository(change.moved_to, repo.id)
            for installation in self._installations.values():
                if change.repo.lower() in installation.repositories:
                    installation.repositories.add(change.moved_to.lower())
        return web.Response(status=204)

    async def _double_contents(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(ContentsChange, await request.read())
        contents = self.add_repository(change.repo).contents
        if change.text is None:
            contents.pop((change.path, change.ref), None)
        else:
            contents[(change.path, change.ref)] = change.text.encode()
        return web.Response(status=204)

    async def _double_installation(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(InstallationChange, await request.read())
        if change.gone:
            self._installations.pop(change.id, None)
            return web.Response(status=204)
        installation = self._installations.setdefault(change.id, Installation(set()))
        if change.repositories is not None:
            for name in change.repositories:
                self.add_repository(name)
            installation.repositories = {name.lower() for name in change.repositories}
        if change.permissions is not None:
            installation.permissions = change.permissions
        if change.suspended is not None:
            installation.suspended = change.suspended
        return web.Response(status=204)


@dataclass(frozen=True, slots=True)
class Running:
    """A double that listens: its address, and itself for a look inside."""

    address: str
    double: GitHubDouble
    runner: web.AppRunner

    async def stop(self) -> None:
        """Close its sockets."""
        await self.runner.cleanup()


async def start(
    *,
    app_id: int,
    public_key_pem: bytes,
    installations: Mapping[int, Sequence[str]],
    host: str = "127.0.0.1",
    port: int = 0,
    slug: str = "gateway-double",
    bot_id: int = 200_000_001,
    token_life_s: float = TOKEN_LIFE_S,
    clock: Callable[[], float] = time.time,
) -> Running:
    """Start a double in this event loop; port 0 takes a free one. The caller stops it."""
    double = GitHubDouble(
        app_id=app_id,
        public_key_pem=public_key_pem,
        installations=installations,
        slug=slug,
        bot_id=bot_id,
        token_life_s=token_life_s,
        clock=clock,
    )
    runner = web.AppRunner(double.app(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    bound = runner.addresses[0]
    shown = f"[{host}]" if ":" in host else host
    return Running(f"http://{shown}:{bound[1]}", double, runner)


@asynccontextmanager
async def running(
    *, app_id: int, public_key_pem: bytes, installations: Mapping[int, Sequence[str]], **more: Any
) -> AsyncIterator[Running]:
    """`start` for a `with` block."""
    double = await start(app_id=app_id, public_key_pem=public_key_pem, installations=installations, **more)
    try:
        yield double
    finally:
        await double.stop()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_user_agent(request: web.Request) -> None:
    """https://docs.github.com/en/rest/using-the-rest-api/getting-started-with-the-rest-api#user-agent: it is required."""
    if not request.headers.get("User-Agent"):
        raise Refused(
            403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent header"
        )


def _bearer(request: web.Request) -> str:
    """Return the credential of the call. GitHub takes both words, but a JWT only after `Bearer`."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() not in ("bearer", "token") or not value:
        raise Refused(401, "Requires authentication")
    return value


def _repo_name(request: web.Request) -> str:
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def _object(body: bytes, empty: dict[str, Any] | None = None) -> dict[str, Any]:
    if not body and empty is not None:
        return empty
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refused(400, "Problems parsing JSON") from None
    if not isinstance(document, dict):
        raise Refused(422, "Invalid request: the body is not an object")
    return document


def _names(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise Refused(422, "Invalid request: repositories is not a list of names")
    return value


def _dispatch_document(body: bytes) -> dict[str, Any]:
    """Return the body of a dispatch within GitHub's documented limits, else refuse it with 422."""
    document = _object(body)
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


def _parsed(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise web.HTTPBadRequest(text=str(error)) from None


def _installation(text: str) -> tuple[int, str]:
    number, separator, repo = text.partition("=")
    if not number.isdecimal() or not separator or repo.count("/") != 1:
        raise argparse.ArgumentTypeError("is written ID=OWNER/NAME")
    return int(number), repo


def _checkout(text: str) -> tuple[str, Path]:
    repo, separator, folder = text.partition("=")
    if repo.count("/") != 1 or not separator or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError("is written OWNER/NAME=FOLDER, and the folder exists")
    return repo, Path(folder)


def workflows(checkout: Path) -> dict[str, bytes]:
    """The files under .github/workflows of a checkout, by their path in it."""
    found = sorted((checkout / ".github/workflows").glob("*"))
    return {file.relative_to(checkout).as_posix(): file.read_bytes() for file in found if file.is_file()}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gateway.doubles.github",
        description=__doc__,
        epilog="Example: python -m gateway.doubles.github --port 8090 --app-id 123456 --public-key app.pub "
        "--installation 48213991=acme/app",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--app-id", type=int, required=True)
    parser.add_argument("--public-key", type=Path, required=True, help="PEM file of the App's public key")
    parser.add_argument(
        "--installation",
        type=_installation,
        action="append",
        default=[],
        metavar="ID=OWNER/NAME",
        help="an installation and a repository of it; may be repeated",
    )
    told = "what the default branch holds: the workflows of a folder, read at start"
    parser.add_argument(
        "--checkout", type=_checkout, action="append", default=[], metavar="OWNER/NAME=FOLDER", help=told
    )
    parser.add_argument("--slug", default="gateway-double")
    parser.add_argument("--bot-id", type=int, default=200_000_001)
    parser.add_argument("--token-life-s", type=float, default=TOKEN_LIFE_S)
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; say the address in one line of JSON."""
    installations: dict[int, list[str]] = {}
    for number, repo in options.installation:
        installations.setdefault(number, []).append(repo)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    double = await start(
        app_id=options.app_id,
        public_key_pem=await asyncio.to_thread(options.public_key.read_bytes),
        installations=installations,
        host=options.host,
        port=options.port,
        slug=options.slug,
        bot_id=options.bot_id,
        token_life_s=options.token_life_s,
    )
    for repo, folder in options.checkout:
        for path, data in (await asyncio.to_thread(workflows, folder)).items():
            double.double.add_repository(repo).contents[(path, None)] = data
    try:
        sys.stdout.write(
            orjson.dumps({"event": "listening", "address": double.address, "url": double.address}).decode() + "\n"
        )
        sys.stdout.flush()
        await stop.wait()
    finally:
        await double.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the double as a process of its own; 3 where its port is taken, 2 where its key cannot be used."""
    options = _arguments(arguments)
    try:
        asyncio.run(serve(options))
    except OSError as error:
        sys.stderr.write(f"github double: {error.strerror or error}\n")
        return 3
    except (ValueError, TypeError):
        sys.stderr.write("github double: --public-key is not a PEM file of an RSA public key\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
