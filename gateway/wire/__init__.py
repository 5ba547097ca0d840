"""Webhooks at the providers: registered, compared and renewed through their APIs, or explained where there is none.

A provider is one module with a `PROVIDER` row; `BY_PROFILE` says which profile it serves.
"""

import aiohttp

from gateway.configuration import Configuration
from gateway.environment import resolve
from gateway.profiles import Source
from gateway.settings import SourceSettings
from gateway.structs import Opaque
from gateway.wire import azure_devops, github, gitlab, jira, linear, microsoft_graph
from gateway.wire.api import Api, OAuthClient, WireRefused
from gateway.wire.engine import BAD, apply, due, fingerprint, look, mark_name, renew, to_do
from gateway.wire.instructions import instructions
from gateway.wire.turn import alone
from gateway.wire.types import Difference, Found, Hook, Provider, Row, Want, WireProblem

BY_PROFILE: dict[str, Provider] = {
    "github": github.PROVIDER,
    "gitlab-token": gitlab.PROVIDER,
    "gitlab-signing": gitlab.PROVIDER,
    "linear": linear.PROVIDER,
    "jira": jira.PROVIDER,
    "azure-devops": azure_devops.PROVIDER,
    "microsoft-graph": microsoft_graph.PROVIDER,
}


class Wiring(Opaque):
    """Everything that one source's wiring is done with."""

    provider: Provider
    api: Api
    want: Want
    key: bytes


def want_for(configuration: Configuration, name: str) -> Want:
    """What a source needs of its provider. Raises WireProblem where the configuration does not say."""
    settings, source = configuration.settings, configuration.sources[name]
    if settings.server.public_url is None:
        raise WireProblem("server.public_url is not set: a provider has to know where to send")
    references = settings.sources[name].references()
    secret = resolve(references[0][1]).decode() if references else ""
    enrolled = tuple(one.subscription for one in configuration.enrolled if one.source == name)
    url = f"{settings.server.public_url}/hooks/{name}"
    return Want(name, url, secret, source.profile.name == "gitlab-signing", enrolled)


def wiring_for(configuration: Configuration, name: str, session: aiohttp.ClientSession) -> Wiring:
    """The wiring of a source whose provider has an API. Raises WireProblem with the next step."""
    source, settings = configuration.sources[name], configuration.settings.sources[name]
    provider, want = BY_PROFILE[source.profile.name], want_for(configuration, name)
    if not want.subscriptions:
        raise WireProblem(f"no subscription is enrolled for {name}: gateway enroll FILE --source {name}")
    base = settings.api_url or _api_of(source, provider)
    if base is None:
        raise WireProblem(f"sources.{name}.api_url is not set: the address of your {provider.title}")
    credential = _credential(name, settings, provider)
    hidden = (want.secret, credential if isinstance(credential, str) else credential.client_secret)
    api = Api(session, base, provider.authorize, credential, hidden)
    return Wiring(provider, api, want, resolve(configuration.settings.github.private_key))


def _api_of(source: Source, provider: Provider) -> str | None:
    """The API of a provider that the operator hosts, from the source's origin; else the public one."""
    if source.origin is None or provider.api_url is None:
        return provider.api_url if source.origin is None else source.origin
    suffix = {"GitHub": "/api/v3", "GitLab": "/api/v4"}.get(provider.title, "")
    return source.origin + suffix


def _credential(name: str, settings: SourceSettings, provider: Provider) -> str | OAuthClient:
    if settings.api_token is not None:
        return resolve(settings.api_token).decode()
    oauth = settings.api_oauth
    if oauth is not None:
        return OAuthClient(oauth.token_url, oauth.client_id, resolve(oauth.client_secret).decode(), oauth.scope)
    raise WireProblem(
        f"sources.{name}.api_token (or api_oauth) is not set: {provider.title} needs {provider.permission}. "
        "By hand: docs/providers.md#one-by-one"
    )


__all__ = [
    "BAD",
    "BY_PROFILE",
    "Api",
    "Difference",
    "Found",
    "Hook",
    "OAuthClient",
    "Provider",
    "Row",
    "Want",
    "WireProblem",
    "WireRefused",
    "Wiring",
    "alone",
    "apply",
    "due",
    "fingerprint",
    "instructions",
    "look",
    "mark_name",
    "renew",
    "to_do",
    "want_for",
    "wiring_for",
]
