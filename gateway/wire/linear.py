"""Linear: one webhook a team, by GraphQL. https://linear.app/developers/webhooks, https://linear.app/developers/graphql."""

from typing import Any

from gateway.wire.api import Api, WireRefused, pages
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem, granted

FIELDS = "id url enabled resourceTypes team { id }"
LIST = f"query($after: String) {{ webhooks(first: 100, after: $after) {{ nodes {{ {FIELDS} }} pageInfo {{ hasNextPage endCursor }} }} }}"
CREATE = (
    f"mutation($input: WebhookCreateInput!) {{ webhookCreate(input: $input) {{ success webhook {{ {FIELDS} }} }} }}"
)
UPDATE = (
    "mutation($id: String!, $input: WebhookUpdateInput!) "
    f"{{ webhookUpdate(id: $id, input: $input) {{ success webhook {{ {FIELDS} }} }} }}"
)


def authorize(token: str) -> dict[str, str]:
    """A personal key stands alone, an OAuth token after `Bearer`: https://linear.app/developers/graphql#authentication."""
    return {"Authorization": token if token.startswith("lin_api_") else f"Bearer {token}"}


def desired(want: Want) -> list[Hook]:
    """One webhook a granted team, with the resource types of the subscriptions that grant it."""
    types: dict[str, set[str]] = {}
    for subscription in want.subscriptions:
        for team in granted(subscription, "teams"):
            types.setdefault(str(team), set()).update(name.partition(".")[0] for name in want.events(subscription))
    if not types:
        raise WireProblem("no subscription grants a team: a Linear webhook is made for teams")
    return [
        Hook(f"team/{team}", {"url": want.url, "resourceTypes": sorted(names), "enabled": True})
        for team, names in sorted(types.items())
    ]


async def _ask(api: Api, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    answer = await api.call("POST", "", {"query": query, "variables": variables})
    # A refusal of GraphQL comes with 200: https://spec.graphql.org/October2021/#sec-Errors
    if not isinstance(answer, dict) or answer.get("errors") or not isinstance(answer.get("data"), dict):
        errors = answer.get("errors") if isinstance(answer, dict) else None
        said = errors[0].get("message", "") if isinstance(errors, list) and errors else "no data"
        raise WireRefused(200, "the GraphQL call", api.said(str(said)))
    data: dict[str, Any] = answer["data"]
    return data


async def find(api: Api, _want: Want, _hooks: list[Hook]) -> list[Found]:
    """List the workspace's webhooks."""
    found: list[Found] = []
    after: str | None = None
    for _ in pages("the list of webhooks"):
        listed = (await _ask(api, LIST, {"after": after}))["webhooks"]
        found += [_read(row) for row in listed["nodes"]]
        if not listed["pageInfo"]["hasNextPage"]:
            break
        after = listed["pageInfo"]["endCursor"]
    return found


def _read(row: dict[str, Any]) -> Found:
    team = row.get("team")
    scope = f"team/{team['id']}" if team else "all-public-teams"
    fields = {"url": row["url"], "resourceTypes": sorted(row["resourceTypes"]), "enabled": row["enabled"]}
    return Found(row["id"], scope, fields)


async def create(api: Api, want: Want, hook: Hook, _now: float) -> Found:
    """`webhookCreate`."""
    given = {**hook.fields, "teamId": hook.scope.removeprefix("team/"), "secret": want.secret, "label": want.name}
    return _read(_taken(await _ask(api, CREATE, {"input": given}), "webhookCreate"))


async def update(api: Api, want: Want, hook: Hook, found: Found, _changed: frozenset[str], _now: float) -> Found:
    """`webhookUpdate`."""
    given = {**hook.fields, "secret": want.secret, "label": want.name}
    return _read(_taken(await _ask(api, UPDATE, {"id": found.id, "input": given}), "webhookUpdate"))


def _taken(data: dict[str, Any], name: str) -> dict[str, Any]:
    if data[name].get("success") is not True:
        raise WireRefused(200, name, "success is not true")
    webhook: dict[str, Any] = data[name]["webhook"]
    return webhook


PROVIDER = Provider(
    title="Linear",
    docs="https://linear.app/developers/webhooks",
    api_url="https://api.linear.app/graphql",
    permission="an API key of a workspace admin, or an OAuth token with the scope `admin`",
    authorize=authorize,
    desired=desired,
    find=find,
    create=create,
    update=update,
)
