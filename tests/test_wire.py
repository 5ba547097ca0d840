"""Wiring against doubles that keep the documented rules, over real sockets: idempotent, honest about drift, silent on secrets."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway import wire
from gateway.doubles import providers
from gateway.doubles.providers import CLIENT, TOKEN, Running
from gateway.environment import data_folder
from gateway.errors import Unavailable
from gateway.structs import replace
from gateway.subscriptions import Subscription, load_subscription
from gateway.wire import Api, OAuthClient, Row, Want, WireProblem, WireRefused
from gateway.wire.api import bearer
from gateway.wire.microsoft_graph import moment

KEY = b"the App's key"
NOW = 1_800_000_000.0
WHSEC = "whsec_" + "A" * 43 + "="


@dataclass
class Trigger:
    native_events: tuple[str, ...]


def subscription(grants: Mapping[str, Any], *events: str) -> Subscription:
    return Subscription(
        document={"grants": grants},
        digest="sha256:" + "a" * 64,
        repository="acme/app",
        repository_id=None,
        workflow="x",
        workflow_hash="x",
        event_type="x",
        connector="x",
        triggers={f"t{n}": Trigger((event,)) for n, event in enumerate(events)},  # type: ignore[misc]  # all that is read
        grants=grants,
        filters={},
    )


@dataclass
class Marks:
    kept: dict[str, str] = field(default_factory=dict)

    async def recall(self, name: str) -> str | None:
        return self.kept.get(name)

    async def remember(self, name: str, value: str, ttl_s: int) -> None:
        assert ttl_s > 0
        self.kept[name] = value

    async def forget(self, name: str) -> None:
        self.kept.pop(name, None)


class Stage:
    """The doubles, a receiver that answers Graph's validation as the gateway does, and one wiring."""

    def __init__(self, doubles: Running, session: aiohttp.ClientSession, hooks: str) -> None:
        self.doubles, self.session, self.hooks = doubles, session, hooks
        self.marks = Marks()
        self.now = NOW

    def use(
        self, profile: str, path: str, *subscriptions: Subscription, secret: str = "hook-secret", **more: Any
    ) -> None:
        self.provider = wire.BY_PROFILE[profile]
        self.want = Want("src", f"{self.hooks}/hooks/src", secret, profile == "gitlab-signing", subscriptions)
        credential = more.get("credential", TOKEN)
        self.api = Api(self.session, self.doubles.address + path, self.provider.authorize, credential, (secret,))

    async def look(self) -> list[Row]:
        return await wire.look(self.provider, self.api, self.want, self.marks, KEY, self.now)

    async def wire(self) -> list[Row]:
        return await wire.apply(self.provider, self.api, self.want, await self.look(), self.marks, KEY, self.now)

    async def settled(self) -> None:
        """Wire twice; the second run makes no change, by its calls and by its report."""
        assert all(row.state == "missing" for row in await self.look())
        made = await self.wire()
        assert made
        assert {(row.state, row.done) for row in made} == {("good", "created")}
        self.kept.calls.clear()
        again = await self.wire()
        assert {(row.state, row.done, row.differences) for row in again} == {("good", None, ())}
        assert [row.id for row in again] == [row.id for row in made]
        assert not [call for call in self.kept.calls if call.split()[0] in ("PATCH", "PUT", "DELETE")]

    @property
    def kept(self) -> providers.Kept:
        return self.doubles.double.kept


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async def hook(request: web.Request) -> web.Response:
        return web.Response(text=request.query["validationToken"], content_type="text/plain")

    app = web.Application()
    app.router.add_post("/hooks/{name}", hook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    clock = [NOW]
    async with providers.running(clock=lambda: clock[0]) as doubles, aiohttp.ClientSession() as session:
        made = Stage(doubles, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        made.clock = clock  # type: ignore[attr-defined]  # the doubles' time
        yield made
    await runner.cleanup()


GITHUB = subscription(
    {"repositories": ("acme/app", "acme/web"), "organizations": ("acme",)}, "issues.opened", "issues.closed"
)
TEAMS = subscription(
    {"tenants": ("t",), "teams": ("5555",), "channels": ("19:a@thread.tacv2", "19:b@thread.tacv2")}, "created"
)
SHIPPED = {  # profile -> what the shipped examples lead to
    "github": ["repos/acme/app"],
    "gitlab-signing": ["projects/15"],
    "azure-devops": ["a2222222-2222-4222-8222-222222222222/workitem.updated"],
    "jira": ["site"],
    "linear": ["team/33333333-3333-4333-8333-333333333333"],
    "microsoft-graph": ["/teams/55555555-5555-4555-8555-555555555555/channels/19:triage@thread.tacv2/messages"],
}
EXAMPLES = {
    "github": "github-issue-opened",
    "gitlab-signing": "gitlab-merge-request-opened",
    "azure-devops": "azure-devops-work-item-closed",
    "jira": "jira-issue-closed",
    "linear": "linear-issue-created",
    "microsoft-graph": "teams-channel-message-created",
}
CASES = {
    "github": ("/github", GITHUB, "hook-secret"),
    "gitlab-token": (
        "/gitlab/api/v4",
        subscription({"projects": (15, 16)}, "merge_request.open", "pipeline"),
        "gitlab-secret",
    ),
    "gitlab-signing": ("/gitlab/api/v4", subscription({"projects": (15,)}, "pipeline"), WHSEC),
    "linear": (
        "/linear/graphql",
        subscription({"teams": ("33", "44")}, "Issue.create", "Issue.update"),
        "linear-secret",
    ),
    "jira": (
        "/jira",
        subscription({"projects": ("OPS", "APP")}, "jira:issue_created", "jira:issue_updated"),
        "jira-secret",
    ),
    "azure-devops": (
        "/azure/acme",
        subscription({"projects": ("p1",)}, "workitem.created", "workitem.updated"),
        "u:pw",
    ),
    "microsoft-graph": ("/graph/v1.0", TEAMS, "client-state"),
}


@pytest.mark.parametrize("profile", CASES)
async def test_wiring_twice_changes_nothing_the_second_time(stage: Stage, profile: str) -> None:
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret)
    await stage.settled()


@pytest.mark.parametrize("profile", SHIPPED)
async def test_a_compiled_document_is_wired_where_it_grants(stage: Stage, profile: str) -> None:
    file = data_folder("subscriptions") / "examples" / f"{EXAMPLES[profile]}.json"
    path, _, secret = CASES[profile]
    stage.use(profile, path, load_subscription(file.read_bytes(), file.name), secret=secret)
    await stage.settled()
    assert [row.scope for row in await stage.look()] == SHIPPED[profile]


@pytest.mark.parametrize("profile", CASES)
async def test_a_rotated_secret_is_drift_and_is_set_once(stage: Stage, profile: str) -> None:
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret)
    await stage.wire()
    newer = {"gitlab-signing": "whsec_" + "B" * 43 + "=", "azure-devops": "u:new"}.get(profile, "newer-secret")
    stage.want = replace(stage.want, secret=newer)
    rows = await stage.look()
    assert {(row.state, tuple(d.name for d in row.differences)) for row in rows} == {("drifted", ("secret",))}
    done = "replaced" if profile == "microsoft-graph" else "updated"
    assert {row.done for row in await stage.wire()} == {done}
    assert {row.state for row in await stage.look()} == {"good"}
    kept = json.dumps([stage.kept.hooks, stage.kept.linear, stage.kept.jira, stage.kept.azure, stage.kept.graph])
    assert newer.partition(":")[2] or newer in kept
    report = json.dumps([row.to_json() for row in rows]) + repr((stage.want, stage.api)) + json.dumps(stage.marks.kept)
    assert secret not in report
    assert newer not in report


async def test_a_github_hook_that_was_changed_by_hand_is_reported_and_mended(stage: Stage) -> None:
    stage.use("github", "/github", GITHUB)
    await stage.wire()
    hook = next(iter(stage.kept.hooks["repos/acme/app"].values()))
    hook["events"], hook["active"], hook["config"]["content_type"] = ["push"], False, "form"
    rows = {row.scope: row for row in await stage.look()}
    assert rows["repos/acme/web"].state == "good"
    drift = {d.name: (d.have, d.want) for d in rows["repos/acme/app"].differences}
    assert drift == {"events": (["push"], ["issues"]), "active": (False, True), "content_type": ("form", "json")}
    await stage.wire()
    assert (hook["events"], hook["active"], hook["config"]["secret"]) == (["issues"], True, "hook-secret")


async def test_a_hook_that_somebody_else_made_gets_our_secret_once(stage: Stage) -> None:
    stage.use("github", "/github", subscription({"repositories": ("acme/app",)}, "issues.opened"))
    await stage.api.call(
        "POST",
        "/repos/acme/app/hooks",
        {"name": "web", "events": ["issues"], "config": {"url": stage.want.url, "content_type": "json"}},
    )
    (row,) = await stage.look()
    assert (row.state, row.differences[0].have) == (
        "good",
        "unknown",
    )  # nothing proves drift, nothing proves the secret
    assert [row.done for row in await stage.wire()] == ["updated"]
    assert [row.differences for row in await stage.look()] == [()]
    hook = next(iter(stage.kept.hooks["repos/acme/app"].values()))
    assert hook["config"]["secret"] == "hook-secret"


async def test_only_organizations_are_wired_where_no_repository_is_granted(stage: Stage) -> None:
    stage.use("github", "/github", subscription({"organizations": ("acme",)}, "projects_v2_item.edited"))
    await stage.settled()
    assert list(stage.kept.hooks) == ["orgs/acme"]
    stage.use("github", "/github", subscription({}, "issues.opened"))
    with pytest.raises(WireProblem, match="recompile"):
        await stage.look()


async def test_what_nobody_wants_any_more_is_surplus_and_left_alone(stage: Stage) -> None:
    stage.use("linear", "/linear/graphql", CASES["linear"][1])
    await stage.wire()
    stage.use("linear", "/linear/graphql", subscription({"teams": ("33",)}, "Issue.create"))
    rows = {row.scope: row.state for row in await stage.wire()}
    assert rows == {"team/33": "good", "team/44": "surplus"}
    assert len(stage.kept.linear) == 2


async def test_a_second_hook_for_one_scope_is_surplus(stage: Stage) -> None:
    stage.use("jira", "/jira", CASES["jira"][1])
    await stage.wire()
    stage.kept.jira[999] = {**next(iter(stage.kept.jira.values())), "id": 999, "events": ["x"]}
    assert [row.state for row in await stage.look()] == ["good", "surplus"]


@pytest.mark.parametrize("status", ["temporarily_disabled", "disabled"])
async def test_a_gitlab_hook_that_was_switched_off_is_drift_and_not_set(stage: Stage, status: str) -> None:
    """Only a test answered 2xx switches it on, and that could start a workflow: so it is told."""
    stage.use("gitlab-token", "/gitlab/api/v4", subscription({"projects": (15,)}, "pipeline"))
    await stage.wire()
    (hook,) = stage.kept.hooks["projects/15"].values()
    hook["alert_status"] = status
    (row,) = await stage.look()
    assert (row.state, [d.name for d in row.differences]) == ("drifted", ["alert_status"])
    assert not wire.to_do(stage.provider, row)
    stage.kept.calls.clear()
    assert [row.done for row in await stage.wire()] == [None]
    assert not [call for call in stage.kept.calls if not call.startswith("GET")]
    assert "Test" in stage.provider.beyond["alert_status"]
    hook["push_events"] = True  # what can be set beside it is
    assert [row.done for row in await stage.wire()] == ["updated"]


async def test_an_azure_subscription_on_probation_is_drift(stage: Stage) -> None:
    stage.use("azure-devops", "/azure/acme", CASES["azure-devops"][1], secret="u:pw")
    await stage.wire()
    row = next(iter(stage.kept.azure.values()))
    row["status"] = "disabledBySystem"
    assert sorted(row.state for row in await stage.look()) == ["drifted", "good"]
    await stage.wire()
    assert {row["status"] for row in stage.kept.azure.values()} == {"enabled"}
    assert {row["consumerInputs"]["basicAuthPassword"] for row in stage.kept.azure.values()} == {"pw"}


async def test_graph_subscriptions_are_renewed_at_two_thirds_of_their_life(stage: Stage) -> None:
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS)
    made = await stage.wire()
    life = made[0].expires - NOW  # type: ignore[operator]
    stage.now = stage.clock[0] = NOW + life * 0.6  # type: ignore[attr-defined]
    assert {row.state for row in await stage.look()} == {"good"}
    stage.now = stage.clock[0] = NOW + life * 0.67  # type: ignore[attr-defined]
    assert {row.state for row in await stage.look()} == {"expiring"}
    renewed = await stage.wire()
    assert {(row.state, row.done) for row in renewed} == {("good", "renewed")}
    assert [row.id for row in renewed] == [row.id for row in made]
    assert {row.state for row in await stage.look()} == {"good"}


async def test_a_graph_subscription_without_lifecycle_address_is_made_anew(stage: Stage) -> None:
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS)
    made = await stage.wire()
    stage.kept.graph[made[0].id]["lifecycleNotificationUrl"] = None  # type: ignore[index]
    again = await stage.wire()
    assert again[0].id != made[0].id
    assert again[1].id == made[1].id
    assert {row["lifecycleNotificationUrl"] for row in stage.kept.graph.values()} == {stage.want.url}
    assert len(stage.kept.graph) == 2


async def test_a_graph_subscription_to_an_old_address_is_moved(stage: Stage) -> None:
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS)
    made = await stage.wire()
    for row in stage.kept.graph.values():
        row["notificationUrl"] = "https://old.example/hooks/src"
    assert {row.state for row in await stage.look()} == {"drifted"}
    assert [row.id for row in await stage.wire()] == [row.id for row in made]
    assert {row["notificationUrl"] for row in stage.kept.graph.values()} == {stage.want.url}


async def test_graph_refuses_an_address_that_does_not_answer_its_validation(stage: Stage) -> None:
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS)
    stage.want = replace(stage.want, url=stage.hooks + "/elsewhere")
    with pytest.raises(WireRefused, match="validation request failed"):
        await stage.wire()
    two = subscription({"teams": ("a", "b"), "channels": ("c",)}, "created")
    stage.use("microsoft-graph", "/graph/v1.0", two)
    with pytest.raises(WireProblem, match="one subscription a team"):
        await stage.look()


async def test_client_credentials_are_fetched_once_and_never_shown(stage: Stage) -> None:
    client = OAuthClient(f"{stage.doubles.address}/oauth/token", *CLIENT, "https://graph.microsoft.com/.default")
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS, credential=client)
    await stage.settled()
    assert stage.kept.tokens == 1
    assert CLIENT[1] not in repr(client)
    wrong = OAuthClient(client.token_url, CLIENT[0], "wrong-secret", "s")
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS, credential=wrong)
    with pytest.raises(WireRefused, match="AADSTS7000215") as caught:
        await stage.look()
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("profile", CASES)
async def test_a_wrong_token_is_a_refusal_that_shows_no_secret(stage: Stage, profile: str) -> None:
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret, credential="wrong-token")
    with pytest.raises(WireRefused) as caught:
        await stage.wire()
    assert caught.value.status == 401
    assert "wrong-token" not in str(caught.value)


async def test_a_provider_that_is_away_or_busy_is_unavailable(stage: Stage) -> None:
    stage.use("github", "/github", GITHUB)
    for status in (429, 503):
        stage.doubles.double.fault(status)
        with pytest.raises(Unavailable):
            await stage.look()
    stage.doubles.double.fault(302)
    with pytest.raises(WireRefused):
        await stage.look()
    stage.api = Api(stage.session, "http://127.0.0.1:1", stage.provider.authorize, TOKEN)
    with pytest.raises(Unavailable):
        await stage.look()


async def test_a_refusal_that_repeats_our_secret_does_not(stage: Stage) -> None:
    stage.use("github", "/github", GITHUB, secret="planted-secret")
    stage.doubles.double.fault(422, {"message": "config.secret planted-secret is too short"})
    with pytest.raises(WireRefused) as caught:
        await stage.look()
    assert "planted-secret" not in str(caught.value)


async def test_links_and_events_that_lead_nowhere_are_refused(stage: Stage) -> None:
    stage.use("github", "/github", GITHUB)
    with pytest.raises(WireRefused, match="outside"):
        stage.api.address("https://elsewhere.example/subscriptions")
    stage.use("gitlab-token", "/gitlab/api/v4", subscription({"projects": (1,)}, "emoji.award"))
    with pytest.raises(WireProblem, match="no switch"):
        await stage.look()
    for profile in ("linear", "jira", "azure-devops"):
        stage.use(profile, CASES[profile][0], subscription({}, "x"))
        with pytest.raises(WireProblem):
            await stage.look()


@pytest.mark.parametrize("profile", [name for name in CASES if name != "microsoft-graph"])
async def test_a_hook_of_ours_whose_address_was_changed_is_mended_and_not_doubled(stage: Stage, profile: str) -> None:
    """Be it changed at the provider, or `server.public_url` here."""
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret)
    made = await stage.wire()
    stage.want = replace(stage.want, url="https://new.example/hooks/src")
    rows = await stage.look()
    assert {(row.state, tuple(d.name for d in row.differences)) for row in rows} == {("drifted", ("url",))}
    assert [row.id for row in await stage.wire()] == [row.id for row in made]
    assert {row.state for row in await stage.look()} == {"good"}


@pytest.mark.parametrize("cut", ["before the new one", "before its mark", "before the old one goes", "after"])
async def test_replacing_that_is_cut_off_leaves_no_hook_behind(stage: Stage, cut: str) -> None:
    """Graph fixes a subscription's secret: another takes its place. A run may be killed between any two of its calls."""
    stage.use("microsoft-graph", "/graph/v1.0", subscription({"teams": ("5",), "channels": ("19:a",)}, "created"))
    await stage.wire()
    stage.want = replace(stage.want, secret="newer-secret")
    whole, marks, provider = stage.api, stage.marks, stage.provider

    async def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    if cut == "before the new one":
        stage.provider = replace(provider, create=killed)
    elif cut == "before its mark":
        remember = marks.remember

        async def unmarked(name: str, value: str, ttl_s: int) -> None:
            await (killed() if name.startswith("wire:") else remember(name, value, ttl_s))

        marks.remember = unmarked  # type: ignore[method-assign]
    elif cut == "before the old one goes":
        stage.provider = replace(provider, remove=killed)
    else:
        marks.forget = killed  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        await stage.wire()
    stage.provider, stage.api = provider, whole
    stage.marks = Marks(marks.kept)
    await stage.wire()
    await stage.wire()
    assert {row["clientState"] for row in stage.kept.graph.values()} == {"newer-secret"}
    assert len(stage.kept.graph) == 1
    assert [(row.state, row.done) for row in await stage.wire()] == [("good", None)]


ANSWERS: list[Any] = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"7",
    b'"text"',
    b"<html>sorry</html>",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"value": [{"id": null}], "data": {"webhooks": {"nodes": [{}], "pageInfo": {}}}}',
    b'{"value": null, "data": null}',
    b'{"errors": [7]}',
    b'[{"config": "x", "url": 5, "events": 3}]',
    b"[null]",
]


class Hostile:
    """An API that answers whatever it is told, and remembers who brought the token."""

    def __init__(self) -> None:
        self.status, self.body, self.headers, self.seen = 200, b"", {}, 0  # type: ignore[var-annotated]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen += 1
        if self.status == 0:  # cut in the middle of a body
            response = web.StreamResponse(headers={"content-length": "1000"})
            await response.prepare(request)
            await response.write(b"[{")
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@pytest.fixture
async def hostile() -> AsyncIterator[tuple[Hostile, str]]:
    answers, app = Hostile(), web.Application()
    app.router.add_route("*", "/{rest:.*}", answers.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield answers, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("profile", CASES)
async def test_answers_of_any_kind_are_refusals_and_never_a_defect(
    stage: Stage, hostile: tuple[Hostile, str], profile: str
) -> None:
    answers, address = hostile
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret)
    stage.api = Api(stage.session, address, stage.provider.authorize, TOKEN, (secret,))
    for body in ANSWERS:
        answers.body = body
        try:
            rows = await stage.look()
        except WireRefused:
            continue
        assert {row.state for row in rows} == {"missing"}, body  # an empty list is one
        with pytest.raises(WireRefused):
            await stage.wire()
    for status in (401, 403, 404, 410, 301, 302, 307, 308):
        answers.status, answers.headers = status, {"location": f"{address}/elsewhere"}
        seen = answers.seen
        with pytest.raises(WireRefused, match=str(status)):
            await stage.look()
        assert answers.seen == seen + 1, "a redirect was followed"
    for status in (429, 500, 502, 503, 504, 0):
        answers.status, answers.headers = status, {}
        with pytest.raises(Unavailable):
            await stage.look()


ENDLESS = {
    "github": b"[" + b",".join([b'{"id": 1, "events": [], "active": true, "config": {}}'] * 100) + b"]",
    "gitlab-token": b"[" + b",".join([b'{"id": 1, "url": "https://x.example"}'] * 100) + b"]",
    "linear": b'{"data": {"webhooks": {"nodes": [], "pageInfo": {"hasNextPage": true, "endCursor": "x"}}}}',
    "microsoft-graph": b'{"value": [], "@odata.nextLink": "/subscriptions"}',
}


@pytest.mark.parametrize("profile", ENDLESS)
async def test_a_list_without_end_is_refused(stage: Stage, hostile: tuple[Hostile, str], profile: str) -> None:
    answers, address = hostile
    stage.use(profile, *CASES[profile][:2])
    stage.api = Api(stage.session, address, stage.provider.authorize, TOKEN)
    answers.body = ENDLESS[profile]
    with pytest.raises(WireRefused, match="more than 200 pages"):
        await stage.look()
    assert answers.seen <= 201


async def test_every_page_of_many_hooks_is_read(stage: Stage) -> None:
    """Ours stands behind 250 of others: it is found, and no second one is made."""
    stage.use("github", "/github", subscription({"repositories": ("acme/app",)}, "issues.opened"))
    await stage.wire()
    hooks = stage.kept.hooks["repos/acme/app"]
    ((ident, ours),) = hooks.items()
    hooks.clear()
    for number in range(250):
        hooks[number + 1000] = {
            **ours,
            "id": number + 1000,
            "config": {**ours["config"], "url": "https://other.example"},
        }
    hooks[ident] = ours
    assert [(row.state, row.id) for row in await stage.look()] == [("good", str(ident))]


@pytest.mark.parametrize("link", ["@127.0.0.1:1/x", ".elsewhere.example/x", "http://127.0.0.1:1/x", "https:x", "x"])
async def test_no_link_takes_the_token_to_another_host(stage: Stage, hostile: tuple[Hostile, str], link: str) -> None:
    answers, address = hostile
    stage.use("microsoft-graph", "/graph/v1.0", TEAMS)
    stage.api = Api(stage.session, address, stage.provider.authorize, TOKEN)
    answers.body = json.dumps({"value": [], "@odata.nextLink": link}).encode()
    with pytest.raises(WireRefused, match="outside"):
        await stage.look()


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("linear", {"errors": [{"message": "got invalid value planted-secret \x1b[2J in field secret"}]}),
        ("github", {"message": "planted-secret \x1b[2J"}),
        ("jira", {"errorMessages": ["the password is planted-secret \x1b[2J"]}),
        ("azure-devops", {"message": "Basic dTpwbGFudGVkLXNlY3JldA== of planted-secret \x1b[2J"}),
        ("microsoft-graph", {"error": {"code": "x", "message": "planted-secret \x1b[2J"}}),
    ],
)
async def test_what_a_provider_says_is_shown_without_secrets_and_controls(
    stage: Stage, hostile: tuple[Hostile, str], profile: str, said: Any
) -> None:
    answers, address = hostile
    secret = "u:planted-secret" if profile == "azure-devops" else "planted-secret"
    stage.use(profile, "", CASES[profile][1], secret=secret)
    authorize = (lambda _: {"Authorization": "Basic dTpwbGFudGVkLXNlY3JldA=="}) if ":" in secret else bearer
    stage.api = Api(stage.session, address, authorize, "planted-token", (secret,))
    answers.status, answers.body = (200 if profile == "linear" else 422), json.dumps(said).encode()
    with pytest.raises(WireRefused) as caught:
        await stage.look()
    text = str(caught.value)
    assert "***" in text
    assert not {word for word in ("planted-secret", "dTpwbGFudGVkLXNlY3JldA", "\x1b") if word in text}


def test_times_of_graph() -> None:
    assert moment("2026-11-30T07:40:44.1234567Z") == moment("2026-11-30T07:40:44.123456Z")
    assert moment("1970-01-01T00:00:01Z") == 1.0
    with pytest.raises(WireRefused):
        moment("soon")


@pytest.mark.parametrize("profile", CASES)
async def test_looking_writes_nothing(stage: Stage, profile: str) -> None:
    """Neither at the provider nor in the store, whatever is found: nothing, what is good, what has drifted."""
    path, wanted, secret = CASES[profile]
    stage.use(profile, path, wanted, secret=secret)

    def state() -> str:
        kept = stage.kept
        hooks = {scope: rows for scope, rows in kept.hooks.items() if rows}
        return json.dumps([hooks, kept.linear, kept.jira, kept.azure, kept.graph, stage.marks.kept])

    async def unchanged() -> None:
        before = state()
        stage.kept.calls.clear()
        await stage.look()
        assert state() == before
        if profile != "linear":  # whose every call is a POST
            assert {call.partition(" ")[0] for call in stage.kept.calls} == {"GET"}

    await unchanged()
    await stage.wire()
    await unchanged()
    stage.want = replace(stage.want, secret={"gitlab-signing": WHSEC[:-2] + "A="}.get(profile, "u:another-secret"))
    await unchanged()
