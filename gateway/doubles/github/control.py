"""The double's own side, `/_double/`: what it was sent, what is scripted, and how its world changes."""

from collections import Counter
from typing import Any, Protocol, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from gateway.doubles.github.scripts import Model, Script, Scripts
from gateway.doubles.github.world import Installation, Repo, World

M = TypeVar("M", bound=BaseModel)


class RepositoryChange(Model):
    """A repository that appears, changes, moves or goes."""

    repo: str
    id: int | None = None
    default_branch: str | None = None
    moved_to: str | None = None
    gone: bool | None = None


class ContentsChange(Model):
    """A file of a repository."""

    repo: str
    path: str
    ref: str | None = None
    text: str | None


class InstallationChange(Model):
    """An installation of the App."""

    id: int
    repositories: list[str] | None = None
    permissions: dict[str, str] | None = None
    suspended: bool | None = None
    gone: bool | None = None


class Seen(Protocol):
    """What the double keeps of the calls that it was sent."""

    slug: str
    bot_id: int
    dispatches: list[dict[str, Any]]
    calls: Counter[str]
    in_flight: int
    most_in_flight: int


class Control:
    """Handlers of `/_double/`, over what the double's other side works with."""

    def __init__(self, world: World, scripts: Scripts, seen: Seen) -> None:
        self._world, self._scripts, self._seen = world, scripts, seen

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/_double/dispatches", self._dispatches),
            web.get("/_double/event", self._event),
            web.get("/_double/state", self._state),
            web.delete("/_double/state", self._reset),
            web.post("/_double/script", self._script),
            web.post("/_double/repository", self._repository),
            web.post("/_double/contents", self._contents),
            web.post("/_double/installation", self._installation),
        ]

    async def _dispatches(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"dispatches": self._seen.dispatches})

    async def _event(self, request: web.Request) -> web.StreamResponse:
        """Answer what the run that a dispatch started finds in its event file: of the last one, or of `?dispatch=ID`.

        With `?workflow=PATH` 409 where that file at the default branch lists no such type, so that GitHub starts no run.
        https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository_dispatch
        """
        wanted, workflow = request.query.get("dispatch"), request.query.get("workflow")
        for one in reversed(self._seen.dispatches):
            repo = self._world.repos.get(one["repo"].lower())
            if repo is not None and (wanted is None or wanted == _dispatch_id(one["client_payload"])):
                if workflow is not None and one["event_type"].encode() not in (repo.file(workflow) or b""):
                    raise web.HTTPConflict
                return web.json_response(self._delivered(one, repo))
        raise web.HTTPNotFound

    def _delivered(self, taken: dict[str, Any], repo: Repo) -> dict[str, Any]:
        owner, name = repo.full_name.split("/")
        return {
            "action": taken["event_type"],
            "branch": repo.default_branch,
            "client_payload": taken["client_payload"],
            "repository": {
                "id": repo.id,
                "name": name,
                "full_name": repo.full_name,
                "owner": {"login": owner},
                "default_branch": repo.default_branch,
            },
            "sender": {"id": self._seen.bot_id, "login": f"{self._seen.slug}[bot]", "type": "Bot"},
            "installation": {"id": taken["installation"]},
        }

    async def _state(self, _: web.Request) -> web.StreamResponse:
        state = {
            "calls": dict(self._seen.calls),
            "dispatches": len(self._seen.dispatches),
            "tokens": len(self._world.tokens),
            "scripts": self._scripts.left(),
            "most_in_flight": self._seen.most_in_flight,
            "repositories": {repo.full_name: repo.id for repo in self._world.repos.values()},
            "heads": {repo.full_name: repo.head() for repo in self._world.repos.values()},
        }
        return web.json_response(state)

    async def _reset(self, _: web.Request) -> web.StreamResponse:
        self._seen.dispatches.clear()
        self._seen.calls.clear()
        self._scripts.clear()
        self._world.tokens.clear()
        self._seen.most_in_flight = self._seen.in_flight
        return web.Response(status=204)

    async def _script(self, request: web.Request) -> web.StreamResponse:
        self._scripts.add(_parsed(Script, await request.read()))
        return web.Response(status=204)

    async def _repository(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(RepositoryChange, await request.read())
        if change.gone:
            self._world.repos.pop(change.repo.lower(), None)
            return web.Response(status=204)
        repo = self._world.add_repository(change.repo, change.id)
        repo.id = repo.id if change.id is None else change.id
        repo.default_branch = change.default_branch or repo.default_branch
        if change.moved_to is not None:
            repo.moved_to = change.moved_to
            self._world.add_repository(change.moved_to, repo.id)
            for installation in self._world.installations.values():
                if change.repo.lower() in installation.repositories:
                    installation.repositories.add(change.moved_to.lower())
        return web.Response(status=204)

    async def _contents(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(ContentsChange, await request.read())
        contents = self._world.add_repository(change.repo).contents
        if change.text is None:
            contents.pop((change.path, change.ref), None)
        else:
            contents[(change.path, change.ref)] = change.text.encode()
        return web.Response(status=204)

    async def _installation(self, request: web.Request) -> web.StreamResponse:
        change = _parsed(InstallationChange, await request.read())
        if change.gone:
            self._world.installations.pop(change.id, None)
            return web.Response(status=204)
        installation = self._world.installations.setdefault(change.id, Installation(set()))
        if change.repositories is not None:
            for name in change.repositories:
                self._world.add_repository(name)
            installation.repositories = {name.lower() for name in change.repositories}
        if change.permissions is not None:
            installation.permissions = change.permissions
        if change.suspended is not None:
            installation.suspended = change.suspended
        return web.Response(status=204)


def _dispatch_id(payload: Any) -> Any:
    """Return the dispatch that a payload names; what somebody else sent may name none."""
    match payload:
        case {"gateway": {"dispatch": ident}}:
            return ident
    return None


def _parsed(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
