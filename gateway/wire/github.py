"""GitHub: repository webhooks, or organization webhooks where only organizations are granted.

https://docs.github.com/en/rest/repos/webhooks, https://docs.github.com/en/rest/orgs/webhooks
"""

from typing import Any

from gateway.wire.api import Api, bearer, pages
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem, granted

PAGE = 100


def authorize(token: str) -> dict[str, str]:
    """https://docs.github.com/en/rest/about-the-rest-api/api-versions."""
    return {**bearer(token), "X-GitHub-Api-Version": "2022-11-28", "Accept": "application/vnd.github+json"}


def desired(want: Want) -> list[Hook]:
    """One hook a repository, or an organization, with the events of all subscriptions that name it."""
    events: dict[str, set[str]] = {}
    for subscription in want.subscriptions:
        named = {name.partition(".")[0] for name in want.events(subscription)}
        repositories = granted(subscription, "repositories")
        scopes = [f"repos/{name}" for name in repositories]
        # An item of a project belongs to the organization: its event has no repository hook.
        if not repositories or "projects_v2_item" in named:
            scopes += [f"orgs/{name}" for name in granted(subscription, "organizations")]
        if not scopes:
            raise WireProblem(
                f"{subscription.digest} grants no repository and no organization: recompile it with `repos` or `orgs`"
            )
        for scope in scopes:
            events.setdefault(scope, set()).update(named)
    return [
        Hook(
            scope,
            {"url": want.url, "events": sorted(names), "content_type": "json", "insecure_ssl": "0", "active": True},
        )
        for scope, names in sorted(events.items())
    ]


async def find(api: Api, _want: Want, hooks: list[Hook]) -> list[Found]:
    """List each scope's hooks."""
    found = []
    for hook in hooks:
        for page in pages(f"the list of {hook.scope}/hooks"):
            rows = await api.call("GET", f"/{hook.scope}/hooks?per_page={PAGE}&page={page}")
            found += [_read(hook.scope, row) for row in rows]
            if len(rows) < PAGE:
                break
    return found


def _read(scope: str, row: dict[str, Any]) -> Found:
    config = row["config"]
    fields = {
        "url": config.get("url"),
        "events": sorted(row["events"]),
        "content_type": config.get("content_type"),
        "insecure_ssl": str(config.get("insecure_ssl", "0")),
        "active": row["active"],
    }
    return Found(str(row["id"]), scope, fields)


def _body(want: Want, hook: Hook) -> dict[str, Any]:
    # The whole `config` each time: an update that leaves the secret out removes it.
    # https://docs.github.com/en/rest/repos/webhooks#update-a-repository-webhook
    names = ("url", "content_type", "insecure_ssl")
    config = {**{name: hook.fields[name] for name in names}, "secret": want.secret}
    return {"active": True, "events": hook.fields["events"], "config": config}


async def create(api: Api, want: Want, hook: Hook, _now: float) -> Found:
    """https://docs.github.com/en/rest/repos/webhooks#create-a-repository-webhook."""
    return _read(hook.scope, await api.call("POST", f"/{hook.scope}/hooks", {"name": "web", **_body(want, hook)}))


async def update(api: Api, want: Want, hook: Hook, found: Found, _changed: frozenset[str], _now: float) -> Found:
    """https://docs.github.com/en/rest/repos/webhooks#update-a-repository-webhook."""
    return _read(hook.scope, await api.call("PATCH", f"/{hook.scope}/hooks/{found.id}", _body(want, hook)))


PROVIDER = Provider(
    title="GitHub",
    docs="https://docs.github.com/en/rest/repos/webhooks",
    api_url="https://api.github.com",
    permission='a fine-grained token with "Webhooks: read and write" on the repositories (organizations: "Webhooks" there)',
    authorize=authorize,
    desired=desired,
    find=find,
    create=create,
    update=update,
)
