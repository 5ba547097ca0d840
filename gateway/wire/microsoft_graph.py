"""Microsoft Graph: one subscription a Teams channel, renewed at two thirds of its life.

https://learn.microsoft.com/en-us/graph/api/resources/subscription
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gateway.wire.api import Api, WireRefused, bearer, pages
from gateway.wire.types import Found, Hook, Provider, Want, WireProblem, granted

# At most 4,320 minutes for chatMessage; asked for with a margin, since a later time than the most is refused.
# https://learn.microsoft.com/en-us/graph/api/resources/subscription#subscription-lifetime
LIFE_S = 4_260 * 60.0
# What a subscription cannot be given later: https://learn.microsoft.com/en-us/graph/change-notifications-lifecycle-events
FIXED = frozenset({"lifecycleNotificationUrl", "changeType", "secret"})


def desired(want: Want) -> list[Hook]:
    """The messages of each granted channel."""
    changes: dict[str, set[str]] = {}
    for subscription in want.subscriptions:
        teams = sorted(map(str, granted(subscription, "teams")))
        if len(teams) != 1:
            raise WireProblem(
                f"{subscription.digest} grants {len(teams)} teams, and a grant does not say which channel is whose: "
                "compile one subscription a team"
            )
        for channel in granted(subscription, "channels"):
            resource = f"/teams/{quote(teams[0], safe='')}/channels/{quote(str(channel), safe=':@')}/messages"
            changes.setdefault(resource, set()).update(want.events(subscription))
    return [
        Hook(
            resource,
            {
                "changeType": ",".join(sorted(names)),
                "notificationUrl": want.url,
                "lifecycleNotificationUrl": want.url,
            },
        )
        for resource, names in sorted(changes.items())
    ]


async def find(api: Api, want: Want, hooks: list[Hook]) -> list[Found]:
    """List the application's subscriptions to these resources, and those that notify us of others.

    By resource too: a subscription whose address differs is ours to mend, not to make a second one beside it.
    """
    wanted = {hook.scope for hook in hooks}
    found: list[Found] = []
    where = "/subscriptions"
    for _ in pages("the list of subscriptions"):
        listed = await api.call("GET", where)
        found += [_read(row) for row in listed["value"] if row["notificationUrl"] == want.url or _scope(row) in wanted]
        where = listed.get("@odata.nextLink", "")
        if not where:
            break
    return found


def _scope(row: dict[str, Any]) -> str:
    return "/" + str(row["resource"]).lstrip("/")


def _read(row: dict[str, Any]) -> Found:
    fields = {
        "changeType": ",".join(sorted(str(row["changeType"]).split(","))),
        "notificationUrl": row["notificationUrl"],
        "lifecycleNotificationUrl": row.get("lifecycleNotificationUrl"),
    }
    return Found(row["id"], _scope(row), fields, moment(row["expirationDateTime"]))


def moment(text: str) -> float:
    """Graph's times have seven digits of a second, one more than fits."""
    head, dot, rest = text.partition(".")
    digits = rest.rstrip("Zz")[:6] if dot else ""
    whole = (head.rstrip("Zz") + (f".{digits}" if digits else "")) + "+00:00"
    try:
        return datetime.fromisoformat(whole).timestamp()
    except ValueError:
        raise WireRefused(200, "the subscription", "its time cannot be read") from None


def _until(now: float) -> str:
    return datetime.fromtimestamp(now + LIFE_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def create(api: Api, want: Want, hook: Hook, now: float) -> Found:
    """Graph validates both addresses before it answers, so the gateway has to be up.

    https://learn.microsoft.com/en-us/graph/api/subscription-post-subscriptions
    """
    body = {
        **hook.fields,
        "resource": hook.scope,
        "expirationDateTime": _until(now),
        "clientState": want.secret,
    }
    return _read(await api.call("POST", "/subscriptions", body))


async def update(api: Api, _want: Want, hook: Hook, found: Found, _changed: frozenset[str], now: float) -> Found:
    """Extend, and set the address."""
    body = {"expirationDateTime": _until(now), "notificationUrl": hook.fields["notificationUrl"]}
    return _read(await api.call("PATCH", f"/subscriptions/{found.id}", body))


async def remove(api: Api, ident: str) -> None:
    """After another was made: for a moment an event may come twice, and none is lost."""
    try:
        await api.call("DELETE", f"/subscriptions/{ident}")
    except WireRefused as refused:
        if refused.status != 404:
            raise


async def renew(api: Api, found: Found, now: float) -> Found:
    """Extend; this also reauthorizes. https://learn.microsoft.com/en-us/graph/api/subscription-update."""
    return _read(await api.call("PATCH", f"/subscriptions/{found.id}", {"expirationDateTime": _until(now)}))


PROVIDER = Provider(
    title="Microsoft Graph",
    docs="https://learn.microsoft.com/en-us/graph/api/subscription-post-subscriptions",
    api_url="https://graph.microsoft.com/v1.0",
    permission="the application permission ChannelMessage.Read.All (or the resource-specific ChannelMessage.Read.Group), with admin consent",
    authorize=bearer,
    desired=desired,
    find=find,
    create=create,
    update=update,
    fixed=FIXED,
    remove=remove,
    life_s=LIFE_S,
    renew=renew,
)
