"""Jira: one admin webhook a site. https://developer.atlassian.com/cloud/jira/platform/webhooks/."""

from typing import Any

from gateway.wire.api import Api, WireRefused, basic, bearer
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem

PATH = "/rest/webhooks/1.0/webhook"
SECTION = "issue-related-events-section"


def authorize(token: str) -> dict[str, str]:
    """`mail:token` for Jira Cloud, a personal access token for Data Center.

    https://developer.atlassian.com/cloud/jira/platform/basic-auth-for-rest-apis/
    """
    return basic(token) if ":" in token else bearer(token)


def desired(want: Want) -> list[Hook]:
    """One webhook with all events and the granted projects as its filter."""
    projects = want.granted("projects")
    if not projects:
        raise WireProblem("no subscription grants a project")
    jql = "project in ({})".format(", ".join(f'"{key}"' for key in projects))
    return [Hook("site", {"url": want.url, "events": want.events(), "jql": jql, "body": True, "enabled": True})]


async def find(api: Api, _want: Want, _hooks: list[Hook]) -> list[Found]:
    """List the site's admin webhooks."""
    rows = await api.call("GET", PATH)
    return [_read(row) for row in rows]


def _read(row: dict[str, Any]) -> Found:
    filters = row.get("filters") or {}
    fields = {
        "url": row["url"],
        "events": sorted(row["events"]),
        "jql": filters.get(SECTION, "") if isinstance(filters, dict) else str(filters),
        "body": not row.get("excludeBody", False),
        "enabled": row.get("enabled", True),
    }
    # The id stands at the end of its own address alone.
    return Found(str(row["self"]).rstrip("/").rpartition("/")[2], "site", fields)


def _body(want: Want, hook: Hook) -> dict[str, Any]:
    return {
        "name": want.name,
        "url": want.url,
        "events": hook.fields["events"],
        "filters": {SECTION: hook.fields["jql"]},
        "excludeBody": False,
        "enabled": True,
        "secret": want.secret,
    }


async def create(api: Api, want: Want, hook: Hook, _now: float) -> Found:
    """Register."""
    return _whole(await api.call("POST", PATH, _body(want, hook)))


async def update(api: Api, want: Want, hook: Hook, found: Found, _changed: frozenset[str], _now: float) -> Found:
    """Change."""
    return _whole(await api.call("PUT", f"{PATH}/{found.id}", _body(want, hook)))


def _whole(row: Any) -> Found:
    if not isinstance(row, dict) or "self" not in row:
        raise WireRefused(200, PATH, "the answer names no webhook")
    return _read(row)


PROVIDER = Provider(
    title="Jira",
    docs="https://developer.atlassian.com/cloud/jira/platform/webhooks/",
    api_url=None,
    permission="`mail:token` of a user with the global permission Administer Jira",
    authorize=authorize,
    desired=desired,
    find=find,
    create=create,
    update=update,
)
