"""What a wiring is made of: what should stand at a provider, what was found there, and the difference."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from gateway.structs import Opaque, Value, field
from gateway.subscriptions import Subscription
from gateway.wire.api import Api

State = Literal["good", "missing", "drifted", "expiring", "surplus"]


class WireProblem(Exception):  # noqa: N818 (told to the operator)
    """The configuration does not say enough, or says what the provider cannot do; the text has the next step."""


def granted(subscription: Subscription, collection: str) -> list[str]:
    """The values that a subscription's document grants of a collection, as text, sorted."""
    return sorted({str(value) for value in subscription.document["grants"].get(collection, ())})


class Want(Opaque):
    """What one source needs of its provider. `secret` is the first of the source's, as the provider takes it."""

    source: str
    url: str
    secret: str
    signing: bool  # the profile proves a signature, not a token (GitLab has both)
    subscriptions: tuple[Subscription, ...]

    @property
    def name(self) -> str:
        """The name that the provider shows beside the hook."""
        return f"webhook-gateway {self.source}"

    def events(self, subscription: Subscription | None = None) -> list[str]:
        """The native events that the subscriptions (or this one) name, sorted."""
        chosen = self.subscriptions if subscription is None else (subscription,)
        return sorted({name for one in chosen for trigger in one.triggers.values() for name in trigger.native_events})

    def granted(self, collection: str) -> list[str]:
        """Every value of a collection that some subscription grants, as text, sorted."""
        return sorted({value for one in self.subscriptions for value in granted(one, collection)})


class Hook(Value):
    """One hook that should stand: where (`scope`), and the fields that can be compared."""

    scope: str
    fields: Mapping[str, Any]


class Found(Value):
    """One hook at the provider. Those with another `url` are none of our business, but for the one that we made."""

    id: str
    scope: str
    fields: Mapping[str, Any]
    expires: float | None = None


class Difference(Value):
    """One field that is not as it should be. Neither value is ever a secret."""

    name: str
    have: Any
    want: Any


class Row(Value):
    """One line of the report."""

    scope: str
    state: State
    id: str | None = None
    differences: tuple[Difference, ...] = ()
    expires: float | None = None
    hook: Hook | None = None
    done: Literal["created", "updated", "renewed", "replaced", "removed"] | None = None
    replaced: bool = False  # surplus, and ours: another has taken its place

    def to_json(self) -> dict[str, Any]:
        """The row as scripts read it."""
        return {
            "scope": self.scope,
            "state": self.state,
            "id": self.id,
            "drift": [{"field": d.name, "have": d.have, "want": d.want} for d in self.differences],
            "expires": self.expires,
            "done": self.done,
        }


Authorize = Callable[[str], Mapping[str, str]]


class Provider(Value):
    """One provider's API. `life_s` is set where a hook expires; `permission` says what the token needs."""

    title: str
    docs: str
    api_url: str | None
    permission: str
    authorize: Authorize
    desired: Callable[[Want], list[Hook]]
    find: Callable[[Api, Want, list[Hook]], Awaitable[list[Found]]]
    create: Callable[[Api, Want, Hook, float], Awaitable[Found]]
    update: Callable[[Api, Want, Hook, Found, frozenset[str], float], Awaitable[Found]]
    fixed: frozenset[str] = frozenset()  # what a hook cannot be given later: another takes its place
    beyond: Mapping[str, str] = field(default_factory=dict)  # what the API shows and cannot set: what to do about it
    remove: Callable[[Api, str], Awaitable[None]] | None = None
    life_s: float | None = None
    renew: Callable[[Api, Found, float], Awaitable[Found]] | None = None
