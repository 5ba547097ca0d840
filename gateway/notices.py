"""A provider's notices about its own subscriptions: kept before the provider is answered, acted on by `renewal`."""

import logging
import re
from collections.abc import Iterable
from typing import Any

from gateway import log
from gateway.store import Store

# https://learn.microsoft.com/en-us/graph/change-notifications-lifecycle-events
EVENTS = frozenset({"reauthorizationRequired", "subscriptionRemoved", "missed"})
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9_-]{1,64}")


async def keep(store: Store, source: str, items: Iterable[Any], now: float) -> None:
    """Keep the notices of one proven delivery. Raises Unavailable: then the provider sends them again."""
    for item in items:
        event, subscription = item.get("lifecycleEvent"), item.get("subscriptionId")
        known = event in EVENTS and isinstance(subscription, str) and _SUBSCRIPTION.fullmatch(subscription)
        kept = bool(known) and await store.keep_notice(source, event, subscription, now)
        log.event(
            "notice",
            logging.INFO if kept else logging.WARNING,
            source=source,
            kept=kept,
            notice=event if known else None,
        )
