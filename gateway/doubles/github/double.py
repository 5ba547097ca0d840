"""GitHub's side of the double: the App's calls, the dispatch, and the App's webhook, answered as GitHub documents it."""

import io
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gateway.doubles.deliveries import PERIOD_S, Log
from gateway.doubles.github.control import Control
from gateway.doubles.github.rules import (
    Refused,
    check_jwt,
    check_user_agent,
    dispatch_document,
    json_object,
    names_of,
    repo_name,
)
from gateway.doubles.github.scripts import Script, Scripts, play
from gateway.doubles.github.world import TOKEN_LIFE_S, Repo, World

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _taken(_delivery: str) -> int:
    """Answer a redelivery where no test says otherwise."""
    return 200


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
        self.dispatches: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.hook_url: str | None = None
        self.log = Log(_taken, clock)
        self._key = key
        self._clock = clock
        self.world = World(installations, token_life_s, clock)
        self.scripts = Scripts()
        self._control = Control(self.world, self.scripts, self)

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
                *self._control.routes(),
            ]
        )
        return app

    def add_repository(self, name: str, number: int | None = None) -> Repo:
        """Return the repository `name`, made where it is unknown."""
        return self.world.add_repository(name, number)

    def script(self, repo: str, *answers: Mapping[str, Any], on: str = "dispatch") -> None:
        """Add scripted answers, as `POST /_double/script` does."""
        self.scripts.add(
            Script.model_validate({"repo": repo, "on": on, "answers": [dict(answer) for answer in answers]})
        )

    def revoke_tokens(self) -> None:
        """Forget every token: the next call with one is answered 401."""
        self.world.tokens.clear()

    # -- the calls -----------------------------------------------------------------------------------------------

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_double/"):
            return await handler(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            check_user_agent(request)
            return await handler(request)
        except Refused as error:
            return web.json_response(error.body, status=error.status, headers=error.headers)
        finally:
            self.in_flight -= 1

    async def _access_tokens(self, request: web.Request) -> web.StreamResponse:
        """Issue a token. https://docs.github.com/en/rest/apps/apps#create-an-installation-access-token-for-an-app."""
        self.calls["token"] += 1
        check_jwt(request, self._key, self.app_id, self._clock())
        number = int(request.match_info["id"])
        asked = json_object(await request.read(), empty={})
        names = names_of(asked.get("repositories"))
        installation = self.world.installations.get(number)
        scripted_for = self.world.named_in(installation, names)
        if (answer := await self.scripts.next("token", scripted_for)) is not None:
            return play(request, answer)
        if installation is None:
            raise Refused(404, "Not Found")
        if installation.suspended:
            raise Refused(403, "This installation has been suspended")
        value, token = self.world.grant(number, installation, names, asked)
        expires = datetime.fromtimestamp(token.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        selection = "all" if names is None else "selected"
        body = {
            "token": value,
            "expires_at": expires,
            "permissions": token.permissions,
            "repository_selection": selection,
        }
        return web.json_response(body, status=201)

    async def _dispatches(self, request: web.Request) -> web.StreamResponse:
        self.calls["dispatch"] += 1
        name = repo_name(request)
        body = await request.read()
        answer = await self.scripts.next("dispatch", name)
        if answer is not None and not answer.taken:
            return play(request, answer)
        token = self.world.check(request, name, "contents", "write")
        document = dispatch_document(body)
        self.dispatches.append(
            {
                "repo": self.world.repos[name.lower()].full_name,
                "installation": token.installation,
                "received_at": self._clock(),
                "event_type": document["event_type"],
                "client_payload": document.get("client_payload", {}),
                "body": document,
                "raw": body.decode("utf-8"),
            }
        )
        return web.Response(status=204) if answer is None else play(request, answer)

    async def _repository(self, request: web.Request) -> web.StreamResponse:
        self.calls["repository"] += 1
        name = repo_name(request)
        if (answer := await self.scripts.next("repository", name)) is not None:
            return play(request, answer)
        self.world.check(request, name, "metadata", "read")
        repo = self.world.repos[name.lower()]
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
        name = repo_name(request)
        if (answer := await self.scripts.next("contents", name)) is not None:
            return play(request, answer)
        self.world.check(request, name, "contents", "read")
        repo = self.world.repos[name.lower()]
        held = repo.file(request.match_info["path"], request.query.get("ref"))
        if held is None:
            raise Refused(404, "Not Found")
        if "raw" not in request.headers.get("Accept", ""):
            raise Refused(415, "This double answers contents in the raw media type alone")
        return web.Response(body=io.BytesIO(held), content_type="application/vnd.github.raw+json")

    async def _hook_config(self, request: web.Request) -> web.StreamResponse:
        """https://docs.github.com/en/rest/apps/webhooks#get-a-webhook-configuration-for-an-app."""
        check_jwt(request, self._key, self.app_id, self._clock())
        return web.json_response(
            {"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": self.hook_url}
        )

    async def _hook_deliveries(self, request: web.Request) -> web.StreamResponse:
        check_jwt(request, self._key, self.app_id, self._clock())
        return self.log.github(request)

    async def _hook_attempts(self, request: web.Request) -> web.StreamResponse:
        check_jwt(request, self._key, self.app_id, self._clock())
        if not await self.log.again(request.match_info["id"], PERIOD_S):
            raise Refused(404, "Not Found")
        return web.json_response({}, status=202)

    async def _app(self, request: web.Request) -> web.StreamResponse:
        self.calls["app"] += 1
        check_jwt(request, self._key, self.app_id, self._clock())
        return web.json_response({"id": self.app_id, "slug": self.slug, "name": self.slug})

    async def _installation(self, request: web.Request) -> web.StreamResponse:
        """https://docs.github.com/en/rest/apps/apps#get-an-installation-for-the-authenticated-app."""
        self.calls["installation"] += 1
        check_jwt(request, self._key, self.app_id, self._clock())
        number = int(request.match_info["id"])
        installation = self.world.installations.get(number)
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
