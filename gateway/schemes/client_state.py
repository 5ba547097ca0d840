"""A shared secret inside each item of a batch (Microsoft Graph `clientState`), proved item by item.

https://learn.microsoft.com/graph/change-notifications-delivery-webhooks: one request may carry items of several
subscriptions and tenants, so one item's proof says nothing about another.
"""

from collections.abc import Sequence
from typing import Any

from gateway import pointers
from gateway.profiles import ClientStateProof
from gateway.schemes.shared_secret import equal


def verify(item: Any, proof: ClientStateProof, secrets: Sequence[tuple[str, bytes, str | None]]) -> str | None:
    """Return the label of the first secret that proves `item`, None where none does.

    `secrets` are (label, value, subscription): one that is bound to a subscription id proves that one's items alone.
    """
    state = pointers.resolve(item, pointers.parse(proof.at))
    subscription = pointers.resolve(item, pointers.parse(proof.subscription))
    if not isinstance(state, str):
        return None
    sent = state.encode("utf-8", "surrogatepass")
    matched = [
        label
        for label, value, bound in secrets
        if equal(sent, value) and (bound is None or (isinstance(subscription, str) and bound == subscription))
    ]
    return matched[0] if matched else None
