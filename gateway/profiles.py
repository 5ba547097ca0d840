"""Verification profiles: one YAML file a provider, a union discriminated on `proof.scheme`. Data, no behaviour.

A *part* names a place in a delivery: `header:NAME` (lower case), `@FACT` (established while verifying) or a JSON
Pointer into the evidence (`""` is the whole document). A part that ends in `?` may be absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway.errors import ConfigError, Problem


class Model(BaseModel):
    """Frozen and closed: an unknown key in a profile is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


Encoding = Literal["hex", "base64"]
KeyForm = Literal["utf8", "whsec", "hex"]


class Freshness(Model):
    """A signed time: where it stands, its unit, and the window to both sides in seconds (a source may set its own)."""

    at: str
    unit: Literal["s", "ms"]
    window_s: float


class MacProof(Model):
    """Keyed MAC over a described byte layout.

    `layout` is concatenated: `{body}`, `{header:NAME}` or literal text. The signature header holds one value, or
    several split at `separator`; each is `prefix` + encoded digest (values without the prefix are ignored when
    `separator` is set). `key`: `utf8` the secret's bytes; `whsec` base64 after an optional `whsec_`.
    """

    scheme: Literal["mac"]
    header: str
    prefix: str = ""
    separator: str | None = None
    encoding: Encoding
    key: KeyForm = "utf8"
    layout: tuple[str, ...] = ("{body}",)
    also_ed25519_prefix: str | None = None  # Standard Webhooks `v1a,`: a source whose secret is a `whpk_` public key


class Ed25519Proof(Model):
    """Ed25519 over a described layout; the source's secrets are public keys (`key`: hex, or `whsec` = base64 after `whpk_`)."""

    scheme: Literal["ed25519"]
    header: str
    prefix: str = ""
    separator: str | None = None
    encoding: Encoding
    key: KeyForm = "hex"
    layout: tuple[str, ...]


class SharedSecretProof(Model):
    """A secret compared as sent: a header's whole value, or (`form: basic`) the decoded Basic credential `user:password`."""

    scheme: Literal["shared-secret"]
    header: str
    form: Literal["plain", "basic"] = "plain"


class JwtProof(Model):
    """A signed JWT in `header` after `Bearer `, RS256 only, against a JWKS; `facts` are pointers into its claims.

    `audience` names the identity key whose value `aud` must be. `claims` maps a claim's pointer to the identity key whose
    values it must be among (403 `identity` otherwise); `equals` to an exact value (401 `claims`). `forbidden` lists claims
    whose presence refuses the token. `jti` is consumed in the admission step. Times: `leeway_s` to both sides.
    """

    scheme: Literal["jwt"]
    header: str = "authorization"
    issuer: str
    jwks_url: str
    audience: str
    leeway_s: float = 10
    max_lifetime_s: float
    facts: Mapping[str, str] = Field(default_factory=dict)
    equals: Mapping[str, str] = Field(default_factory=dict)
    same: tuple[tuple[str, str], ...] = ()
    forbidden: tuple[str, ...] = ()


class ClientStateProof(Model):
    """A shared secret inside each item of a batch (Microsoft Graph `clientState`), proved item by item.

    `at` and `subscription` are pointers into the item; a secret bound to a subscription id proves only that one's items.
    """

    scheme: Literal["client-state"]
    items: str
    at: str
    subscription: str


Proof = Annotated[
    MacProof | Ed25519Proof | SharedSecretProof | JwtProof | ClientStateProof, Field(discriminator="scheme")
]


class Alternative(Model):
    """`oneof` parts that name the same thing; all that are present must be equal."""

    oneof: tuple[str, ...]


class DeliveryId(Model):
    """Which parts name a delivery, tried in order: the first tuple whose parts are all present is the id.

    A part may be `header:NAME`, `@FACT`, a pointer, `body-digest`, or `digest:POINTER` (of a value, canonical JSON)
    optionally `without NAME`. `agree` lists parts that must be equal where more than one is present, else 400
    `delivery-id-invalid`. `signed` false means the id is outside the proof: the body's digest is then a second key.
    """

    parts: tuple[tuple[str, ...], ...]
    agree: tuple[str, ...] = ()
    signed: bool
    ttl_s: int


class Shape(Model):
    """Members an event's body must and must not have (pointers), because its header is not signed."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    equals: Mapping[str, str] = Field(default_factory=dict)


class EventName(Model):
    """How the native event's name is read: `parts` joined by `.`; a part ending in `?` may be absent.

    `body` decides where `header` only claims (the two must agree through `shapes`). `shapes` maps a name or its first
    part to the members that its body must and must not have; a name without a shape is accepted only if `open` is set.
    """

    parts: tuple[str, ...]
    header: str | None = None
    header_required: bool = False
    header_equals: str | None = None  # a pointer the header's value must equal
    header_values: Mapping[str, str] = Field(default_factory=dict)  # header value -> required value at header_equals
    shapes: Mapping[str, Shape] = Field(default_factory=dict)


class Condition(Model):
    """All of `equals` (pointer -> value as JSON) hold and all of `present` resolve; `event` compares the native name."""

    event: str | None = None
    equals: Mapping[str, str | int | bool] = Field(default_factory=dict)
    present: tuple[str, ...] = ()


class Answer(Model):
    """What the provider wants back: a status, and for handshakes a body taken from a part (text/plain or JSON member)."""

    status: int = 200
    content_type: str | None = None
    body_from: str | None = None  # a pointer, or `query:NAME`
    json_member: str | None = None  # wrap as {"member": value}
    echo_header: str | None = None


class Handshake(Model):
    """A provider's handshake. `unauthenticated` ones are answered before the proof and never touch state."""

    when: Condition = Condition()
    query: str | None = None
    unauthenticated: bool = False
    max_bytes: int = 2048
    answer: Answer


class Profile(Model):
    """One verification profile, as `profiles/<name>.yaml` holds it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    title: str
    docs: tuple[str, ...]
    notes: str = ""
    proof: Proof
    freshness: Freshness | None = None
    body: Literal["json", "json-or-form-payload"] = "json"
    top: Literal["object", "array"] = "object"
    items: str | None = None  # pointer to the array of events of a batch
    event: EventName
    event_ignored: tuple[str, ...] = ()  # notices: authentic, never dispatched, whatever a declaration says
    identity: Mapping[str, str] = Field(default_factory=dict)
    identity_optional: tuple[str, ...] = ()
    facts: Mapping[str, str] = Field(default_factory=dict)  # further facts, pointers into the (item's) evidence
    delivery_id: DeliveryId
    actors: tuple[str, ...] = ()
    handshakes: tuple[Handshake, ...] = ()
    tests: tuple[Condition, ...] = ()
    refused: Mapping[str, Condition] = Field(default_factory=dict)  # reason -> an item of this shape is rejected
    lifecycle: Condition | None = None  # items kept for renewal, never dispatched
    statuses: Mapping[str, int] = Field(default_factory=dict)  # outcome name, or a default status as text -> status
    body_limit_bytes: int | None = None
    answer_within_s: float = 2
    retries: str = ""  # how the provider retries and disables, for people; source URL beside it in the file
    secret_help: str = ""  # where an operator finds the secret


@dataclass(frozen=True, slots=True)
class Source:
    """An operator's registered ingress without its secrets: what the pure core may know of it."""

    name: str
    profile: Profile
    identity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    self_ids: frozenset[str] = frozenset()
    origin: str | None = None
    freshness_s: float | None = None


def load_profile(path: Path) -> Profile:
    """Read one profile file. Raises ConfigError with every problem found in it."""
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        profile = Profile.model_validate(document)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError([Problem(str(path), "", f"cannot be read: {error}", "repair the file")]) from error
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(str(path), ".".join(map(str, e["loc"])), e["msg"], "see the Profile type in gateway/profiles.py")
                for e in error.errors(include_input=False, include_url=False)
            ],
        ) from error
    if profile.name != path.stem:
        raise ConfigError([Problem(str(path), "name", "differs from the file's name", f"name it {path.stem}")])
    return profile


def load_profiles(folder: Path) -> dict[str, Profile]:
    """Read every `*.yaml` of a folder, by name. Raises ConfigError with the problems of all files."""
    profiles: dict[str, Profile] = {}
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            profile = load_profile(path)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            profiles[profile.name] = profile
    if problems:
        raise ConfigError(problems)
    return profiles
