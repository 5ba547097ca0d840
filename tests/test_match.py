"""Matching: per trigger a firing body, near misses and hostile variants, as tables of edits to one body."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gateway import envelope, families, strict_json
from gateway.compile import Target, compile_documents, encode
from gateway.declarations import load_connector
from gateway.errors import Rejection
from gateway.events import Event
from gateway.frontmatter import load_yaml
from gateway.match import Considered, Match, match, match_trigger, most_telling
from gateway.pointers import parse
from gateway.profiles import Source, load_profile
from gateway.selections import Import
from gateway.structs import replace
from gateway.subscriptions import Enrolled, Index, build_index, load_subscription, seal

ROOT = Path(__file__).parent.parent
TARGET = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64, 1)
ORG, TEAM = "11111111-1111-4111-8111-111111111111", "33333333-3333-4333-8333-333333333333"
GONE = object()


def documents(on: str, connector: str | None = None, bindings: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    imports = []
    if connector:
        path = ROOT / "subscriptions/connectors" / f"{connector}.md"
        imports = [Import(load_connector(path.read_text(), path.name), bindings or {})]
    return list(compile_documents(load_yaml(f"on: {{gateway-dispatch: {on}}}", "c.md"), imports, TARGET))


def enrolled(document: dict[str, Any], source: str = "s", url_template: str | None = None) -> Enrolled:
    return Enrolled(load_subscription(encode(document), "d.json"), source, 1, url_template)


def source(profile: str, **identity: tuple[str, ...]) -> Source:
    return Source("s", load_profile(ROOT / "profiles" / f"{profile}.yaml"), identity)


def event(name: str, body: Any, **facts: str) -> Event:
    return Event(name, body, {"event": name, **facts}, ("id:1",), 60, None)


def edit(body: Any, edits: dict[str, Any]) -> Any:
    body = copy.deepcopy(body)
    for pointer, value in edits.items():
        *parents, last = parse(pointer)
        at = body
        for token in parents:
            at = at[int(token)] if isinstance(at, list) else at.setdefault(token, {})
        if value is GONE:
            at.pop(last, None)
        else:
            at[last] = value
    return body


def run(index: Index, profile: str, one: Event) -> tuple[tuple[Match, ...], tuple[Considered, ...]]:
    result = match(one, source(profile), index)
    for found in result[0]:
        envelope.build("sha256:" + "0" * 64, "e", "01890a5d-ac96-774b-bcce-b302099a8057", [found.event])
    return result


LINEAR_BODY = {
    "action": "create",
    "type": "Issue",
    "organizationId": ORG,
    "url": "https://linear.app/acme/issue/APP-7/a-slug",
    "data": {
        "id": "i-1",
        "identifier": "APP-7",
        "number": 7,
        "teamId": TEAM,
        "team": {"id": TEAM, "key": "APP"},
        "projectId": "p-1",
        "state": {"type": "started"},
        "labelIds": ["a"],
    },
}
LINEAR_URL = "https://linear.app/acme/issue/APP-7"
LINEAR = {"workspace": "acme", "organizations": [ORG], "teams": [TEAM]}
SLACK_BODY = {
    "type": "event_callback",
    "team_id": "T1",
    "api_app_id": "A1",
    "event": {
        "type": "app_mention",
        "channel": "C1",
        "ts": "1700000000.000200",
        "thread_ts": "1700000000.000100",
        "user": "U1",
        "team": "T1",
    },
    "authorizations": [{"is_bot": True, "user_id": "UBOT", "team_id": "T1"}],
}
SLACK_URL = "https://acme.slack.com/archives/C1/p1700000000000200?thread_ts=1700000000.000100&cid=C1"
SLACK = {
    "origin": "https://acme.slack.com",
    "workspaces": ["T1"],
    "apps": ["A1"],
    "channels": ["C1"],
    "threads": ["1700000000.000100"],
}
CHANNEL = "19:abc@thread.tacv2"
RESOURCE = f"teams('t1')/channels('{CHANNEL}')/messages('1700')"
TEAMS_BODY = {"changeType": "created", "resource": RESOURCE, "resourceData": {"@odata.id": RESOURCE, "id": "1700"}}
TEAMS_URL = "https://teams.microsoft.com/l/message/19%3Aabc%40thread.tacv2/1700?tenantId=tenant-1&groupId=t1&parentMessageId=1700"
TEAMS = {"tenants": ["tenant-1"], "teams": ["t1"], "channels": [CHANNEL]}
CONFLUENCE_BODY = {
    "eventType": "avi:confluence:created:page",
    "content": {"id": "98", "type": "page", "space": {"id": 65536, "key": "DOC"}},
}
CONFLUENCE_URL = "https://acme.atlassian.net/wiki/spaces/DOC/pages/98"
CONFLUENCE = {"site": "acme", "clouds": ["cloud-1"], "spaces": ["65536"]}
GITLAB_BODY = {
    "object_kind": "merge_request",
    "project": {"id": 15, "path_with_namespace": "g/sub/p", "web_url": "https://gitlab.com/g/sub/p"},
    "object_attributes": {
        "id": 9,
        "iid": 3,
        "action": "open",
        "target_project_id": 15,
        "url": "https://gitlab.com/g/sub/p/-/merge_requests/3",
    },
}
GITLAB_URL = "https://gitlab.com/g/sub/p/-/merge_requests/3"
PIPELINE_BODY = {
    "object_kind": "pipeline",
    "project": {"id": 15, "path_with_namespace": "g/p", "web_url": "https://gitlab.com/g/p"},
    "object_attributes": {"id": 31, "status": "failed", "url": "https://gitlab.com/g/p/-/pipelines/31"},
}

JIRA = {"site": "https://acme.atlassian.net", "projects": ["APP"]}
JIRA_BODY = {
    "webhookEvent": "jira:issue_updated",
    "issue": {
        "id": "10002",
        "key": "APP-7",
        "self": "https://acme.atlassian.net/rest/api/2/10002",
        "fields": {"project": {"key": "APP"}},
    },
    "changelog": {"items": [{"field": "resolution", "fieldtype": "jira", "fromString": None, "toString": "Done"}]},
}
JIRA_URL = "https://acme.atlassian.net/rest/api/2/issue/10002"
ADO = {"organization": "acme", "collections": ["c"], "projects": ["p"], "closed-states": ["Done", "Removed"]}
ADO_BODY = {
    "eventType": "workitem.updated",
    "resource": {
        "workItemId": 5,
        "url": "https://acme.visualstudio.com/DefaultCollection/_apis/wit/workItems/5/updates/2",
        "fields": {
            "System.State": {"oldValue": "New", "newValue": "Done"},
            "System.Tags": {"oldValue": "a", "newValue": "a; b"},
        },
        "revision": {"id": 5, "fields": {"System.State": "Done"}},
    },
    "resourceContainers": {"collection": {"id": "c"}, "project": {"id": "p"}},
}
ADO_URL = "https://dev.azure.com/acme/p/_apis/wit/workItems/5"
SENTRY = {"organization": "acme", "projects": ["7"]}
SENTRY_BODY = {
    "action": "created",
    "data": {
        "issue": {
            "id": "12",
            "issueCategory": "error",
            "project": {"id": "7"},
            "web_url": "https://acme.sentry.io/issues/12/",
        },
    },
}
ALERT_BODY = {
    "action": "triggered",
    "data": {
        "event": {
            "project": 7,
            "issue_url": "https://sentry.io/api/0/issues/12/",
            "web_url": "https://sentry.io/organizations/acme/issues/12/events/ab/",
        },
    },
}
SENTRY_URL = "https://acme.sentry.io/issues/12/"
SERVICENOW = {"instances": ["acme.service-now.com"], "records": ["r1"]}
SERVICENOW_BODY = {
    "type": "record.updated",
    "data": {"instance": "acme.service-now.com", "table": "incident", "sys_id": "r1", "sys_mod_count": 3},
}

# trigger -> (selection, connector, bindings, profile, event, facts, body, url, filters, edits that still fire,
#             edits that do not, with test and pointer)
Case = tuple[str, dict[str, Any], str, str, dict[str, str], Any, str, dict[str, str], list[Any], list[Any]]
CLOSING = {
    "/action": "update",
    "/data/state/type": "completed",
    "/data/completedAt": "t",
    "/updatedFrom/completedAt": None,
}
CASES: dict[str, Case] = {
    "linear-issue-created": (
        "{linear: [issue-created]}",
        LINEAR,
        "linear",
        "Issue.create",
        {},
        LINEAR_BODY,
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [
            {"/url": GONE},
            {"/url": None},
            {"/data/team": GONE},
            {"/data/projectId": None},
            {"/url": LINEAR_URL + "/?x=1"},
        ],
        [
            ({"/data/teamId": "other"}, "grant", "/data/teamId"),
            ({"/data/teamId": TEAM + " ", "/data/team": GONE}, "grant", "/data/teamId"),
            ({"/organizationId": [ORG]}, "grant", "/organizationId"),
            ({"/data/team/id": "other"}, "when:agree", "/data/teamId, /data/team/id"),
            ({"/action": "update"}, "match", "/action"),
            ({"/type": "Comment"}, "match", "/type"),
            ({"/url": "https://linear.app/acme/issue/APP-8/x"}, "url:path", "/url"),
            ({"/url": "https://linear.app.evil.example/acme/issue/APP-7"}, "url:origin", "/url"),
            ({"/url": 7}, "url:type", "/url"),
            ({"/data/number": 8}, "url:path", "/data/team/key, /data/number"),
            ({"/data/team/key": "OTHER"}, "url:path", "/data/team/key, /data/number"),
            ({"/data/identifier": ".."}, "url:unfit", "/data/identifier"),
            ({"/data/identifier": "\ud800"}, "when:present", "/data/identifier"),
            ({"/data/identifier": 7}, "types", "/data/identifier"),
        ],
    ),
    "linear-issue-closed": (
        "{linear: [issue-closed]}",
        LINEAR,
        "linear",
        "Issue.update",
        {},
        edit(LINEAR_BODY, CLOSING),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [
            {"/data/state/type": "duplicate"},
            {"/updatedFrom/canceledAt": None},
            {"/updatedFrom": {"canceledAt": None}, "/data/canceledAt": "t"},
        ],
        [
            ({"/updatedFrom/completedAt": GONE}, "when:null", "/updatedFrom/completedAt"),
            ({"/updatedFrom/completedAt": "t0"}, "when:null", "/updatedFrom/completedAt"),
            ({"/data/completedAt": None}, "when:present", "/data/completedAt"),
            ({"/updatedFrom/canceledAt": "t0"}, "when:null", "/updatedFrom/canceledAt"),
            ({"/data/state/type": "started"}, "when:in", "/data/state/type"),
            ({"/updatedFrom": {"stateId": "s"}}, "when:null", "/updatedFrom/completedAt"),
        ],
    ),
    "linear-issue-reopened": (
        "{linear: [issue-reopened]}",
        LINEAR,
        "linear",
        "Issue.update",
        {},
        edit(LINEAR_BODY, {"/action": "update", "/updatedFrom/completedAt": "t0", "/data/completedAt": None}),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [{"/updatedFrom": {"canceledAt": "t0"}}],
        [
            ({"/data/state/type": "canceled"}, "when:in", "/data/state/type"),
            ({"/updatedFrom/completedAt": None}, "when:present", "/updatedFrom/completedAt"),
            ({"/updatedFrom": {"stateId": "s"}}, "when:present", "/updatedFrom/completedAt"),
        ],
    ),
    "linear-issue-labeled": (
        "{linear: [issue-labeled]}",
        LINEAR,
        "linear",
        "Issue.update",
        {},
        edit(LINEAR_BODY, {"/action": "update", "/updatedFrom/labelIds": []}),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [{"/updatedFrom/labelIds": None}, {"/updatedFrom/labelIds": ["b"], "/data/labelIds": ["b", "a"]}],
        [
            ({"/updatedFrom/labelIds": ["a", "b"]}, "when:added", "/updatedFrom/labelIds, /data/labelIds"),
            ({"/updatedFrom/labelIds": ["b"]}, "when:added", "/updatedFrom/labelIds, /data/labelIds"),
            ({"/updatedFrom": {}}, "when:added", "/updatedFrom/labelIds"),
            ({"/data/labelIds": ["a", "a"]}, "when:added", "/data/labelIds"),
        ],
    ),
    "linear-issue-unlabeled": (
        "{linear: [issue-unlabeled]}",
        LINEAR,
        "linear",
        "Issue.update",
        {},
        edit(LINEAR_BODY, {"/action": "update", "/updatedFrom/labelIds": ["a", "b"]}),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [],
        [({"/updatedFrom/labelIds": []}, "when:removed", "/updatedFrom/labelIds, /data/labelIds")],
    ),
    "linear-issue-removed": (
        "{linear: [issue-removed]}",
        LINEAR,
        "linear",
        "Issue.remove",
        {},
        edit(LINEAR_BODY, {"/action": "remove", "/url": GONE, "/data/identifier": GONE}),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM},
        [],
        [({"/data/number": 7.0}, "types", "/data/number"), ({"/data/number": "7"}, "types", "/data/number")],
    ),
    "linear-issue-updated": (
        "{linear: {triggers: [issue-updated], filters: {projects: [p-1]}}}",
        LINEAR,
        "linear",
        "Issue.update",
        {},
        edit(LINEAR_BODY, {"/action": "update"}),
        LINEAR_URL,
        {"organizations": ORG, "teams": TEAM, "projects": "p-1"},
        [],
        [
            ({"/data/projectId": "p-2"}, "filters", "/data/projectId"),
            ({"/data/projectId": None}, "types", "/data/projectId"),
            ({"/data/projectId": GONE}, "types", "/data/projectId"),
        ],
    ),
    "slack-threaded-app-mention": (
        "{slack: [threaded-app-mention]}",
        SLACK,
        "slack",
        "app_mention",
        {},
        SLACK_BODY,
        SLACK_URL,
        {"workspaces": "T1", "apps": "A1", "channels": "C1", "threads": "1700000000.000100"},
        [{"/authorizations": GONE}, {"/authorizations": None}, {"/authorizations": []}, {"/event/edited": {}}],
        [
            ({"/event/thread_ts": GONE}, "grant", "/event/thread_ts"),
            ({"/event/ts": "1700000000.000100"}, "when:differ", "/event/thread_ts, /event/ts"),
            ({"/event/bot_id": "B1"}, "when:not-present", "/event/bot_id"),
            ({"/event/bot_id": None}, "when:present", "/event/bot_id"),
            ({"/event/bot_profile": {}}, "when:not-present", "/event/bot_profile"),
            ({"/event/subtype": "bot_message"}, "when:not-present", "/event/subtype"),
            ({"/event/user_team": "T2"}, "when:agree", "/team_id, /event/user_team"),
            ({"/event/source_team": "T2"}, "when:agree", "/team_id, /event/source_team"),
            ({"/event/user": "UBOT"}, "when:not-present", "/authorizations"),
            ({"/event/channel": "C2"}, "grant", "/event/channel"),
            ({"/event/ts": "17x"}, "url:unfit", "/event/ts"),
            ({"/event/type": "message"}, "match", "/event/type"),
        ],
    ),
    "teams-channel-message-created": (
        "{teams: [channel-message-created]}",
        TEAMS,
        "microsoft-graph",
        "created",
        {"tenant": "tenant-1", "subscription": "sub"},
        TEAMS_BODY,
        TEAMS_URL,
        {"tenants": "tenant-1", "teams": "t1", "channels": CHANNEL},
        [{"/resourceData": GONE}, {"/resourceData": None}, {"/resourceData/@odata.id": GONE}],
        [
            ({"/resource": RESOURCE + "/replies('1')"}, "types", "/resource"),
            ({"/resource": f"teams('t2')/channels('{CHANNEL}')/messages('1700')"}, "when:agree", "team, sent-team"),
            ({"/resourceData/@odata.id": RESOURCE + "/replies('1')"}, "when:not-present", "/resourceData"),
            ({"/resource": GONE, "/resourceData": GONE}, "when:agree", "team"),
            ({"/changeType": "updated"}, "match", "/changeType"),
            ({"/resource": RESOURCE.replace("t1", "t2"), "/resourceData": GONE}, "resources", "/resource"),
        ],
    ),
    "confluence-page-created": (
        "{confluence: [page-created]}",
        CONFLUENCE,
        "forge",
        "avi:confluence:created:page",
        {"cloud": "cloud-1"},
        CONFLUENCE_BODY,
        CONFLUENCE_URL,
        {"clouds": "cloud-1", "spaces": "65536"},
        [
            {"/content/space/id": "65536"},
            {"/selfGenerated": False},
            {"/payload": {"retryContext": {}}},
            {"/payload": CONFLUENCE_BODY, "/eventType": GONE, "/content": GONE},
        ],
        [
            ({"/content/space/id": 1}, "grant", "/content/space/id"),
            ({"/content/space/id": 65536.0}, "grant", None),
            ({"/selfGenerated": True}, "when:not-present", "/selfGenerated"),
            ({"/content/type": "blogpost"}, "match", "/content/type"),
            ({"/payload": CONFLUENCE_BODY}, "when:not-present", "/payload"),
            ({"/content/id": ".."}, "url:unfit", "/content/id"),
        ],
    ),
    "gitlab-merge-request-opened": (
        "{gitlab: [merge-request-opened]}",
        {"projects": ["15"]},
        "gitlab-token",
        "merge_request.open",
        {},
        GITLAB_BODY,
        GITLAB_URL,
        {"projects": "15"},
        [
            {"/object_attributes/url": "https://gitlab.com/g/sub/p/merge_requests/3"},
            {"/object_attributes/url": GONE, "/project/web_url": GONE},
        ],
        [
            ({"/project/id": "15"}, "grant", "/project/id"),
            ({"/project/id": 15.0}, "grant", "/project/id"),
            ({"/project/id": True}, "grant", "/project/id"),
            ({"/object_attributes/target_project_id": 16}, "when:agree", None),
            ({"/object_attributes/action": "merge"}, "match", "/object_attributes/action"),
            ({"/project/path_with_namespace": "g/../p"}, "url:unfit", "/project/path_with_namespace"),
            ({"/project/web_url": "https://gitlab.com/g/other"}, "url:path", "/project/web_url"),
            ({"/object_attributes/iid": "3"}, "types", "/object_attributes/iid"),
        ],
    ),
    "gitlab-pipeline-updated": (
        "{gitlab: {triggers: [pipeline-updated], filters: {statuses: [failed]}}}",
        {"projects": ["15"]},
        "gitlab-signing",
        "pipeline",
        {},
        PIPELINE_BODY,
        "https://gitlab.com/g/p/-/pipelines/31",
        {"projects": "15", "statuses": "failed"},
        [],
        [
            ({"/object_attributes/status": "success"}, "filters", "/object_attributes/status"),
            ({"/object_attributes/status": GONE}, "types", "/object_attributes/status"),
        ],
    ),
    "jira-issue-closed": (
        "{jira: [issue-closed]}",
        JIRA,
        "jira",
        "jira:issue_updated",
        {},
        JIRA_BODY,
        JIRA_URL,
        {"projects": "APP"},
        [
            {"/issue/self": "https://acme.atlassian.net/rest/api/3/issue/10002"},
            {"/changelog/items/0/from": None},
            {"/issue/self": GONE},
        ],
        [
            ({"/changelog/items/0/fieldtype": "custom"}, "when:one", "/changelog/items"),
            ({"/changelog/items/0/fromString": "Done"}, "when:null", "/changelog/items/*/fromString"),
            ({"/changelog/items/0/toString": None}, "when:present", "/changelog/items/*/toString"),
            ({"/changelog": GONE}, "when:one", "/changelog/items"),
            ({"/issue/key": "OTHER-7"}, "when:agree", "prefix, project"),
            ({"/issue/key": "APP"}, "when:agree", "prefix"),
            ({"/issue/self": "https://evil.example/rest/api/2/10002"}, "url:origin", "/issue/self"),
            ({"/issue/id": 10002}, "types", "/issue/id"),
        ],
    ),
    "jira-issue-labeled": (
        "{jira: [issue-labeled]}",
        JIRA,
        "jira",
        "jira:issue_updated",
        {},
        edit(JIRA_BODY, {"/changelog/items/0/field": "labels", "/changelog/items/0/fromString": ""}),
        JIRA_URL,
        {"projects": "APP"},
        [{"/changelog/items/0/fromString": None}],
        [({"/changelog/items/0/toString": "a b"}, "when:added", None)],
    ),
    "azure-devops-work-item-closed": (
        "{azure-devops: [work-item-closed]}",
        ADO,
        "azure-devops",
        "workitem.updated",
        {},
        ADO_BODY,
        ADO_URL,
        {"collections": "c", "projects": "p"},
        [{"/resource/url": ADO_URL + "/updates/2"}, {"/resource/url": GONE}],
        [
            ({"/resource/fields/System.State/oldValue": "Removed"}, "when:not-in", None),
            ({"/resource/fields/System.State/oldValue": GONE}, "when:in", None),
            ({"/resource/revision/fields/System.State": "New"}, "when:agree", None),
            ({"/resource/revision/id": 6}, "when:agree", None),
            ({"/resourceContainers/project/id": "q"}, "grant", "/resourceContainers/project/id"),
            ({"/resource/url": "https://other.visualstudio.com/_apis/wit/workItems/5"}, "url:origin", "/resource/url"),
        ],
    ),
    "azure-devops-work-item-labeled": (
        "{azure-devops: [work-item-labeled]}",
        ADO,
        "azure-devops",
        "workitem.updated",
        {},
        ADO_BODY,
        ADO_URL,
        {"collections": "c", "projects": "p"},
        [],
        [({"/resource/fields/System.Tags/oldValue": GONE}, "when:added", "/resource/fields/System.Tags/oldValue")],
    ),
    "sentry-error-created": (
        "{sentry: [error-created]}",
        SENTRY,
        "sentry",
        "issue.created",
        {},
        SENTRY_BODY,
        SENTRY_URL,
        {"projects": "7"},
        [{"/data/issue/project/id": 7}, {"/data/issue/issueCategory": GONE, "/data/issue/type": "error"}],
        [
            ({"/data/issue/issueCategory": "performance"}, "when:equals", "/data/issue/issueCategory"),
            ({"/data/issue/project/id": "8"}, "grant", "/data/issue/project/id"),
            ({"/data/issue/web_url": "https://other.sentry.io/issues/12/"}, "url:origin", "/data/issue/web_url"),
        ],
    ),
    "sentry-issue-alert-triggered": (
        "{sentry: [issue-alert-triggered]}",
        SENTRY,
        "sentry",
        "event_alert.triggered",
        {},
        ALERT_BODY,
        SENTRY_URL,
        {"projects": "7"},
        [
            {"/data/event/issue_id": "12", "/data/event/project": "7"},
            {"/data/event/issue_url": "https://sentry.io/api/0/organizations/acme/issues/12/"},
        ],
        [({"/data/event/issue_url": "https://sentry.io/api/0/issues/12/x/"}, "types", "/data/event/issue_url")],
    ),
    "servicenow-incident-updated": (
        "{servicenow: [incident-updated]}",
        SERVICENOW,
        "servicenow",
        "record.updated",
        {},
        SERVICENOW_BODY,
        "https://acme.service-now.com/incident.do?sys_id=r1",
        {"instances": "acme.service-now.com", "records": "r1"},
        [],
        [
            ({"/data/table": "sc_req_item"}, "match", "/data/table"),
            ({"/data/instance": "other.service-now.com"}, "grant", "/data/instance"),
        ],
    ),
}


def connector_of(name: str) -> str:
    return next(path.stem for path in (ROOT / "subscriptions/connectors").glob("*.md") if name.startswith(path.stem))


def index_of(name: str) -> tuple[Index, Case]:
    case = CASES[name]
    [document] = documents(case[0], connector_of(name), case[1])
    index = build_index([enrolled(document)], {"s": source(case[2], installation=("i",))})
    assert not index.inactive
    return index, case


@pytest.mark.parametrize("name", CASES)
def test_fires(name: str) -> None:
    index, (_, _, profile, native, facts, body, url, filters, also, _) = index_of(name)
    assert index.wanted("s") == {native}
    for edits in [{}, *also]:
        matches, considered = run(index, profile, event(native, edit(body, edits), **facts))
        assert [(m.event.url, m.event.type, m.event.filters) for m in matches] == [
            (url, name.removeprefix(connector_of(name) + "-"), filters)
        ], (edits, considered)
        assert [c.matched for c in considered] == [True]


@pytest.mark.parametrize(
    ("name", "edits", "test", "pointer"),
    [(name, *row) for name, case in CASES.items() for row in case[9]],
)
def test_does_not_fire(name: str, edits: dict[str, Any], test: str | None, pointer: str | None) -> None:
    index, (_, _, profile, native, facts, body, *_) = index_of(name)
    matches, [considered] = run(index, profile, event(native, edit(body, edits), **facts))
    assert matches == ()
    assert not considered.matched
    if test is not None:
        assert considered.test == test
    if pointer is not None:
        assert considered.pointer == pointer
    for value in ("acme", "other", "evil", "UBOT", "p-2"):
        assert value not in f"{considered.test} {considered.pointer}"


# ---- GitHub families --------------------------------------------------------------------------------------------------

REPOSITORY = {"full_name": "acme/app", "owner": {"login": "acme"}}
WEB = "https://github.com/acme/app"
FAMILY: dict[str, tuple[dict[str, Any], str]] = {
    "issue": ({"issue": {"number": 7, "html_url": f"{WEB}/issues/7"}}, f"{WEB}/issues/7"),
    "pull-request": ({"pull_request": {"number": 7, "html_url": f"{WEB}/pull/7"}}, f"{WEB}/pull/7"),
    "discussion": ({"discussion": {"number": 7, "html_url": f"{WEB}/discussions/7"}}, f"{WEB}/discussions/7"),
    "issue-comment": (
        {"issue": {"number": 7}, "comment": {"id": 9, "html_url": f"{WEB}/issues/7#issuecomment-9"}},
        f"{WEB}/issues/7#issuecomment-9",
    ),
    "pull-request-comment": (
        {"issue": {"number": 7, "pull_request": {}}, "comment": {"id": 9, "html_url": f"{WEB}/pull/7#issuecomment-9"}},
        f"{WEB}/pull/7#issuecomment-9",
    ),
    "discussion-comment": (
        {"discussion": {"number": 7}, "comment": {"id": 9, "html_url": f"{WEB}/discussions/7#discussioncomment-9"}},
        f"{WEB}/discussions/7#discussioncomment-9",
    ),
    "commit-comment": (
        {"comment": {"id": 9, "commit_id": "a" * 40, "html_url": f"{WEB}/commit/{'a' * 40}#commitcomment-9"}},
        f"{WEB}/commit/{'a' * 40}#commitcomment-9",
    ),
    "pull-request-review": (
        {"pull_request": {"number": 7}, "review": {"id": 9, "html_url": f"{WEB}/pull/7#pullrequestreview-9"}},
        f"{WEB}/pull/7#pullrequestreview-9",
    ),
    "pull-request-review-comment": (
        {"pull_request": {"number": 7}, "comment": {"id": 9, "html_url": f"{WEB}/pull/7#discussion_r9"}},
        f"{WEB}/pull/7#discussion_r9",
    ),
    "pull-request-review-thread": (
        {"pull_request": {"number": 7}, "thread": {"comments": [{"id": 9, "html_url": f"{WEB}/pull/7#discussion_r9"}]}},
        f"{WEB}/pull/7#discussion_r9",
    ),
    "dependabot-alert": ({"alert": {"number": 7}}, f"{WEB}/security/dependabot/7"),
    "code-scanning-alert": ({"alert": {"number": 7}}, f"{WEB}/security/code-scanning/7"),
    "secret-scanning-alert": ({"alert": {"number": 7}}, f"{WEB}/security/secret-scanning/7"),
}
EVERY_ACTIVITY = [(f, a) for f, row in families.FAMILIES.items() for a in row.activities if f in FAMILY]


def github_index(on: str, url_template: str | None = None) -> Index:
    [document] = documents(on)
    return build_index([enrolled(document, url_template=url_template)], {"s": source("github")})


@pytest.mark.parametrize(("family", "activity"), EVERY_ACTIVITY)
def test_a_family_fires(family: str, activity: str) -> None:
    index = github_index(f"{{{family}: {{types: [{activity}]}}, repos: [acme/app], orgs: [acme]}}")
    members, url = FAMILY[family]
    body = {"action": activity, "repository": REPOSITORY, **members}
    native = f"{families.FAMILIES[family].event}.{activity}"
    [found], _ = run(index, "github", event(native, body))
    assert found.event.url == url
    assert found.event.type == families.trigger_name(family, activity)
    assert found.event.filters == {"repositories": "acme/app", "organizations": "acme"}
    for edits in (
        {"/repository/full_name": "acme/other"},
        {"/repository/full_name": "Acme/app"},
        {"/repository/owner/login": "other"},
        {"/action": "never"},
    ):
        assert run(index, "github", event(native, edit(body, edits)))[0] == ()


def test_an_issue_event_about_a_pull_request_is_not_of_the_issue_family() -> None:
    index = github_index("{issue: {types: [labeled]}, repos: [acme/app]}")
    body = {"action": "labeled", "repository": REPOSITORY, "issue": {"number": 7, "pull_request": {}}}
    matches, [considered] = run(index, "github", event("issues.labeled", body))
    assert matches == ()
    assert (considered.test, considered.pointer) == ("when:not-present", "/issue/pull_request")


def test_a_project_item_needs_the_enrollments_template() -> None:
    on = "{projects-items: {types: [edited]}, projects: [PVT_abc], orgs: [acme]}"
    assert github_index(on).inactive[0][1] == "projects-items-edited needs a url_template in its enrollment"
    index = github_index(on, "https://github.com/orgs/acme/projects/7?pane=issue&itemId={item}")
    body = {
        "action": "edited",
        "organization": {"login": "acme"},
        "projects_v2_item": {"id": 5, "project_node_id": "PVT_abc"},
    }
    [found], _ = run(index, "github", event("projects_v2_item.edited", body))
    assert found.event.url == "https://github.com/orgs/acme/projects/7?pane=issue&itemId=5"
    assert found.event.filters == {"organizations": "acme", "projects": "PVT_abc"}
    outside = github_index(on, "https://evil.example/projects/7?itemId={item}")
    assert "resourceOrigins" in outside.inactive[0][1]


@pytest.mark.parametrize(
    ("text", "author", "name"),
    [
        ("/triage", "User", "triage"),
        ("  \n/triage now", "User", "triage"),
        ("/plan\tx", "User", "plan"),
        ("/triages", "User", None),
        ("/Triage", "User", None),
        ("please /triage", "User", None),
        ("/triage", "Bot", None),
        ("\u00a0/triage", "User", None),
        ("/triage\u00a0x", "User", None),
        ("/", "User", None),
        ("", "User", None),
        (None, "User", None),
    ],
)
@pytest.mark.parametrize("family", ["issue-comment", "pull-request-comment", "discussion-comment"])
def test_slash_command(family: str, text: str | None, author: str, name: str | None) -> None:
    index = github_index("{slash-command: {names: [triage, plan]}, repos: [acme/app]}")
    members, url = FAMILY[family]
    body = edit(
        {"action": "created", "repository": REPOSITORY, **members},
        {"/comment/body": text, "/comment/user": {"type": author}},
    )
    matches, considered = run(index, "github", event(f"{families.FAMILIES[family].event}.created", body))
    if name is None:
        assert matches == ()
        assert "triage" not in str([(c.test, c.pointer) for c in considered])
    else:
        assert [(m.event.url, m.event.filters) for m in matches] == [
            (url, {"repositories": "acme/app", "commands": name})
        ]


# ---- the index --------------------------------------------------------------------------------------------------------


def test_the_index_looks_at_those_that_grant_the_events_values_alone() -> None:
    many = []
    for number in range(200):
        [document] = documents("{linear: [issue-created]}", "linear", LINEAR | {"teams": [f"team-{number}"]})
        many.append(enrolled(document))
    index = build_index(many, {"s": source("linear")})
    found = list(index.candidates("s", event("Issue.create", edit(LINEAR_BODY, {"/data/teamId": "team-7"}))))
    assert [trigger.name for _, trigger in found] == ["issue-created"]
    matches, considered = run(index, "linear", event("Issue.create", LINEAR_BODY))
    assert matches == ()
    assert len(considered) == 20
    assert {(c.test, c.pointer) for c in considered} == {("grant", "/data/teamId")}
    assert index.wanted("other") == frozenset()
    assert list(index.candidates("other", event("Issue.create", LINEAR_BODY))) == []


def test_one_digest_has_one_source_and_a_fitting_profile() -> None:
    [document] = documents("{linear: [issue-created]}", "linear", LINEAR)
    one, two = enrolled(document), enrolled(document, "other")
    sources = {"s": source("linear"), "other": source("linear")}
    index = build_index([one, two], sources)
    assert [reason for _, reason in index.inactive] == ["is enrolled already from the source s"]
    assert index.by_digest(document["digest"]) is one
    assert "wants the profile linear" in build_index([one], {"s": source("jira")}).inactive[0][1]
    assert build_index([one], {}).inactive[0][1] == "no source is named s"


def test_a_value_never_stands_in_what_is_considered() -> None:
    index, (_, _, profile, native, facts, body, *_) = index_of("slack-threaded-app-mention")
    _, considered = run(index, profile, event(native, edit(body, {"/event/channel": "C-secret"}), **facts))
    assert "C-secret" not in json.dumps([(c.test, c.pointer) for c in considered])


# ---- what holds across triggers ---------------------------------------------------------------------------------------


def fired(index: Index, profile: str, one: Event) -> list[tuple[str, str]]:
    return [(found.trigger, found.event.url) for found in run(index, profile, one)[0]]


def test_a_derived_trigger_fires_beside_the_native_one_where_both_are_selected() -> None:
    body = edit(LINEAR_BODY, CLOSING)
    for selected in (["issue-updated", "issue-closed"], ["issue-updated"], ["issue-closed"], ["issue-reopened"]):
        [document] = documents(f"{{linear: [{', '.join(selected)}]}}", "linear", LINEAR)
        index = build_index([enrolled(document)], {"s": source("linear")})
        wanted = [(name, LINEAR_URL) for name in selected if name != "issue-reopened"]
        assert sorted(fired(index, "linear", event("Issue.update", body))) == sorted(wanted)


def test_a_command_fires_beside_the_comment_that_holds_it() -> None:
    index = github_index("{slash-command: {names: [triage]}, issue-comment: {types: [created]}, repos: [acme/app]}")
    members, url = FAMILY["issue-comment"]
    body = edit(
        {"action": "created", "repository": REPOSITORY, **members},
        {"/comment/body": "/triage", "/comment/user": {"type": "User"}},
    )
    found = run(index, "github", event("issue_comment.created", body))[0]
    assert {(one.trigger, one.event.url, one.event.filters.get("commands")) for one in found} == {
        ("slash-command", url, "triage"),
        ("issue-comment-created", url, None),
    }


def test_a_review_comment_is_no_command() -> None:
    index = github_index("{slash-command: {names: [triage]}, repos: [acme/app]}")
    assert index.wanted("s") == {"issue_comment.created", "discussion_comment.created"}


@pytest.mark.parametrize(
    ("name", "bindings", "edits", "url"),
    [
        (
            "jira-issue-closed",
            {"site": "https://jira.acme.example/jira"},
            {"/issue/self": "https://jira.acme.example/jira/rest/api/2/issue/10002"},
            "https://jira.acme.example/jira/rest/api/2/issue/10002",
        ),
        (
            "gitlab-merge-request-opened",
            {"origin": "https://git.acme.example/gitlab"},
            {
                "/project/web_url": "https://git.acme.example/gitlab/g/sub/p",
                "/object_attributes/url": "https://git.acme.example/gitlab/g/sub/p/-/merge_requests/3",
            },
            "https://git.acme.example/gitlab/g/sub/p/-/merge_requests/3",
        ),
        (
            "azure-devops-work-item-closed",
            {"origin": "https://ado.acme.example/tfs/Main"},
            {"/resource/url": "https://ado.acme.example/tfs/Main/_apis/wit/workItems/5/revisions/2"},
            "https://ado.acme.example/tfs/Main/p/_apis/wit/workItems/5",
        ),
    ],
)
def test_a_server_of_ones_own_may_have_a_path(
    name: str, bindings: dict[str, Any], edits: dict[str, Any], url: str
) -> None:
    on, with_, profile, native, _, body, *_ = CASES[name]
    with_ = {key: value for key, value in with_.items() if key != "organization"} | bindings
    [document] = documents(on, connector_of(name), with_)
    index = build_index([enrolled(document)], {"s": source(profile)})
    assert [found for _, found in fired(index, profile, event(native, edit(body, edits)))] == [url]
    foreign = {pointer: value.replace("acme.example", "evil.example") for pointer, value in edits.items()}
    assert fired(index, profile, event(native, edit(body, foreign))) == []
    outside = {pointer: value.replace("/jira/", "/").replace("/gitlab/", "/") for pointer, value in edits.items()}
    if outside != edits:
        assert fired(index, profile, event(native, edit(body, outside))) == []


def test_a_family_is_of_the_sources_own_github() -> None:
    target = Target("acme/app", TARGET.workflow, TARGET.workflow_hash, 1, "https://ghe.acme.example")
    on = load_yaml("on: {gateway-dispatch: {issue: {types: [opened]}, repos: [acme/app]}}", "c.md")
    [document] = compile_documents(on, [], target)
    github = source("github")
    assert "not for the source's origin" in build_index([enrolled(document)], {"s": github}).inactive[0][1]
    index = build_index([enrolled(document)], {"s": replace(github, origin="https://ghe.acme.example")})
    body = {"action": "opened", "repository": REPOSITORY, "issue": {"number": 7}}
    assert fired(index, "github", event("issues.opened", body)) == [
        ("issue-opened", "https://ghe.acme.example/acme/app/issues/7")
    ]


@pytest.mark.parametrize("number", ["7.0", "7e0", '"7"', "true", "[7]", "07"])
def test_only_a_whole_number_is_an_integer(number: str) -> None:
    index, case = index_of("gitlab-pipeline-updated")
    text = json.dumps(PIPELINE_BODY).replace('"id": 31', f'"id": {number}')
    try:
        body = strict_json.loads(text.encode())
    except Rejection as error:
        assert (number, error.reason) == ("07", "json-syntax")  # noqa: PT017 (no JSON at all)
    else:
        assert fired(index, case[2], event("pipeline", body)) == []


def test_a_trigger_that_needs_a_fact_needs_a_profile_that_establishes_it() -> None:
    on, with_, profile, *_ = CASES["confluence-page-created"]
    [document] = documents(on, "confluence", with_)
    content = json.loads(encode(document).replace(b'"@cloud"', b'"@weather"'))
    content.pop("digest")
    reason = build_index([enrolled(seal(content))], {"s": source(profile)}).inactive[0][1]
    assert reason == "page-created reads the fact @weather, which the profile forge does not establish"
    assert not build_index([enrolled(document)], {"s": source(profile)}).inactive


@pytest.mark.parametrize("installations", [(), ("a", "b")])
def test_a_literal_that_stands_for_an_identity_needs_one_value_of_it(installations: tuple[str, ...]) -> None:
    [document] = documents(CASES["sentry-error-created"][0], "sentry", SENTRY)
    reason = build_index([enrolled(document)], {"s": source("sentry", installation=installations)}).inactive[0][1]
    assert "identity installation needs exactly one value: make one subscription each" in reason


TEMPLATE = "https://github.com/orgs/acme/projects/7?pane=issue&itemId={item}"


@pytest.mark.parametrize(
    ("on", "template", "reason"),
    [
        ("{projects-items: {types: [edited]}, projects: [PVT_a, PVT_b]}", TEMPLATE, "one of projects"),
        (
            "{projects-items: {types: [edited]}, projects: [PVT_a], orgs: [acme, other]}",
            TEMPLATE,
            "one of organizations",
        ),
        ("{projects-items: {types: [edited]}, orgs: [acme]}", TEMPLATE, "one of projects"),
        ("{projects-items: {types: [edited]}, projects: [PVT_a]}", TEMPLATE.replace("{item}", "{nobody}"), "nobody"),
        ("{projects-items: {types: [edited]}, projects: [PVT_a]}", "http://github.com/{item}", "url_template: "),
        ("{issue: {types: [opened]}, repos: [a/b]}", TEMPLATE, "has its own canonicalUrl"),
    ],
)
def test_an_enrollments_template_that_does_not_fit(on: str, template: str, reason: str) -> None:
    assert reason in github_index(on, template).inactive[0][1]


def test_a_template_that_fills_the_owner_takes_several() -> None:
    on = "{projects-items: {types: [edited]}, projects: [PVT_a], orgs: [acme, other]}"
    template = "https://github.com/orgs/{organization|lower}/projects/7?itemId={item}"
    assert not github_index(on, template).inactive


def test_one_document_may_hold_project_items_and_what_has_its_own_url() -> None:
    on = "{projects-items: {types: [edited]}, projects: [PVT_a], issue: {types: [opened]}, repos: [acme/app]}"
    index = github_index(on, TEMPLATE)
    assert not index.inactive
    item = {"action": "edited", "projects_v2_item": {"id": 5, "project_node_id": "PVT_a"}}
    issue = {"action": "opened", "repository": REPOSITORY, "issue": {"number": 7}}
    assert fired(index, "github", event("projects_v2_item.edited", item)) == [
        ("projects-items-edited", TEMPLATE.replace("{item}", "5"))
    ]
    assert fired(index, "github", event("issues.opened", issue)) == [("issue-opened", f"{WEB}/issues/7")]
    assert "needs a url_template" in github_index(on).inactive[0][1]


# ---- triggers that no connector ships ---------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "verificationProfile": ["standard-webhooks"],
    "nativeEvents": ["e"],
    "normalize": {"id": "/id", "site": "/site"},
    "types": {"id": "string", "site": "string"},
    "resources": {"site": "sites"},
    "resourceOrigins": ["https://x.example"],
    "canonicalUrl": "https://x.example/{id}",
}


def plain(trigger: dict[str, Any] | None = None, grants: Any = None, filters: Any = None) -> Index:
    """Enroll the plain trigger with some fields changed."""
    [document] = documents("{linear: [issue-created]}", "linear", LINEAR)
    content = {
        **{key: value for key, value in document.items() if key != "digest"},
        "triggers": {"t": PLAIN | (trigger or {})},
        "grants": grants or {"sites": ["s"]},
        "filters": filters or {},
    }
    index = build_index([enrolled(seal(content))], {"s": source("standard-webhooks")})
    assert not index.inactive
    return index


def outcome(index: Index, body: Any) -> Any:
    matches, considered = run(index, "standard-webhooks", event("e", body))
    return matches[0].event.url if matches else (considered[0].test, considered[0].pointer)


def test_without_a_template_nothing_is_built() -> None:
    index = plain()
    [(one, trigger)] = index.listed("s")
    bare = replace(trigger, forms=tuple(replace(form, template=None) for form in trigger.forms))
    found = match_trigger(event("e", {"id": "1", "site": "s"}), one, bare)
    assert getattr(found, "test", None) == "url:no-template"


def test_two_variants_that_apply_are_none() -> None:
    index = plain({"variants": [{"when": {"present": "/a"}}, {"when": {"present": "/b"}}]})
    body = {"id": "1", "site": "s"}
    assert outcome(index, {**body, "a": 1}) == outcome(index, {**body, "b": 1}) == "https://x.example/1"
    assert outcome(index, {**body, "a": 1, "b": 1}) == ("variants", None)
    assert outcome(index, body) == ("when:present", "/a")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("boolean", [True, False], [1, "true", None]),
        ("number", [1, 1.5], [True, "1", None]),
        ("integer", [1], [1.0, "1", True]),
        ("string", ["a", ""], [1, None, ["a"]]),
    ],
)
def test_a_declared_type_is_exact(kind: str, good: list[Any], bad: list[Any]) -> None:
    index = plain({"normalize": PLAIN["normalize"] | {"x": "/x"}, "types": PLAIN["types"] | {"x": kind}})
    for value in good:
        assert outcome(index, {"id": "1", "site": "s", "x": value}) == "https://x.example/1"
    for value in bad:
        assert outcome(index, {"id": "1", "site": "s", "x": value}) == ("types", "/x")
    assert outcome(index, {"id": "1", "site": "s"}) == ("types", "/x")


def test_a_name_without_a_declared_type_is_text_or_an_integer() -> None:
    index = plain({"types": {"site": "string"}})
    assert outcome(index, {"id": 7, "site": "s"}) == outcome(index, {"id": "7", "site": "s"}) == "https://x.example/7"
    values: list[Any] = [True, 7.0, None, ["7"], {}]
    for value in values:
        assert outcome(index, {"id": value, "site": "s"}) == ("types", "/id")


def test_the_urls_that_are_sent_are_each_held_against_their_own() -> None:
    urls = [
        {"from": "/url"},
        {"from": "/site-url", "template": "https://x.example/sites/{site}"},
        {"from": "@event", "template": "https://x.example/{number}"},
        {"template": "https://x.example/n-{number}"},
    ]
    index = plain({"url": urls[:2] + urls[3:], "normalize": PLAIN["normalize"] | {"number": "/number"}})
    body = {"id": "n-1", "site": "s"}
    good = {"url": "https://x.example/n-1/slug", "site-url": "https://x.example/sites/s/", "number": 1}
    assert outcome(index, body) == outcome(index, {**body, **good}) == "https://x.example/n-1"
    assert outcome(index, {**body, "number": 2}) == ("url:path", "/number")
    assert outcome(index, {**body, "site-url": "https://x.example/sites/t"}) == ("url:path", "/site-url")
    assert outcome(index, {**body, "url": "\ud800"}) == ("url:surrogate", "/url")
    index = plain({"url": urls[2:3], "normalize": PLAIN["normalize"] | {"number": "/number"}})
    assert outcome(index, {**body, "number": 1}) == ("url:scheme", "@event")
    assert outcome(index, body) == ("url:unfit", "@event")  # sent, and nothing to hold it against


def test_what_could_not_be_sent_is_not_matched() -> None:
    site = "s" * 1025
    assert outcome(plain(grants={"sites": [site]}), {"id": "1", "site": site}) == ("envelope", None)
    assert outcome(plain(), {"id": "1" * 2048, "site": "s"}) == ("url:unfit", None)


def test_an_extracted_scope_is_checked_though_no_index_holds_it() -> None:
    index = plain({"normalize": {"id": "/id"}, "extract": [{"from": "/name", "pattern": "{site}:{rest}"}]})
    assert outcome(index, {"id": "1", "name": "s:x"}) == "https://x.example/1"
    assert outcome(index, {"id": "1", "name": "t:x"}) == ("resources", "/name")
    assert outcome(index, {"id": "1", "name": "s"}) == ("types", "/name")


def test_at_most_twenty_are_considered_and_what_matched_comes_first() -> None:
    many = []
    for number in range(30):
        [content] = documents("{linear: [issue-created]}", "linear", LINEAR)
        content.pop("digest")
        trigger = PLAIN | ({"when": {"present": "/never"}} if number < 25 else {})
        many.append(
            enrolled(
                seal({**content, "repository_id": number + 1, "triggers": {"t": trigger}, "grants": {"sites": ["s"]}})
            )
        )
    index = build_index(many, {"s": source("standard-webhooks")})
    matches, considered = run(index, "standard-webhooks", event("e", {"id": "1", "site": "s"}))
    assert (len(matches), len(considered)) == (5, 20)
    assert [one.matched for one in considered] == [True] * 5 + [False] * 15
    rows = [Considered(str(n), "t", False, test) for n, test in enumerate(["grant", "types", "suspended", "match"])]
    assert [one.test for one in most_telling(rows, "suspended")] == ["suspended", "types", "match", "grant"]


def test_a_trigger_that_was_considered_is_not_passed_over_too() -> None:
    index = plain({"variants": [{"match": {"/a": 1}}, {"normalize": {"site": "/other"}}]})
    _, considered = run(index, "standard-webhooks", event("e", {"id": "1", "site": "s"}))
    assert [(one.trigger, one.test) for one in considered] == [("t", "types")]
