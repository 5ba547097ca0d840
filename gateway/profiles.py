"""Verification profiles: one YAML file a provider, a union discriminated on `proof.scheme`. Data, no behaviour.

A *part* names a place in a delivery: `header:NAME` (lower case), `@FACT` (established while verifying) or a JSON
Pointer into the evidence (`""` is the whole document). A part that ends in `?` may be absent.

Loading checks what a typing error could turn into an accepted forgery: pointers, header names, regions of a layout,
an empty layout, a proof that covers no body. What is left to the reader of a profile is only to do as it says.
"""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway import pointers
from gateway.errors import ConfigError, Problem
from gateway.structs import Value, field


class Model(BaseModel):
    """Frozen and closed: an unknown key in a profile is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


Encoding = Literal["hex", "base64"]
KeyForm = Literal["utf8", "whsec", "hex"]


class Freshness(Model):
    """A signed time: where it stands, its unit, and the window to both sides in seconds (a source may set its own).

    `at` is `header:NAME` or `signature:NAME` (a `NAME=value` member of the signature header), judged while verifying,
    or a pointer into the signed body, judged once that has been read.
    """

    at: str
    unit: Literal["s", "ms"]
    window_s: float = Field(gt=0)


class MacProof(Model):
    """Keyed MAC over a described byte layout.

    `layout` is concatenated: `{body}`, `{header:NAME}`, `{signature:NAME}` (a `NAME=value` member of the signature
    header) or literal text. The signature header holds one value, or several split at `separator`; each is `prefix` +
    encoded digest (values without the prefix are ignored when `separator` is set). `key`: `utf8` the secret's bytes;
    `whsec` base64 after an optional `whsec_`; `hex` the decoded text.
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


class Pick(Model):
    """A fact that stands in a list: the value at `take` of the one element of `among` whose `where` members all equal.

    None or several such elements: the fact is missing, and an identity that needs it is refused.
    """

    among: str
    where: Mapping[str, str]
    take: str


class JwtProof(Model):
    """A signed JWT in `header` after `Bearer `, RS256 only, against a JWKS; `facts` are pointers into its claims.

    `audience` names the identity key whose value `aud` must be. `picked` finds facts in lists. Every identity of the
    profile that is an `@FACT` of the token is bound while verifying (403 `identity`); `equals` maps a claim's pointer to
    an exact value, `same` lists pairs of claims that must be equal (401 `claims`). `forbidden` lists pointers whose
    presence in the claims or in the JOSE header refuses the token. `jti` is consumed in the admission step. Times:
    `leeway_s` to both sides.
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
    picked: Mapping[str, Pick] = Field(default_factory=dict)


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

    `alternatives` are further part lists, tried in order where `parts` do not all resolve. `body` decides where `header`
    only claims (the two must agree through `shapes`). `shapes` maps a name or its first part to the members that its body
    must and must not have; where there are shapes, a name without one is accepted only if `open` is set.
    """

    parts: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...] = ()
    header: str | None = None
    header_required: bool = False
    header_equals: str | None = None  # a pointer the header's value must equal
    header_values: Mapping[str, str] = Field(default_factory=dict)  # header value -> required value at header_equals
    shapes: Mapping[str, Shape] = Field(default_factory=dict)
    open: bool = False


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
    # notices: authentic, never dispatched, whatever a declaration says; native names or values of `event.header`
    event_ignored: tuple[str, ...] = ()
    identity: Mapping[str, str] = Field(default_factory=dict)
    identity_optional: tuple[str, ...] = ()
    identity_same: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # members that hold the same value
    facts: Mapping[str, str] = Field(default_factory=dict)  # further facts, pointers into the (item's) evidence
    delivery_id: DeliveryId
    actors: tuple[str, ...] = ()
    handshakes: tuple[Handshake, ...] = ()
    tests: tuple[Condition, ...] = ()
    refused: Mapping[str, Condition] = Field(default_factory=dict)  # reason -> an item of this shape is rejected
    lifecycle: Condition | None = None  # items kept for renewal, never dispatched
    # an outcome's name, `success` (every answer that is not a whole delivery's refusal), or a default status as text
    statuses: Mapping[str, int] = Field(default_factory=dict)
    body_limit_bytes: int | None = None
    answer_within_s: float = 2
    retries: str = ""  # how the provider retries and disables, for people; source URL beside it in the file
    secret_help: str = ""  # where an operator finds the secret

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse what pydantic cannot see: bad pointers and parts, a proof that leaves the body or its key unbound."""
        problems = [*_bad_parts(self), *_bad_layout(self.proof), *_bad_references(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self


def layout_piece(text: str) -> tuple[str, str]:
    """Read one piece of a layout: (`body`, ""), (`header`, NAME), (`signature`, NAME) or (`literal`, text)."""
    if text == "{body}":
        return "body", ""
    if text.startswith("{") and text.endswith("}"):
        kind, _, name = text[1:-1].partition(":")
        if kind not in {"header", "signature"} or not name:
            raise ValueError(f"{text}: not {{body}}, {{header:NAME}} or {{signature:NAME}}")
        return kind, name
    return "literal", text


def _bad_part(part: str) -> str | None:
    """Return what is wrong with a part, None where it is well formed."""
    part = part.removesuffix("?")
    if part.startswith("header:"):
        name = part.removeprefix("header:")
        return None if name and name == name.lower() else f"{part}: header names are lower case"
    if part == "body-digest" or (part.startswith("@") and len(part) > 1):
        return None
    pointer = part.removeprefix("digest:").partition(" without ")[0]
    try:
        pointers.parse(pointer)
    except ValueError as error:
        return f"{part}: {error}"
    return None


def _bad_parts(profile: Profile) -> list[str]:
    conditions = [*profile.tests, *profile.refused.values(), *(shake.when for shake in profile.handshakes)]
    if profile.lifecycle is not None:
        conditions.append(profile.lifecycle)
    shapes = profile.event.shapes.values()
    parts = [
        *profile.event.parts,
        *(part for parts in profile.event.alternatives for part in parts),
        *profile.identity.values(),
        *(part for same in profile.identity_same.values() for part in same),
        *profile.facts.values(),
        *profile.actors,
        *profile.delivery_id.agree,
        *(part for parts in profile.delivery_id.parts for part in parts),
        *(pointer for condition in conditions for pointer in (*condition.equals, *condition.present)),
        *(pointer for shape in shapes for pointer in (*shape.required, *shape.forbidden, *shape.equals)),
    ]
    return [bad for part in parts if (bad := _bad_part(part)) is not None]


def _bad_layout(proof: Proof) -> list[str]:
    if not isinstance(proof, MacProof | Ed25519Proof):
        return []
    try:
        kinds = [layout_piece(piece)[0] for piece in proof.layout]
    except ValueError as error:
        return [str(error)]
    return [] if kinds.count("body") == 1 else ["proof.layout: must cover {body} exactly once"]


def _bad_references(profile: Profile) -> list[str]:
    proof = profile.proof
    problems = [
        f"{key}: {name} is no identity"
        for key, names in (("identity_optional", profile.identity_optional), ("identity_same", profile.identity_same))
        for name in names
        if name not in profile.identity
    ]
    if isinstance(proof, JwtProof):
        known = {*proof.facts, *proof.picked}
        if proof.audience not in profile.identity:
            problems.append("proof.audience: is no identity")
        problems += [
            f"identity.{name}: no such fact"
            for name, part in profile.identity.items()
            if part.startswith("@") and part[1:] not in known
        ]
    if isinstance(proof, ClientStateProof) and profile.items != proof.items:
        problems.append("items: differs from proof.items")
    if profile.freshness is not None and not profile.freshness.at.startswith("/"):
        layout = proof.layout if isinstance(proof, MacProof | Ed25519Proof) else ()
        if f"{{{profile.freshness.at}}}" not in layout:
            problems.append("freshness.at: is not covered by the proof")
    return problems


class Source(Value, eq=False):
    """An operator's registered ingress without its secrets: what the pure core may know of it.

    Compared by identity, so that what is worked out for one source can be kept by it (`functools.lru_cache`).
    """

    name: str
    profile: Profile
    identity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    self_ids: frozenset[str] = frozenset()
    origin: str | None = None
    freshness_s: float | None = None


def load_profile(path: Path) -> Profile:
    """Read one profile file, or give what was read of it before it changed. Raises ConfigError with every problem found in it."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError([Problem(str(path), "", f"cannot be read: {error.strerror}", "repair the file")]) from error
    return _read_profile(path, status.st_mtime_ns, status.st_ino, status.st_size)


@functools.lru_cache(maxsize=256)
def _read_profile(path: Path, *_changed: int) -> Profile:
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        profile = Profile.model_validate(document)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(
                    str(path), ".".join(map(str, e["loc"])), e["msg"], "see the Profile type in gateway/profiles.py"
                )
                for e in error.errors(include_input=False, include_url=False)
            ],
        ) from error
    except (OSError, ValueError, YAMLError) as error:  # ValueError: no UTF-8, or a scalar that YAML cannot build
        raise ConfigError([Problem(str(path), "", f"cannot be read: {error}", "repair the file")]) from error
    if profile.name != path.stem:
        raise ConfigError([Problem(str(path), "name", "differs from the file's name", f"name it {path.stem}")])
    return profile


def profile_names(folder: Path) -> list[str]:
    """Return the names of a folder's profiles."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_profiles(folder: Path, wanted: Iterable[str] | None = None) -> dict[str, Profile]:
    """Read the `wanted` profiles that a folder has, or all, by name. Raises ConfigError with the problems of all those files.

    Reading one takes several ms: a start reads what its sources have.
    """
    profiles: dict[str, Profile] = {}
    problems: list[Problem] = []
    names = profile_names(folder)
    for name in names if wanted is None else [name for name in names if name in frozenset(wanted)]:
        path = folder / f"{name}.yaml"
        try:
            profile = load_profile(path)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            profiles[profile.name] = profile
    if problems:
        raise ConfigError(problems)
    return profiles
