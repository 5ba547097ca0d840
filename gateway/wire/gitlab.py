"""GitLab: project webhooks. https://docs.gitlab.com/api/project_webhooks/."""

from typing import Any

from gateway.wire.api import Api, pages
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem, granted

PAGE = 100
# `executable`, `temporarily_disabled` or `disabled`: https://gitlab.com/gitlab-org/gitlab/-/merge_requests/89322
STATUS = "alert_status"
# `object_kind` of a delivery -> the attribute that switches it on.
# https://docs.gitlab.com/user/project/integrations/webhook_events/
SWITCHES = {
    "push": "push_events",
    "tag_push": "tag_push_events",
    "issue": "issues_events",
    "work_item": "issues_events",
    "merge_request": "merge_requests_events",
    "note": "note_events",
    "build": "job_events",
    "pipeline": "pipeline_events",
    "wiki_page": "wiki_page_events",
    "deployment": "deployment_events",
    "release": "releases_events",
}


def authorize(token: str) -> dict[str, str]:
    """https://docs.gitlab.com/api/rest/authentication/."""
    return {"PRIVATE-TOKEN": token}


def desired(want: Want) -> list[Hook]:
    """One hook a project; events that no subscription names are switched off."""
    wanted: dict[str, set[str]] = {}
    for subscription in want.subscriptions:
        kinds = {name.partition(".")[0] for name in want.events(subscription)}
        if unknown := kinds - SWITCHES.keys():
            raise WireProblem(f"GitLab has no switch for {', '.join(sorted(unknown))}: set it by hand, and check there")
        for project in granted(subscription, "projects"):
            wanted.setdefault(str(project), set()).update(SWITCHES[kind] for kind in kinds)
    every = sorted(set(SWITCHES.values()))
    return [
        Hook(
            f"projects/{project}",
            {
                "url": want.url,
                "enable_ssl_verification": True,
                STATUS: "executable",
                **{name: name in on for name in every},
            },
        )
        for project, on in sorted(wanted.items())
    ]


async def find(api: Api, _want: Want, hooks: list[Hook]) -> list[Found]:
    """List each project's hooks."""
    found = []
    for hook in hooks:
        for page in pages(f"the list of {hook.scope}/hooks"):
            rows = await api.call("GET", f"/{hook.scope}/hooks?per_page={PAGE}&page={page}")
            found += [_read(hook.scope, row, hook) for row in rows]
            if len(rows) < PAGE:
                break
    return found


def _read(scope: str, row: dict[str, Any], hook: Hook) -> Found:
    return Found(str(row["id"]), scope, {name: row.get(name, hook.fields[name]) for name in hook.fields})


def _body(want: Want, hook: Hook) -> dict[str, Any]:
    # `signing_token` from 19.0, https://docs.gitlab.com/user/project/integrations/webhooks/#signing-tokens
    fields = {name: value for name, value in hook.fields.items() if name != STATUS}
    return {**fields, "name": want.name, ("signing_token" if want.signing else "token"): want.secret}


async def create(api: Api, want: Want, hook: Hook, _now: float) -> Found:
    """https://docs.gitlab.com/api/project_webhooks/#add-a-webhook-to-a-project."""
    return _read(hook.scope, await api.call("POST", f"/{hook.scope}/hooks", _body(want, hook)), hook)


async def update(api: Api, want: Want, hook: Hook, found: Found, _changed: frozenset[str], _now: float) -> Found:
    """https://docs.gitlab.com/api/project_webhooks/#edit-a-project-webhook."""
    return _read(hook.scope, await api.call("PUT", f"/{hook.scope}/hooks/{found.id}", _body(want, hook)), hook)


PROVIDER = Provider(
    title="GitLab",
    docs="https://docs.gitlab.com/api/project_webhooks/",
    api_url="https://gitlab.com/api/v4",
    permission="a project access token with the scope `api` and the role Maintainer",
    authorize=authorize,
    desired=desired,
    find=find,
    create=create,
    update=update,
    # A test that is answered 2xx switches it on: https://gitlab.com/gitlab-org/gitlab/-/merge_requests/80615. Not sent from
    # here, since GitLab's test looks like a real event and may start a workflow.
    beyond={
        STATUS: "GitLab has switched the hook off after failures; mend their cause, then press Test in its settings"
    },
)
