"""`Settings`: the operator's one TOML file, frozen and closed. Secrets are references (`env:NAME`, `file:/path`)."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    field_validator,
    model_validator,
)

from gateway.addresses import check_bind, check_https, check_networks, check_store, is_host
from gateway.environment import check_reference

NAME = r"[a-z0-9][a-z0-9-]{0,62}"
ENGINE_NEEDS = {"hypercorn": (), "uvicorn": ("uvicorn", "httptools")}
MODES = ("auto", "ask", "deny")
GITHUB_ACTIONS_BOT = 41898282  # https://api.github.com/users/github-actions%5Bbot%5D: any job's token acts as it
Mode = Literal["auto", "ask", "deny"]
# A number is one: no text, no boolean, nothing infinite.
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Yes = Annotated[bool, Strict()]
Text = Annotated[str, StringConstraints(min_length=1)]


class Model(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Server(Model):
    """`[server]`."""

    bind: str = "0.0.0.0:8080"
    admin_bind: str = "127.0.0.1:8081"
    operator_tokens: tuple[str, ...] = ()
    admin_hosts: tuple[str, ...] = ()
    public_url: str | None = None
    workers: Whole = Field(default=1, ge=1, le=64)
    engine: Literal["hypercorn", "uvicorn"] = "hypercorn"
    body_limit_bytes: Whole = Field(default=26_214_400, ge=1024, le=104_857_600)
    body_deadline_s: Number = Field(default=8.0, gt=0, le=60)
    trusted_proxies: tuple[str, ...] = ()

    _proxies = field_validator("trusted_proxies")(check_networks)
    _tokens = field_validator("operator_tokens")(lambda values: tuple(check_reference(v) for v in values))
    _url = field_validator("public_url")(lambda value: value and check_https(value))
    _binds = field_validator("bind", "admin_bind")(check_bind)

    @field_validator("engine")
    @classmethod
    def _engine(cls, value: str) -> str:
        missing = [name for name in ENGINE_NEEDS[value] if find_spec(name) is None]
        if missing:
            raise ValueError(f"needs {' and '.join(missing)}: pip install 'webhook-gateway[{value}]'")
        return value

    @field_validator("admin_hosts")
    @classmethod
    def _hosts(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        names = [re.sub(r":[0-9]+$", "", value).strip("[]") for value in values]
        bad = [str(place) for place, name in enumerate(names) if not is_host(name)]
        if bad:
            raise ValueError(f"entry {', '.join(bad)}: must be a host name, or HOST:PORT, without https://")
        return values


class Limits(Model):
    """`[limits]`: what one process takes on at once, and what may wait in the store."""

    requests: Whole = Field(default=3_000, ge=16, le=100_000)
    body_bytes: Whole = Field(default=134_217_728, ge=1_048_576)
    failures_per_s: Number = Field(default=50.0, gt=0)
    queue: Whole = Field(default=2_000_000, ge=1)
    queue_source: Whole = Field(default=1_000_000, ge=1)


class StoreSettings(Model):
    """`[store]`: an address, or an embedded Valkey's folder."""

    url: str | None = None
    embedded: str | None = None
    wait_replicas: Whole = Field(default=0, ge=0, le=16)
    durability: Literal["strict", "relaxed"] = "strict"

    @model_validator(mode="after")
    def _one(self) -> "StoreSettings":
        if (self.url is None) == (self.embedded is None):
            raise ValueError("needs exactly one of url and embedded")
        if self.url is not None:
            check_store(self.url)
        if self.wait_replicas and (self.url is None or self.url.startswith("redis+cluster:")):
            raise ValueError("wait_replicas needs a single primary with replicas: no embedded store, no Cluster")
        return self


class GitHub(Model):
    """`[github]`: the App that dispatches."""

    api_url: str = "https://api.github.com"
    app_id: Whole = Field(gt=0)
    sender_id: Whole | None = Field(default=None, gt=0)
    private_key: str

    _url = field_validator("api_url")(check_https)
    _key = field_validator("private_key")(check_reference)

    @field_validator("sender_id")
    @classmethod
    def _not_everyone(cls, value: int | None) -> int | None:
        if value == GITHUB_ACTIONS_BOT:
            raise ValueError("is github-actions[bot]: any job could then pass; give the App's own bot user id")
        return value


class AdmissionSettings(Model):
    """`[admission]`."""

    audience_prefix: Text = "gh-aw-gateway:"
    window_s: Whole = Field(default=86_400, ge=60, le=604_800)
    issuer: str = "https://token.actions.githubusercontent.com"
    jwks_url: str = "https://token.actions.githubusercontent.com/.well-known/jwks"

    _urls = field_validator("issuer", "jwks_url")(check_https)


class Notifications(Model):
    """`[notifications]`: the operator's own webhook, signed as Standard Webhooks."""

    url: str
    secret: str
    repeat_s: Whole = Field(default=86_400, ge=300, le=2_592_000)
    hourly: Whole = Field(default=30, ge=1, le=1000)

    _url = field_validator("url")(check_https)
    _secret = field_validator("secret")(check_reference)


class Tracing(Model):
    """`[tracing]`: where OpenTelemetry traces go (OTLP over HTTP), and which share of deliveries is traced."""

    endpoint: str
    ratio: Number = Field(default=1.0, ge=0, le=1)

    _url = field_validator("endpoint")(check_https)


class SubscriptionsSettings(Model):
    """`[subscriptions]`: the folder of enrolled documents, relative to the configuration file."""

    path: str = "subscriptions/enrolled"


class OAuth(Model):
    """A provider API's client credentials, where a static token cannot last."""

    token_url: str
    client_id: Text
    client_secret: str
    scope: Text

    _url = field_validator("token_url")(check_https)
    _secret = field_validator("client_secret")(check_reference)


class SourceSettings(Model):
    """`[sources.NAME]`: one profile, secret references, and the identity deliveries must come from."""

    profile: str
    secrets: tuple[str, ...] | Mapping[str, str | tuple[str, ...]] = ()
    identity: Mapping[str, tuple[Text, ...]] = Field(default_factory=dict)
    origin: str | None = None
    self_: tuple[Text, ...] = Field(default=(), alias="self")
    freshness_s: Number | None = Field(default=None, gt=0, le=86_400)
    mode: Mode = "auto"
    jwks_url: str | None = None
    body_limit_bytes: Whole | None = Field(default=None, ge=1024)
    silent_after_s: Number = Field(default=86_400, ge=0)
    api_url: str | None = None
    api_token: str | None = None
    api_oauth: OAuth | None = None

    _urls = field_validator("jwks_url", "api_url", "origin")(lambda value: value and check_https(value))
    _token = field_validator("api_token")(lambda value: value and check_reference(value))

    @field_validator("secrets", mode="before")
    @classmethod
    def _references(cls, value: Any) -> Any:
        entries = list(value.values()) if isinstance(value, Mapping) else [value]
        if isinstance(value, Mapping):
            entries = [[one] if isinstance(one, str) else one for one in entries]
        if not all(
            isinstance(listed, list | tuple) and all(isinstance(one, str) for one in listed) for listed in entries
        ):
            raise ValueError('must be a list of references, such as ["env:SECRET"]')
        return value

    def references(self) -> tuple[tuple[str, str, str | None], ...]:
        """Every secret as (label, reference, subscription id it is bound to or None)."""
        if isinstance(self.secrets, Mapping):
            return tuple(
                (f"{subscription}/{position}", reference, subscription)
                for subscription, value in self.secrets.items()
                for position, reference in enumerate([value] if isinstance(value, str) else value)
            )
        return tuple((str(position), reference, None) for position, reference in enumerate(self.secrets))


class Enrollment(Model):
    """`[[enrollments]]`: this digest, from this source, to its repository through this App installation."""

    subscription: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    source: str
    installation: Whole = Field(gt=0)
    mode: Mode = "auto"
    url_template: str | None = None
    attested: Yes = False
    repository_id: Whole | None = Field(default=None, gt=0)


class Settings(Model):
    """The whole file."""

    server: Server = Server()
    limits: Limits = Limits()
    store: StoreSettings
    github: GitHub
    admission: AdmissionSettings = AdmissionSettings()
    subscriptions: SubscriptionsSettings = SubscriptionsSettings()
    notifications: Notifications | None = None
    tracing: Tracing | None = None
    sources: Mapping[str, SourceSettings]
    enrollments: tuple[Enrollment, ...] = ()


def references(settings: Settings) -> list[tuple[str, str]]:
    """Every secret reference of the file, by its key."""
    found = [("github.private_key", settings.github.private_key)]
    found += [(f"server.operator_tokens.{n}", r) for n, r in enumerate(settings.server.operator_tokens)]
    if settings.notifications:
        found.append(("notifications.secret", settings.notifications.secret))
    for name, source in settings.sources.items():
        found += [(f"sources.{name}.secrets.{label}", reference) for label, reference, _ in source.references()]
        if source.api_token:
            found.append((f"sources.{name}.api_token", source.api_token))
        if source.api_oauth:
            found.append((f"sources.{name}.api_oauth.client_secret", source.api_oauth.client_secret))
    return found
