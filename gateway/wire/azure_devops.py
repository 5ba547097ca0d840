"""Azure DevOps: one service hook subscription for each project and event.

https://learn.microsoft.com/en-us/rest/api/azure/devops/hooks/subscriptions
https://learn.microsoft.com/en-us/azure/devops/service-hooks/services/webhooks
"""

from typing import Any

from gateway.wire.api import Api, basic, bearer
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem, granted

VERSION = "api-version=7.1"
PATH = "/_apis/hooks/subscriptions"
# Everything about the item, no prose about it: the gateway reads fields alone.
SENT = {"resourceDetailsToSend": "all", "messagesToSend": "none", "detailedMessagesToSend": "none"}


def authorize(token: str) -> dict[str, str]:
    """A personal access token is a password without a user; a token of Entra is longer and has dots."""
    return bearer(token) if token.count(".") == 2 else basic(f":{token}")


def desired(want: Want) -> list[Hook]:
    """Each project with each of its events."""
    pairs = {
        (str(project), event)
        for subscription in want.subscriptions
        for project in granted(subscription, "projects")
        for event in want.events(subscription)
    }
    if not pairs:
        raise WireProblem("no subscription grants a project")
    user = want.secret.partition(":")[0]
    return [
        Hook(
            f"{project}/{event}",
            {"url": want.url, "status": "enabled", "resourceVersion": "1.0", "basicAuthUsername": user, **SENT},
        )
        for project, event in sorted(pairs)
    ]


async def find(api: Api, _want: Want, _hooks: list[Hook]) -> list[Found]:
    """List the organization's subscriptions that post somewhere."""
    listed = await api.call("GET", f"{PATH}?consumerId=webHooks&consumerActionId=httpRequest&{VERSION}")
    return [_read(row) for row in listed["value"]]


def _read(row: dict[str, Any]) -> Found:
    given = row["consumerInputs"]
    fields = {
        "url": given.get("url"),
        "status": row["status"],
        "resourceVersion": row.get("resourceVersion"),
        "basicAuthUsername": given.get("basicAuthUsername"),
        **{name: given.get(name, "all") for name in SENT},
    }
    return Found(row["id"], f"{row['publisherInputs'].get('projectId', '')}/{row['eventType']}", fields)


def _body(want: Want, hook: Hook) -> dict[str, Any]:
    project, _, event = hook.scope.partition("/")
    user, _, password = want.secret.partition(":")
    return {
        "publisherId": "tfs",
        "eventType": event,
        "resourceVersion": hook.fields["resourceVersion"],
        "consumerId": "webHooks",
        "consumerActionId": "httpRequest",
        "status": "enabled",
        "publisherInputs": {"projectId": project},
        "consumerInputs": {"url": want.url, "basicAuthUsername": user, "basicAuthPassword": password, **SENT},
    }


async def create(api: Api, want: Want, hook: Hook, _now: float) -> Found:
    """https://learn.microsoft.com/en-us/rest/api/azure/devops/hooks/subscriptions/create."""
    return _read(await api.call("POST", f"{PATH}?{VERSION}", _body(want, hook)))


async def update(api: Api, want: Want, hook: Hook, found: Found, _changed: frozenset[str], _now: float) -> Found:
    """https://learn.microsoft.com/en-us/rest/api/azure/devops/hooks/subscriptions/replace-subscription."""
    return _read(await api.call("PUT", f"{PATH}/{found.id}?{VERSION}", {"id": found.id, **_body(want, hook)}))


PROVIDER = Provider(
    title="Azure DevOps",
    docs="https://learn.microsoft.com/en-us/azure/devops/service-hooks/create-subscription",
    api_url=None,
    permission='a token of a user with "Edit subscriptions" and "View subscriptions" in the projects',
    authorize=authorize,
    desired=desired,
    find=find,
    create=create,
    update=update,
)
