"""Doubles of the providers' webhook APIs, as far as `gateway wire` uses them; each keeps the rules that its docs state.

`/github`, `/gitlab/api/v4`, `/linear/graphql`, `/jira`, `/azure/ORG`, `/graph/v1.0` and `/oauth/token` on one loopback
address. Secrets go in and never come out. What is ours alone stands under `/_double/`: `GET /_double/state` what is kept,
secrets included, `POST /_double/fault` `{"status": 503}` answers the next call so, `DELETE /_double/state` forgets all.
"""

import argparse
import asyncio
import base64
import copy
import json
import re
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import aiohttp
from aiohttp import web

from gateway.doubles.deliveries import PERIOD_S, Log
from gateway.structs import Value

TOKEN = "double-api-token"  # noqa: S105 (a double's)
CLIENT = ("double-client", "double-client-secret")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GITHUB_EVENTS = re.compile(r"[a-z_0-9]+|\*")
GITLAB_KEYS = frozenset(
    [
        "url",
        "name",
        "description",
        "token",
        "signing_token",
        "enable_ssl_verification",
        "push_events",
        "tag_push_events",
        "issues_events",
        "confidential_issues_events",
        "merge_requests_events",
        "note_events",
        "confidential_note_events",
        "job_events",
        "pipeline_events",
        "wiki_page_events",
        "deployment_events",
        "releases_events",
    ]
)
GRAPH_MOST_S = {
    "messages": 4_320 * 60
}  # https://learn.microsoft.com/en-us/graph/api/resources/subscription#subscription-lifetime


class Refused(Exception):  # noqa: N818 (an answer)
    """An answer other than success."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status, self.body = status, body


@dataclass(slots=True)
class Kept:
    """Everything that the doubles hold."""

    hooks: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)  # GitHub and GitLab, by scope
    groups: dict[str, list[str]] = field(default_factory=dict)  # GitLab: the groups above a project
    linear: dict[str, dict[str, Any]] = field(default_factory=dict)
    jira: dict[int, dict[str, Any]] = field(default_factory=dict)
    azure: dict[str, dict[str, Any]] = field(default_factory=dict)
    graph: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    tokens: int = 0


class ProvidersDouble:
    """State and handlers; `app()` is the web application."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.kept = Kept()
        self.clock = clock
        self._next = 100
        self._faults: list[Mapping[str, Any]] = []
        self.logs: dict[int, Log] = {}
        self._resends: list[float] = []

    def app(self) -> web.Application:
        """Every API's routes."""
        app = web.Application(middlewares=[self._middleware])
        hooks = (("/github/{kind:repos}/{owner}/{name}", self._github), ("/github/{kind:orgs}/{owner}", self._github))
        gitlab = [("/gitlab/api/v4/" + kind, self._gitlab) for kind in ("projects/{project}", "groups/{group}")]
        for where, handler in (*hooks, *gitlab):
            app.router.add_route("*", where + "/hooks", handler)
            app.router.add_route("*", where + "/hooks/{id:\\d+}", handler)
        for where in ("/github/{kind:repos}/{owner}/{name}", "/github/{kind:orgs}/{owner}"):
            app.router.add_get(where + "/hooks/{id:\\d+}/deliveries", self._github_log)
            app.router.add_post(where + "/hooks/{id:\\d+}/deliveries/{attempt:\\d+}/attempts", self._github_again)
        for where, _ in gitlab:
            app.router.add_get(where + "/hooks/{id:\\d+}/events", self._gitlab_log)
            app.router.add_post(where + "/hooks/{id:\\d+}/events/{attempt:\\d+}/resend", self._gitlab_again)
        app.router.add_get("/gitlab/api/v4/projects/{project}/groups", self._gitlab_groups)
        app.add_routes(
            [
                web.post("/linear/graphql", self._linear),
                web.route("*", "/jira/rest/webhooks/1.0/webhook", self._jira),
                web.route("*", "/jira/rest/webhooks/1.0/webhook/{id:\\d+}", self._jira),
                web.route("*", "/azure/{organization}/_apis/hooks/subscriptions", self._azure),
                web.route("*", "/azure/{organization}/_apis/hooks/subscriptions/{id}", self._azure),
                web.route("*", "/graph/v1.0/subscriptions", self._graph),
                web.route("*", "/graph/v1.0/subscriptions/{id}", self._graph),
                web.post("/oauth/token", self._oauth),
                web.get("/_double/state", self._state),
                web.delete("/_double/state", self._forget),
                web.post("/_double/fault", self._fault),
            ]
        )
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_double/"):
            return await handler(request)
        self.kept.calls.append(f"{request.method} {request.path}")
        if self._faults:
            fault = self._faults.pop(0)
            return web.json_response(fault.get("body", {"message": "scripted"}), status=int(fault["status"]))
        try:
            return await handler(request)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.status)

    def _number(self) -> int:
        self._next += 1
        return self._next

    # -- GitHub: https://docs.github.com/en/rest/repos/webhooks -------------------------------------------------------

    def log(self, hook: int) -> Log:
        """The delivery log of a hook; `send` answers 200 until it is given another."""

        async def send(_delivery: str) -> int:
            return 200

        return self.logs.setdefault(hook, Log(send, self.clock))

    async def _github_log(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, {"message": "Bad credentials"})
        return self.log(int(request.match_info["id"])).github(request)

    async def _github_again(self, request: web.Request) -> web.StreamResponse:
        if not await self.log(int(request.match_info["id"])).again(request.match_info["attempt"], PERIOD_S):
            raise Refused(404, {"message": "Not Found"})
        return web.json_response({}, status=202)

    async def _github(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, {"message": "Bad credentials"})
        parts = [request.match_info[name] for name in ("kind", "owner", "name") if name in request.match_info]
        hooks = self.kept.hooks.setdefault("/".join(parts), {})
        if "missing" in parts:
            raise Refused(404, {"message": "Not Found"})
        if request.method == "GET":
            size, page = int(request.query.get("per_page", "30")), int(request.query.get("page", "1"))
            return web.json_response([_github_shown(h) for h in list(hooks.values())[(page - 1) * size : page * size]])
        body = await request.json()
        allowed = {"name", "config", "events", "active", "add_events", "remove_events"}
        if body.keys() - allowed or body.get("name", "web") != "web":
            raise Refused(422, {"message": "Validation Failed"})
        if not all(GITHUB_EVENTS.fullmatch(event) for event in body.get("events", ["push"])):
            raise Refused(422, {"message": "Validation Failed: events"})
        if request.method == "POST":
            return web.json_response(_github_shown(self._github_new(hooks, body)), status=201)
        hook = hooks.get(int(request.match_info["id"]))
        if hook is None:
            raise Refused(404, {"message": "Not Found"})
        if "config" in body:
            hook["config"] = dict(body["config"])  # replaced whole: a secret that is left out is gone
        hook["events"] = list(body.get("events", hook["events"]))
        hook["active"] = body.get("active", hook["active"])
        return web.json_response(_github_shown(hook))

    def _github_new(self, hooks: dict[int, dict[str, Any]], body: Mapping[str, Any]) -> dict[str, Any]:
        config = body.get("config", {})
        if not config.get("url"):
            raise Refused(422, {"message": "Validation Failed: url"})
        same = [h for h in hooks.values() if h["config"]["url"] == config["url"]]
        if any(set(h["events"]) & set(body.get("events", ["push"])) for h in same):
            raise Refused(422, {"message": "Validation Failed: Hook already exists on this repository"})
        ident = self._number()
        hooks[ident] = {
            "id": ident,
            "name": "web",
            "active": body.get("active", True),
            "events": list(body.get("events", ["push"])),
            "config": {"content_type": "form", "insecure_ssl": "0", **config},
        }
        return hooks[ident]

    # -- GitLab: https://docs.gitlab.com/api/project_webhooks/ --------------------------------------------------------

    async def _gitlab_log(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("PRIVATE-TOKEN") != TOKEN:
            raise Refused(401, {"message": "401 Unauthorized"})
        return self.log(int(request.match_info["id"])).gitlab(request)

    async def _gitlab_again(self, request: web.Request) -> web.StreamResponse:
        """Five a minute: https://docs.gitlab.com/administration/settings/rate-limit-on-webhook-operations/."""
        self._resends = [at for at in self._resends if self.clock() - at < 60]
        if len(self._resends) >= 5:
            raise Refused(
                429, {"message": {"error": "This endpoint has been requested too many times. Try again later."}}
            )
        self._resends.append(self.clock())
        if not await self.log(int(request.match_info["id"])).again(request.match_info["attempt"], 7 * 86_400):
            raise Refused(404, {"message": "404 Not found"})
        return web.json_response({"response_status": 200}, status=201)

    async def _gitlab_groups(self, request: web.Request) -> web.StreamResponse:
        """https://docs.gitlab.com/api/projects/#list-all-ancestor-groups."""
        if request.headers.get("PRIVATE-TOKEN") != TOKEN:
            raise Refused(401, {"message": "401 Unauthorized"})
        rows = self.kept.groups.get(request.match_info["project"], [])
        size, page = int(request.query.get("per_page", "20")), int(request.query.get("page", "1"))
        return web.json_response(
            [{"id": group, "name": f"g{group}"} for group in rows[(page - 1) * size : page * size]]
        )

    async def _gitlab(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("PRIVATE-TOKEN") != TOKEN:
            raise Refused(401, {"message": "401 Unauthorized"})
        ((kind, name),) = [(k, v) for k, v in request.match_info.items() if k in ("project", "group")]
        if name == "404":
            raise Refused(404, {"message": f"404 {kind.title()} Not Found"})
        hooks = self.kept.hooks.setdefault(f"{kind}s/{name}", {})
        if request.method == "GET":
            size, page = int(request.query.get("per_page", "20")), int(request.query.get("page", "1"))
            return web.json_response([_gitlab_shown(h) for h in list(hooks.values())[(page - 1) * size : page * size]])
        body = await request.json()
        if unknown := body.keys() - GITLAB_KEYS:
            raise Refused(400, {"error": f"{min(unknown)} is invalid"})
        signing = body.get("signing_token")
        if signing is not None and not re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", signing):
            raise Refused(422, {"message": {"signing_token": ["is invalid"]}})
        if request.method == "POST":
            if not body.get("url"):
                raise Refused(400, {"error": "url is missing"})
            ident = self._number()
            hooks[ident] = {"id": ident, "push_events": True, "enable_ssl_verification": True, **body}
            return web.json_response(_gitlab_shown(hooks[ident]), status=201)
        hook = hooks.get(int(request.match_info["id"]))
        if hook is None:
            raise Refused(404, {"message": "404 Not found"})
        hook.update(body)
        return web.json_response(_gitlab_shown(hook))

    # -- Linear: https://linear.app/developers/graphql ----------------------------------------------------------------

    async def _linear(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"lin_api_{TOKEN}"):
            raise Refused(401, {"errors": [{"message": "Authentication required, not authenticated"}]})
        body = await request.json()
        query, variables = body["query"], body.get("variables") or {}
        if "webhookCreate" in query:
            data = {"webhookCreate": self._linear_new(variables["input"])}
        elif "webhookUpdate" in query:
            data = {"webhookUpdate": self._linear_change(variables["id"], variables["input"])}
        else:
            rows = list(self.kept.linear.values())
            start = int(variables.get("after") or 0)
            more = len(rows) > start + 100
            page = {"hasNextPage": more, "endCursor": str(start + 100)}
            data = {"webhooks": {"nodes": [_linear_shown(r) for r in rows[start : start + 100]], "pageInfo": page}}
        return web.json_response({"data": data})

    def _linear_new(self, given: Mapping[str, Any]) -> dict[str, Any]:
        _linear_input(given, {"url", "resourceTypes", "teamId", "allPublicTeams", "secret", "label", "enabled", "id"})
        if not given.get("resourceTypes") or ("teamId" in given) == bool(given.get("allPublicTeams")):
            raise Refused(200, {"errors": [{"message": "Argument Validation Error"}]})
        row = {"id": str(uuid.uuid4()), "enabled": True, **given}
        self.kept.linear[row["id"]] = row
        return {"success": True, "webhook": _linear_shown(row)}

    def _linear_change(self, ident: str, given: Mapping[str, Any]) -> dict[str, Any]:
        _linear_input(given, {"url", "resourceTypes", "secret", "label", "enabled"})
        if ident not in self.kept.linear:
            raise Refused(200, {"errors": [{"message": "Entity not found: Webhook"}]})
        self.kept.linear[ident].update(given)
        return {"success": True, "webhook": _linear_shown(self.kept.linear[ident])}

    # -- Jira: https://developer.atlassian.com/cloud/jira/platform/webhooks/ ------------------------------------------

    async def _jira(self, request: web.Request) -> web.StreamResponse:
        pair = base64.b64encode(f"ops@acme.example:{TOKEN}".encode()).decode()
        if request.headers.get("Authorization") not in (f"Basic {pair}", f"Bearer {TOKEN}"):
            raise Refused(401, {"errorMessages": ["You do not have permission"]})
        where = f"{request.scheme}://{request.host}/jira/rest/webhooks/1.0/webhook"
        if request.method == "GET":
            return web.json_response([_jira_shown(row, where) for row in self.kept.jira.values()])
        body = await request.json()
        if not body.get("name") or not body.get("url") or not body.get("events"):
            raise Refused(400, {"errorMessages": ["name, url and events are required"]})
        if request.method == "POST":
            ident = self._number()
            self.kept.jira[ident] = {"id": ident, "enabled": True, "excludeBody": False, **body}
            return web.json_response(_jira_shown(self.kept.jira[ident], where), status=201)
        row = self.kept.jira.get(int(request.match_info["id"]))
        if row is None:
            raise Refused(404, {"errorMessages": ["No webhook"]})
        row.update(body)
        return web.json_response(_jira_shown(row, where))

    # -- Azure DevOps: https://learn.microsoft.com/en-us/rest/api/azure/devops/hooks/subscriptions --------------------

    async def _azure(self, request: web.Request) -> web.StreamResponse:
        pair = base64.b64encode(f":{TOKEN}".encode()).decode()
        if request.headers.get("Authorization") not in (f"Basic {pair}", f"Bearer {_oauth_token(self.kept.tokens)}"):
            raise Refused(401, {"message": "TF400813: not authorized"})
        if not request.query.get("api-version"):
            raise Refused(400, {"message": "No api-version was supplied"})
        if request.method == "GET":
            rows = [_azure_shown(row) for row in self.kept.azure.values()]
            return web.json_response({"count": len(rows), "value": rows})
        body = await request.json()
        inputs = body.get("consumerInputs", {})
        if body.get("consumerId") != "webHooks" or not body.get("publisherInputs", {}).get("projectId"):
            raise Refused(400, {"message": "The subscription is not valid"})
        if inputs.get("basicAuthUsername") and not _is_secure(inputs["url"]):
            raise Refused(400, {"message": "Basic authentication requires https"})
        if request.method == "POST":
            ident = str(uuid.uuid4())
            self.kept.azure[ident] = {"id": ident, "status": "enabled", **body}
            return web.json_response(_azure_shown(self.kept.azure[ident]))
        ident = request.match_info["id"]
        if ident not in self.kept.azure:
            raise Refused(404, {"message": "The subscription does not exist"})
        self.kept.azure[ident] = {**body, "id": ident}
        return web.json_response(_azure_shown(self.kept.azure[ident]))

    # -- Microsoft Graph: https://learn.microsoft.com/en-us/graph/api/resources/subscription --------------------------

    async def _graph(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"Bearer {_oauth_token(self.kept.tokens)}"):
            raise Refused(401, {"error": {"code": "InvalidAuthenticationToken", "message": "Access token is empty."}})
        now = self.clock()
        for ident in [i for i, row in self.kept.graph.items() if _seconds(row["expirationDateTime"]) <= now]:
            del self.kept.graph[ident]  # it has expired: gone without a word
        ident = request.match_info.get("id", "")
        if request.method == "GET":
            return self._graph_page(request)
        if request.method == "POST":
            return web.json_response(_graph_shown(await self._graph_new(await request.json(), now)), status=201)
        row = self.kept.graph.get(ident)
        if row is None:
            raise Refused(404, {"error": {"code": "ResourceNotFound", "message": "The object was not found."}})
        if request.method == "DELETE":
            del self.kept.graph[ident]
            return web.Response(status=204)
        await self._graph_change(row, await request.json(), now)
        return web.json_response(_graph_shown(row))

    def _graph_page(self, request: web.Request) -> web.StreamResponse:
        rows, start = list(self.kept.graph.values()), int(request.query.get("$skiptoken", "0"))
        answer: dict[str, Any] = {"value": [_graph_shown(row) for row in rows[start : start + 2]]}
        if len(rows) > start + 2:
            url = f"{request.scheme}://{request.host}{request.path}?%24skiptoken={start + 2}"
            answer["@odata.nextLink"] = url
        return web.json_response(answer)

    async def _graph_new(self, body: Mapping[str, Any], now: float) -> dict[str, Any]:
        missing = {"changeType", "notificationUrl", "resource", "expirationDateTime"} - body.keys()
        if missing:
            raise Refused(400, {"error": {"code": "InvalidRequest", "message": f"{min(missing)} is required"}})
        self._graph_time(body, now)
        if _seconds(body["expirationDateTime"]) - now > 3600 and not body.get("lifecycleNotificationUrl"):
            text = "lifecycleNotificationUrl is a required property for subscription creation on this resource"
            raise Refused(400, {"error": {"code": "InvalidRequest", "message": text}})
        if len(body.get("clientState", "")) > 128:
            raise Refused(400, {"error": {"code": "InvalidRequest", "message": "clientState is too long"}})
        for name in ("notificationUrl", "lifecycleNotificationUrl"):
            if body.get(name):
                await _validate(body[name])
        row = {"id": str(uuid.uuid4()), **body}
        self.kept.graph[row["id"]] = row
        return row

    async def _graph_change(self, row: dict[str, Any], body: Mapping[str, Any], now: float) -> None:
        if body.keys() - {"expirationDateTime", "notificationUrl"}:
            raise Refused(400, {"error": {"code": "InvalidRequest", "message": "the property cannot be updated"}})
        if "expirationDateTime" in body:
            self._graph_time({**row, **body}, now)
        if body.get("notificationUrl", row["notificationUrl"]) != row["notificationUrl"]:
            await _validate(body["notificationUrl"])
        row.update(body)

    def _graph_time(self, body: Mapping[str, Any], now: float) -> None:
        most = GRAPH_MOST_S.get(str(body["resource"]).rpartition("/")[2], 3600)
        if not now < _seconds(body["expirationDateTime"]) <= now + most:
            text = "Subscription expiration can only be within its maximum from now"
            raise Refused(400, {"error": {"code": "InvalidRequest", "message": text}})

    # -- ours ---------------------------------------------------------------------------------------------------------

    async def _oauth(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if (form.get("client_id"), form.get("client_secret")) != CLIENT or not form.get("scope"):
            raise Refused(401, {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret"})
        self.kept.tokens += 1
        answer = {"token_type": "Bearer", "expires_in": 3599, "access_token": _oauth_token(self.kept.tokens)}
        return web.json_response(answer)

    async def _state(self, _request: web.Request) -> web.StreamResponse:
        names = ("hooks", "linear", "jira", "azure", "graph", "calls", "tokens")
        return web.json_response({name: getattr(self.kept, name) for name in names})

    async def _forget(self, _request: web.Request) -> web.StreamResponse:
        self.kept = Kept()
        return web.Response(status=204)

    async def _fault(self, request: web.Request) -> web.StreamResponse:
        self._faults.append(await request.json())
        return web.Response(status=204)

    def fault(self, status: int, body: Any = None) -> None:
        """Answer the next call with this."""
        self._faults.append({"status": status, "body": body or {"message": "scripted"}})


def _oauth_token(number: int) -> str:
    return f"header.{number}.signature"


def _github_shown(hook: Mapping[str, Any]) -> dict[str, Any]:
    shown = copy.deepcopy(dict(hook))
    if "secret" in shown["config"]:
        shown["config"]["secret"] = "*" * 8
    return shown


def _gitlab_shown(hook: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in hook.items() if name not in ("token", "signing_token")}
    return {"alert_status": "executable", "disabled_until": None, **shown}


def _linear_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    team = {"id": row["teamId"]} if row.get("teamId") else None
    return {**{name: row[name] for name in ("id", "url", "enabled", "resourceTypes")}, "team": team}


def _linear_input(given: Mapping[str, Any], allowed: set[str]) -> None:
    if unknown := given.keys() - allowed:
        text = f'Variable "$input" got invalid value: Field "{min(unknown)}" is not defined by type'
        raise Refused(400, {"errors": [{"message": text}]})


def _jira_shown(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {**{k: v for k, v in row.items() if k not in ("id", "secret")}, "self": f"{where}/{row['id']}"}


def _azure_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = copy.deepcopy(dict(row))
    if "basicAuthPassword" in shown["consumerInputs"]:
        shown["consumerInputs"]["basicAuthPassword"] = "*" * 8
    return shown


def _graph_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "clientState": None, "expirationDateTime": row["expirationDateTime"].removesuffix("Z") + ".0000000Z"}


def _seconds(text: str) -> float:
    return (
        datetime.strptime(text.partition(".")[0].removesuffix("Z"), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    )


def _is_secure(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname == "127.0.0.1"


async def _validate(url: str) -> None:
    """https://learn.microsoft.com/en-us/graph/change-notifications-delivery-webhooks#notificationurl-validation."""
    token = f"Validation: {uuid.uuid4()} & more"
    parts = urlsplit(url)
    target = urlunsplit(parts._replace(query=urlencode({"validationToken": token})))
    failed = {"error": {"code": "ValidationError", "message": "Subscription validation request failed."}}
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(target, headers={"Content-Type": "text/plain; charset=utf-8"}, data=b"") as response,
        ):
            good = response.status == 200 and response.content_type == "text/plain" and await response.text() == token
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise Refused(400, failed) from None
    if not good:
        raise Refused(400, failed)


class Running(Value):
    """Doubles that listen."""

    address: str
    double: ProvidersDouble


@asynccontextmanager
async def running(*, port: int = 0, clock: Callable[[], float] = time.time) -> AsyncIterator[Running]:
    """Doubles for a `with` block, on loopback; port 0 takes a free one."""
    double = ProvidersDouble(clock=clock)
    runner = web.AppRunner(double.app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield Running(f"http://127.0.0.1:{runner.addresses[0][1]}", double)
    finally:
        await runner.cleanup()


async def serve(port: int) -> None:
    """Serve until SIGTERM or SIGINT; say the address in one line of JSON."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(port=port) as double:
        sys.stdout.write(json.dumps({"event": "listening", "url": double.address, "token": TOKEN}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the doubles as a process of their own; 3 where the port is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.doubles.providers",
        description=__doc__,
        epilog="Example: python -m gateway.doubles.providers --port 8091",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=0)
    try:
        asyncio.run(serve(parser.parse_args(arguments).port))
    except OSError as error:
        sys.stderr.write(f"provider doubles: {error.strerror or error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
