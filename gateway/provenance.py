"""Provenance of an envelope: is what arrived within the subscription that was compiled? Pure; the same rules as the action.

`envelope.validate` says whether a body is an envelope at all; `check` says whether it is one of this subscription.
"""

from typing import Any

from gateway import envelope
from gateway.subscriptions import Subscription
from gateway.triggers import Trigger


def check(body: Any, subscription: Subscription) -> None:
    """Check a whole `repository_dispatch` body; raises ValueError that names the place and the rule, never a value.

    1. It is a valid envelope: closed at every level, so no body, title or header is in it.
    2. `event_type` and `subscription` are the compiled ones.
    3. Every trigger name is one of the subscription.
    4. The origin of every URL is reviewed for that trigger.
    5. The scope evidence has every dimension of the grant and every filter that the consumer set, no other, and each value
       is granted.
    """
    envelope.validate(body)
    if body["event_type"] != subscription.event_type:
        raise ValueError("$.event_type: is not the subscription's")
    gateway = body["client_payload"]["gateway"]
    if gateway["subscription"] != subscription.digest:
        raise ValueError("$.client_payload.gateway.subscription: is another digest")
    for number, event in enumerate(gateway["events"]):
        check_event(event, subscription, f"$.client_payload.gateway.events[{number}]")


def check_event(event: Any, subscription: Subscription, place: str = "$") -> None:
    """Check one valid event against the subscription (3 to 5 of `check`); raises ValueError."""
    trigger = subscription.triggers.get(event["types"][0])
    if trigger is None:
        raise ValueError(f"{place}.types: is no trigger of the subscription")
    if event["url"][: event["url"].index("/", 8)] not in trigger.origins:
        raise ValueError(f"{place}.url: its origin is not reviewed for the trigger")
    allowed = scope_of(trigger, subscription)
    if set(event["filters"]) != set(allowed):
        raise ValueError(f"{place}.filters: does not have exactly the scope of the subscription")
    for collection, values in allowed.items():
        if event["filters"][collection][0] not in values:
            raise ValueError(f"{place}.filters.{collection}: is not granted")


def scope_of(trigger: Trigger, subscription: Subscription) -> dict[str, frozenset[str]]:
    """Return the collections that an event of a trigger must carry, each with the texts that it may have."""
    scope: dict[str, frozenset[str]] = {}
    for collection in trigger.resources.values():
        scope[collection] = _texts(subscription.grants[collection])
    for collection in subscription.filters.keys() & trigger.filters.keys():
        allowed = _texts(subscription.filters[collection])
        scope[collection] = scope[collection] & allowed if collection in scope else allowed
    return scope


def _texts(keys: frozenset[Any]) -> frozenset[str]:
    return frozenset(str(value) for _, value in keys)
