"""`Settings`: the operator's one TOML file, frozen and closed. The only reader of the environment.

Every problem of the file, its profiles, secret references and enrolled documents is collected and raised at once as
ConfigError. Secrets are references (`env:NAME`, `file:/path`); their values are read by `resolve` and kept nowhere here.
"""

import difflib
import hashlib
import os
import pwd
import re
import socket
import stat
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from gateway import files
from gateway.addresses import check_bind, check_https, check_networks, check_store, is_host
from gateway.errors import ConfigError, Problem
from gateway.profiles import JwtProof, Profile, Source, load_profiles
from gateway.salvage import concerns, place_of, readable
from gateway.subscriptions import MAX_BYTES, Enrolled, Index, Subscription, build_index, load_subscription
from gateway.verify import secret_problem

NAME = r"[a-z0-9][a-z0-9-]{0,62}"
ENGINE_NEEDS = {"hypercorn": (), "uvicorn": ("uvicorn", "httptools")}
MODES = ("auto", "ask", "deny")
SECRET_BYTES = 65_536  # more is no secret but a wrong file
MAX_TOML_BYTES = 16 * 1024 * 1024  # entries of some hundred thousand subscriptions
LEAST_TOKEN = 16  # bytes of an operator's token
GITHUB_ACTIONS_BOT = 41898282  # https://api.github.com/users/github-actions%5Bbot%5D: any job's token acts as it
Mode = Literal["auto", "ask", "deny"]
Stamp = tuple[tuple[str, int, int, int], ...]  # name, time of change, size and inode of each file


# A number is one: no text, no boolean, nothing infinite.
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Yes = Annotated[bool, Strict()]
Text = Annotated[str, StringConstraints(min_length=1)]


class Model(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def check_reference(reference: str) -> str:
    """Return the secret reference; it is `env:NAME` or `file:/absolute/path`, never a value."""
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", reference) or re.fullmatch(r"file:/.+", reference):
        return reference
    if reference.startswith("file:"):
        raise ValueError("must name an absolute path: file:/path")
    raise ValueError("must be a reference: env:NAME or file:/path (the value itself never stands here)")


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


@dataclass(frozen=True, slots=True)
class Base:
    """The settings and sources, without what is enrolled."""

    file: Path
    settings: Settings
    profiles: Mapping[str, Profile]
    sources: Mapping[str, Source]

    @property
    def folder(self) -> Path:
        """The folder of the enrolled documents and of the enrollments beside them."""
        return self.file.parent / self.settings.subscriptions.path


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a process runs on: the settings and all that they name, loaded and checked together."""

    file: Path
    settings: Settings
    profiles: Mapping[str, Profile]
    sources: Mapping[str, Source]
    enrolled: tuple[Enrolled, ...]
    index: Index
    documents: Mapping[bytes, Subscription] = field(default_factory=dict)  # by the SHA-256 of their bytes
    stamp: Stamp = ()


def data_folder(name: str) -> Path:
    """The shipped folder `profiles` or `subscriptions`: inside the wheel, or at the root of a checkout."""
    packaged = Path(__file__).parent / "data" / name
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / name


def default_path() -> Path:
    """`gateway.toml` here, else what GATEWAY_CONFIG names."""
    here = Path("gateway.toml")
    named = os.environ.get("GATEWAY_CONFIG")
    return here if here.exists() or not named else Path(named)


def operator() -> str:
    """Who acts: GATEWAY_OPERATOR, else the user behind sudo, else this user; with the machine's name."""
    name = os.environ.get("GATEWAY_OPERATOR") or os.environ.get("SUDO_USER")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container's user has no name
            name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def resolve(reference: str) -> bytes:
    """The value of a secret reference, without a file's one trailing newline. Raises ValueError, never with the value."""
    kind, _, name = check_reference(reference).partition(":")
    value = os.environ.get(name, "").encode(errors="surrogateescape") if kind == "env" else _content(name)
    if not value:
        raise ValueError(f"{reference} is {'not set or empty' if kind == 'env' else 'empty'}")
    return value


def _content(name: str) -> bytes:
    """A secret's file. Anything but a regular file of a secret's size is refused: reading it might never end."""
    try:
        status = Path(name).stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= SECRET_BYTES:
            return Path(name).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ValueError(f"file:{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"file:{name} cannot be read: Is a directory")
    what = f"over {SECRET_BYTES} bytes: no secret" if stat.S_ISREG(status.st_mode) else "not a regular file"
    raise ValueError(f"file:{name} is {what}")


def text_problem(value: bytes) -> str | None:
    """Say why a secret cannot be what the other side has, None where it can. Never quotes it."""
    if any(byte < 0x20 or byte == 0x7F for byte in value):
        return "holds a line break or another control character"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    return None


def load_configuration(path: Path, before: Configuration | None = None) -> Configuration:
    """Read the file and everything it names. Raises ConfigError with every problem found.

    Documents that are unchanged since `before` are not compiled again: a change among ten thousand is taken in a second.
    """
    base, problems = _load_base(path, secrets=True)
    stamp = folder_stamp(base.folder)  # before reading: what changes while we read is seen at the next look
    try:
        documents, broken = _documents(base.folder, {} if before is None else before.documents)
        enrolled, found = _enrolled(base, documents)
    except ConfigError as error:
        told = any(problem.key == "subscriptions.path" for problem in problems)
        raise ConfigError(problems if told else [*problems, *error.problems]) from None
    problems += broken + found
    if before is not None and before.documents and not base.folder.exists():
        fix = "put it back, as it was or empty: that it is gone revokes nothing"
        problems.append(Problem(str(path), "subscriptions.path", f"{base.folder} is gone", fix))
    if problems:
        raise ConfigError(problems)
    index = build_index(enrolled, base.sources)
    return Configuration(path, base.settings, base.profiles, base.sources, enrolled, index, documents, stamp)


def load_base(path: Path) -> Base:
    """Read the file without the enrolled documents and without a secret's value, for a command that needs neither.

    Raises ConfigError with every problem found.
    """
    base, problems = _load_base(path, secrets=False)
    if problems:
        raise ConfigError(problems)
    return base


def enrollments(base: Base) -> tuple[tuple[Enrolled, ...], list[Problem]]:
    """Read what is enrolled, with the problems instead of an error: what is broken is left out and told."""
    documents, broken = _documents(base.folder, {})
    enrolled, problems = _enrolled(base, documents)
    return enrolled, broken + problems


def folder_stamp(folder: Path) -> Stamp:
    """What tells one state of the subscriptions folder from another, without reading a file."""
    found = []
    try:
        with os.scandir(folder) as entries:  # a tenth of a glob's cost, and every second
            for entry in entries:
                if entry.name.endswith((".json", ".toml")):
                    with suppress(OSError):  # gone between the two calls: the next look sees it
                        status = entry.stat()
                        found.append((entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:  # a state too; whoever reads the folder says what is wrong
        return ((type(error).__name__, 0, 0, 0),)
    return tuple(sorted(found))


def folder_files(folder: Path, suffix: str) -> list[Path]:
    """List the subscriptions folder's files that end so. Raises ConfigError where it cannot be listed."""
    try:
        return files.listed(folder, suffix)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"cannot be listed: {getattr(error, 'strerror', None) or error}"
        fix = "make it a folder that can be read; what is enrolled stands in it"
        raise ConfigError([Problem(str(folder), "", why, fix)]) from None


def read_text(file: Path) -> str:
    """Read a TOML file. Raises ConfigError."""
    try:
        return files.read(file, MAX_TOML_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError([Problem(str(file), "", f"cannot be read: {error.strerror}", "name a TOML file")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(file), "", f"is no UTF-8: {error.reason}", "save it as UTF-8")]) from None


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(file), "", f"is not readable TOML: {error}", "repair the syntax")]) from None


def read_entries(file: Path) -> tuple[Enrollment, ...]:
    """Read a TOML file beside the documents. Raises ConfigError, never with a value of it."""
    try:
        return EnrollmentFile.model_validate(_toml(file)).enrollments
    except ValidationError as error:
        raise ConfigError(model_problems(str(file), error)) from None


def _load_base(path: Path, *, secrets: bool) -> tuple[Base, list[Problem]]:
    settings, told = _parse(path)
    problems: list[Problem] = []
    profiles = load_profiles(data_folder("profiles"))
    sources: dict[str, Source] = {}
    for name, source in settings.sources.items():
        profile = profiles.get(source.profile)
        key = f"sources.{name}"
        if not re.fullmatch(NAME, name):
            problems.append(Problem(str(path), key, "is no source name", "use a-z, 0-9 and -, at most 63"))
        if profile is None:
            problems.append(_unknown_profile(path, f"{key}.profile", source.profile, profiles))
            continue
        problems += _source_problems(path, key, source, profile)
        sources[name] = Source(
            name,
            profile,
            dict(source.identity),
            frozenset(source.self_),
            source.origin,
            source.freshness_s,
        )
    problems += _place_problems(path, settings)
    if secrets:
        problems += _secret_problems(path, settings, sources) + _operator_problems(path, settings, profiles)
    keys = [problem.key for problem in told]
    return Base(path, settings, profiles, sources), [*told, *(p for p in problems if not concerns(p.key, keys))]


def _place_problems(path: Path, settings: Settings) -> list[Problem]:
    """Folders and files that the settings name, where they stand and are of the wrong kind."""
    folder = path.parent / settings.subscriptions.path
    problems = []
    try:
        list(os.scandir(folder))
    except FileNotFoundError:
        pass  # the first enrollment makes it
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"{folder} cannot be listed: {getattr(error, 'strerror', None) or error}"
        problems.append(Problem(str(path), "subscriptions.path", why, "make it a folder that this user may read"))
    embedded = settings.store.embedded
    if embedded is not None:
        try:
            stat_ = (path.parent / embedded).stat()
        except FileNotFoundError:
            stat_ = None
        except (OSError, ValueError) as error:
            why = f"cannot be opened: {getattr(error, 'strerror', None) or error}"
            problems.append(Problem(str(path), "store.embedded", why, "make it a folder that this user may write"))
            return problems
        if stat_ is not None and not stat.S_ISDIR(stat_.st_mode):
            fix = "make it a folder that this user may write"
            problems.append(Problem(str(path), "store.embedded", "is no folder", fix))
    elif settings.store.url is not None:
        problems += [
            Problem(str(path), "store.url", f"ssl_ca_certs: {ca} is no file", "name the CA's PEM")
            for ca in parse_qs(urlsplit(settings.store.url).query).get("ssl_ca_certs", ())
            if not Path(ca).is_file()
        ]
    return problems


def _secret_problems(path: Path, settings: Settings, sources: Mapping[str, Source]) -> list[Problem]:
    problems = [
        Problem(str(path), key, str(error), "set it, or correct the reference")
        for key, reference in references(settings)
        if (error := _unresolved(reference)) is not None
    ]
    good = [(key, reference) for key, reference in references(settings) if _unresolved(reference) is None]
    fix = "write the secret alone, on one line"
    problems += [
        Problem(str(path), key, f"{reference} {error}", fix)
        for key, reference in good
        if key != "github.private_key" and (error := text_problem(resolve(reference))) is not None
    ]
    odd = {problem.key for problem in problems}
    return problems + [
        Problem(str(path), key, error, f"{reference} must hold the provider's own secret")
        for name, source in sources.items()
        for label, reference, _ in settings.sources[name].references()
        if (key := f"sources.{name}.secrets.{label}") not in odd
        and (error := secret_problem(source.profile.proof, resolve(reference)))
    ]


def _operator_problems(path: Path, settings: Settings, profiles: Mapping[str, Profile]) -> list[Problem]:
    """What an operator's own secrets must be: a token long enough to withstand guessing, a Standard Webhooks secret."""
    fix = "use 16 or more random characters, such as the output of: openssl rand -base64 24"
    problems = [
        Problem(str(path), f"server.operator_tokens.{place}", f"{reference} is shorter than {LEAST_TOKEN} bytes", fix)
        for place, reference in enumerate(settings.server.operator_tokens)
        if _unresolved(reference) is None and len(resolve(reference)) < LEAST_TOKEN
    ]
    notifications = settings.notifications
    if notifications is not None and _unresolved(notifications.secret) is None:
        error = secret_problem(profiles["standard-webhooks"].proof, resolve(notifications.secret))
        if error is None and resolve(notifications.secret).startswith(b"whpk_"):
            error = "is a public key, which cannot sign"
        if error is not None:
            problems.append(Problem(str(path), "notifications.secret", error, "give the secret that your receiver has"))
    return problems


def _parse(path: Path) -> tuple[Settings, list[Problem]]:
    """Return the settings and what is wrong with them; with problems they are what can be read of the rest."""
    try:
        document = _toml(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        fix = "give --config FILE, set GATEWAY_CONFIG, or see docs/quickstart.md"
        raise ConfigError([Problem(str(path), "", "does not exist", fix)]) from None
    try:
        return Settings.model_validate(document), []
    except ValidationError as error:
        problems = model_problems(str(path), error)
        faults = [place_of(entry["loc"]) for entry in error.errors(include_input=False, include_url=False)]
    try:
        return Settings.model_validate(readable(document, faults)), problems
    except ValidationError as error:
        told = [problem.key for problem in problems]
        more = [problem for problem in model_problems(str(path), error) if not concerns(problem.key, told)]
        raise ConfigError([*problems, *more]) from None


def model_problems(file: str, error: ValidationError) -> list[Problem]:
    """What a model refused, in an operator's words: never the value, which may be a secret in the wrong place."""
    problems = []
    for entry in error.errors(include_input=False, include_url=False, include_context=False):
        key = ".".join(str(part) for part in entry["loc"] if "[" not in str(part))
        text, fix = {
            "extra_forbidden": ("is no key that is known here", "remove it or correct its name"),
            "missing": ("is missing", "add it; docs/configuration.md shows every key"),
            "tuple_type": ("is not a list", 'write ["..."]'),
            "model_type": ("is not a table", f"write [{key}]"),
            "dict_type": ("is not a table", f"write [{key}]"),
            "mapping_type": ("is not a table", f"write [{key}]"),
            "string_type": ("is not text", 'write it in quotes: "..."'),
            "string_too_short": ("is empty", "give a value, or remove it"),
            "int_type": ("is not a whole number", "write the number without quotes"),
            "float_type": ("is not a number", "write the number without quotes"),
            "bool_type": ("is neither true nor false", "write true or false, without quotes"),
        }.get(entry["type"], (entry["msg"].removeprefix("Value error, "), "correct the value"))
        problems.append(Problem(file, key, text, fix))
    return problems


def _unknown_profile(path: Path, key: str, name: str, profiles: Iterable[str]) -> Problem:
    close = difflib.get_close_matches(name, list(profiles), 1)
    fix = f"did you mean {close[0]}?" if close else "see: gateway profiles list"
    return Problem(str(path), key, f"{name} is no profile", fix)


def _source_problems(path: Path, key: str, source: SourceSettings, profile: Profile) -> list[Problem]:
    problems = []
    if isinstance(profile.proof, JwtProof):
        if source.secrets:
            fix = "remove it: the provider's published keys prove its tokens"
            problems.append(Problem(str(path), f"{key}.secrets", f"profile {profile.name} takes no secrets", fix))
    elif not source.secrets:
        fix = f'give at least one reference, such as ["env:SECRET"]. {profile.secret_help}'.strip()
        problems.append(Problem(str(path), f"{key}.secrets", "is missing or empty", fix))
    if isinstance(source.secrets, Mapping) and profile.proof.scheme != "client-state":
        problems.append(Problem(str(path), f"{key}.secrets", "a table is for Graph sources alone", "give a list"))
    for name in sorted(source.identity.keys() - profile.identity.keys()):
        known = ", ".join(profile.identity) or "none"
        problems.append(
            Problem(str(path), f"{key}.identity.{name}", "is not an identity of the profile", f"one of: {known}")
        )
    for name in profile.identity:
        if name not in profile.identity_optional and not source.identity.get(name):
            fix = f'add identity = {{ {name} = ["..."] }}: deliveries of another {name} are refused by it'
            problems.append(Problem(str(path), f"{key}.identity.{name}", "is missing or empty", fix))
    for name, values in source.identity.items():
        if "..." in values:
            fix = "write the value; gateway profiles show says where it stands in a delivery"
            problems.append(Problem(str(path), f"{key}.identity.{name}", "is still the placeholder ...", fix))
    return problems


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


def _unresolved(reference: str) -> str | None:
    try:
        resolve(reference)
    except ValueError as error:
        return str(error)
    return None


def _documents(folder: Path, known: Mapping[bytes, Subscription]) -> tuple[dict[bytes, Subscription], list[Problem]]:
    """Load the folder's documents by the SHA-256 of their bytes; one that is known is taken as it is."""
    problems: list[Problem] = []
    documents: dict[bytes, Subscription] = {}
    for file in folder_files(folder, ".json"):
        try:
            data = files.read(file, MAX_BYTES)
            key = hashlib.sha256(data).digest()
            documents[key] = known[key] if key in known else load_subscription(data, str(file))
        except OSError as error:
            problems.append(
                Problem(str(file), "", f"cannot be read: {error.strerror}", "make it readable, or remove it")
            )
        except ConfigError as error:
            problems += error.problems
    return documents, problems


def _enrolled(base: Base, loaded: Mapping[bytes, Subscription]) -> tuple[tuple[Enrolled, ...], list[Problem]]:
    path, settings, sources, folder = base.file, base.settings, base.sources, base.folder
    problems: list[Problem] = []
    documents = {subscription.digest: subscription for subscription in loaded.values()}
    entries = [(path, f"enrollments.{n}", entry) for n, entry in enumerate(settings.enrollments)]
    for file in folder_files(folder, ".toml"):
        try:
            entries += [(file, f"enrollments.{n}", entry) for n, entry in enumerate(read_entries(file))]
        except ConfigError as error:
            problems += error.problems
    enrolled: dict[str, Enrolled] = {}
    first: dict[str, Enrollment] = {}
    for file, key, entry in entries:
        known = enrolled.get(entry.subscription)
        subscription_or_none = documents.get(entry.subscription)
        if entry.source not in sources:
            if entry.source not in settings.sources:
                problems.append(
                    Problem(str(file), f"{key}.source", f"{entry.source} is no source", "name one of [sources]")
                )
        elif subscription_or_none is None:
            fix = f"enroll what gateway compile wrote, put the document into {folder}, or remove the entry"
            problems.append(Problem(str(file), f"{key}.subscription", f"{entry.subscription} has no document", fix))
        elif known is not None and known.source != entry.source:
            fix = f"one digest has one source: remove one of {known.source} and {entry.source}"
            problems.append(Problem(str(file), f"{key}.subscription", "is enrolled for two sources", fix))
        elif known is not None and entry != first[entry.subscription]:
            fix = "keep the one that you mean; of two, neither is taken for right"
            problems.append(Problem(str(file), f"{key}.subscription", "is enrolled twice with different values", fix))
        elif known is None:
            first[entry.subscription] = entry
            mode = max(entry.mode, settings.sources[entry.source].mode, key=MODES.index)  # the stricter wins
            enrolled[entry.subscription] = Enrolled(
                subscription_or_none,
                entry.source,
                entry.installation,
                entry.url_template,
                mode,
                entry.attested,
                entry.repository_id,
            )
    return tuple(enrolled.values()), problems


class EnrollmentFile(Model):
    """A TOML file beside an enrolled document."""

    enrollments: tuple[Enrollment, ...] = ()
