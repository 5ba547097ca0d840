"""Look at a deployment from the outside in, and say what to mend. Changes nothing, and needs no running gateway."""

import asyncio
import logging
import socket
import ssl
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from gateway.addresses import loopback
from gateway.answers import GitHubAway, GitHubRefusal
from gateway.configuration import Configuration, load_configuration
from gateway.environment import resolve
from gateway.errors import ConfigError, Problem, Unavailable
from gateway.github import GitHubApp, open_session
from gateway.keys import fetch_jwks
from gateway.profiles import JwtProof
from gateway.settings import references
from gateway.storage import opened
from gateway.store import Store
from gateway.subscriptions import Enrolled

State = Literal["ok", "warn", "fail"]

CONNECT_S = 5.0
EXPIRES_SOON_S = 14 * 86_400
SKEW_WARN_S, SKEW_FAIL_S = 2.0, 30.0  # Forge tokens live 25 s, an App's JWT is dated back 60 s
STUCK_S = 3_600.0
LEAST_SECRET = 16
# https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event
NEEDED = {"contents": "write", "metadata": "read"}
LEVELS = {"read": 1, "write": 2, "admin": 3}
QUIET = ("/api/v1/deliveries", "/metrics")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` is empty where it is well."""

    check: str
    state: State
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """The finding as scripts read it."""
        return asdict(self)


Findings = AsyncGenerator[Finding, None]


async def examine(path: Path) -> Findings:
    """Yield findings as they are made, the configuration first; without one, nothing else can be looked at."""
    try:
        configuration = load_configuration(path)
    except ConfigError as error:
        for problem in error.problems:
            yield _of_problem("configuration", problem)
        return
    count, sources = len(configuration.enrolled), len(configuration.sources)
    yield Finding("configuration", "ok", f"{path}: {sources} source(s), {count} enrolled subscription(s)")
    for finding in unenrolled(configuration):
        yield finding
    async with open_session() as session:
        for part in (public_side, github_side, keys_side):
            async with aclosing(part(configuration, session)) as found:
                async for finding in found:
                    yield finding
        async with aclosing(store_side(configuration)) as found:
            async for finding in found:
                yield finding


def _of_problem(check: str, problem: Problem) -> Finding:
    return Finding(check, "fail", f"{problem.file}: {problem.key or '(file)'}: {problem.problem}", problem.fix)


def unenrolled(configuration: Configuration) -> list[Finding]:
    """What can never be dispatched: sources that nothing is enrolled for, subscriptions that are not active."""
    used = {one.source for one in configuration.enrolled}
    found = [
        Finding("enrollment", "warn", f"nothing is enrolled for source {name}", f"gateway enroll FILE --source {name}")
        for name in configuration.sources
        if name not in used
    ]
    for one, reason in configuration.index.inactive:
        fix = "recompile it for a profile that the source has, or enroll it for another source"
        found.append(Finding("enrollment", "fail", f"{one.subscription.digest} is inactive: {reason}", fix))
    return found


# -- the public address ------------------------------------------------------------------------------------------------


async def public_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """DNS, TLS and whether what answers there is a gateway that knows our sources, with its admin side hidden."""
    url = configuration.settings.server.public_url
    if url is None:
        yield Finding("public URL", "fail", "server.public_url is not set", 'set it: "https://hooks.example.com"')
        return
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot write
        yield Finding(
            "DNS",
            "fail",
            f"{host} does not resolve: {getattr(error, 'strerror', None) or error}",
            "add an A or AAAA record",
        )
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    yield Finding("DNS", "ok", f"{host} is {', '.join(addresses)}")
    if parts.scheme == "https":
        finding = await certificate(host, port)
        yield finding
        if finding.state == "fail":
            return
    elif not loopback(url):
        yield Finding("TLS", "fail", f"{url} is not https", "put a TLS proxy in front: deploy/nginx.conf")
    for name in configuration.sources:
        yield await _hook(session, f"{url}/hooks/{name}", name)
    for path in QUIET:
        finding_or_none = await _hidden(session, url + path)
        if finding_or_none is not None:
            yield finding_or_none


async def certificate(host: str, port: int, context: ssl.SSLContext | None = None) -> Finding:
    """Shake hands as a provider would: a chain that is trusted, the right name, and days left."""
    trusted = context or ssl.create_default_context()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=trusted, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        fix = "install a certificate for this name with its whole chain: providers verify it"
        return Finding("TLS", "fail", f"{host}:{port}: {error.verify_message}", fix)
    except (ssl.SSLError, OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (getattr(error, "strerror", None) or str(error))
        return Finding("TLS", "fail", f"{host}:{port}: {reason}", "start the proxy, open the port, or mend the address")
    peer: dict[str, Any] = writer.get_extra_info("peercert") or {}
    version = writer.get_extra_info("ssl_object").version()
    writer.close()
    left = ssl.cert_time_to_seconds(str(peer["notAfter"])) - time.time()
    detail = f"{version}, the certificate ends in {left / 86_400:.0f} day(s)"
    if left < EXPIRES_SOON_S:
        return Finding("TLS", "warn", detail, "renew it, and check that renewal is automatic")
    return Finding("TLS", "ok", detail)


async def _hook(session: aiohttp.ClientSession, url: str, name: str) -> Finding:
    """A GET on a hook is 405 with our header: it reaches a gateway that knows the source, and touches nothing."""
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as response:
            ours, status = "gateway-delivery" in response.headers, response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Finding("reachability", "fail", f"{url}: {type(error).__name__}", "start the gateway and its proxy")
    if ours and status == 405:
        return Finding("reachability", "ok", f"{url} is ours")
    if ours:
        fix = "reload the running gateway: kill -HUP, or systemctl reload gateway"
        return Finding("reachability", "fail", f"{url}: the running gateway does not know source {name}", fix)
    fix = "something else answers: pass /hooks/ through the proxy to server.bind, unchanged"
    return Finding("reachability", "fail", f"{url}: {status}, not from a gateway", fix)


async def _hidden(session: aiohttp.ClientSession, url: str) -> Finding | None:
    """The admin side must not be reachable from outside."""
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if status != 200:
        return None
    fix = "pass only /hooks/ and /admission through the proxy; keep server.admin_bind on loopback"
    return Finding("admin side", "fail", f"{url} answers 200 on the public side", fix)


# -- GitHub ------------------------------------------------------------------------------------------------------------


async def github_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """The App's key, our clock, and for each enrollment the installation, its permissions and its repository."""
    settings = configuration.settings.github
    try:
        app = GitHubApp(settings.api_url, settings.app_id, resolve(settings.private_key), session)
    except ConfigError as error:
        for problem in error.at(str(configuration.file)).problems:
            yield _of_problem("GitHub App", problem)
        return
    try:
        asked = time.time()
        about = await app.about()
    except GitHubAway as away:
        if away.reason == "app-unauthorized":
            fix = "check github.app_id and github.private_key, and this machine's clock"
            yield Finding("GitHub App", "fail", "GitHub does not accept the App's key", fix)
        else:
            yield Finding("GitHub App", "fail", f"{settings.api_url}: {away.reason}", "open outgoing https to it")
        return
    except GitHubRefusal as refusal:
        yield Finding("GitHub App", "fail", f"{settings.api_url}: {refusal.reason}", "check github.api_url")
        return
    if about.id != settings.app_id:
        yield Finding("GitHub App", "fail", f"the key belongs to App {about.id}", "correct github.app_id")
    else:
        yield Finding("GitHub App", "ok", f"{about.slug}, id {about.id}")
    if about.date is not None:
        yield skew("GitHub", about.date + 0.5, (asked + time.time()) / 2)
    for number in sorted({one.installation for one in configuration.enrolled}):
        yield await _installation(app, number)
    seen = set()
    for one in configuration.enrolled:
        key = (one.installation, one.subscription.repository.lower())
        if key not in seen:
            seen.add(key)
            yield await _repository(app, one)


def skew(whose: str, theirs: float, ours: float) -> Finding:
    """Compare clocks. HTTP dates have whole seconds, so the half second is the caller's."""
    off = ours - theirs
    detail = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {whose}"
    fix = "run an NTP client: signed times are refused, or forged old ones taken, by a wrong clock"
    if abs(off) >= SKEW_FAIL_S:
        return Finding("clock", "fail", detail, fix)
    return Finding("clock", "warn", detail, fix) if abs(off) >= SKEW_WARN_S else Finding("clock", "ok", f"with {whose}")


async def _installation(app: GitHubApp, number: int) -> Finding:
    try:
        found = await app.installation(number)
    except GitHubRefusal as refusal:
        fix = "install the App, and enroll with the number at the end of the installation's settings URL"
        return Finding("installation", "fail", f"{number}: {refusal.reason}", fix)
    except GitHubAway as away:
        return Finding("installation", "fail", f"{number}: {away.reason}", "try again")
    if found.suspended:
        return Finding("installation", "fail", f"{number} ({found.account}) is suspended", "unsuspend it on GitHub")
    lacking = [
        f"{name}: {level}"
        for name, level in NEEDED.items()
        if LEVELS.get(found.permissions.get(name, ""), 0) < LEVELS[level]
    ]
    if lacking:
        fix = "give the App these repository permissions, and accept them in the installation"
        return Finding("installation", "fail", f"{number} ({found.account}) lacks {', '.join(lacking)}", fix)
    return Finding("installation", "ok", f"{number} ({found.account})")


async def _repository(app: GitHubApp, one: Enrolled) -> Finding:
    name = one.subscription.repository
    try:
        found = await app.repository(one.installation, name)
        await app.token(one.installation, name)
    except GitHubRefusal as refusal:
        fix = f"add {name} to installation {one.installation}, or enroll it with the installation that has it"
        return Finding("repository", "fail", f"{name}: {refusal.reason}", fix)
    except GitHubAway as away:
        return Finding("repository", "fail", f"{name}: {away.reason}", "try again")
    expected = one.repository_id or one.subscription.repository_id
    if expected is not None and expected != found.id:
        fix = "another repository has this name now: compile and enroll again"
        return Finding("repository", "fail", f"{name} has id {found.id}, enrolled was {expected}", fix)
    return Finding("repository", "ok", f"{found.full_name}, default branch {found.default_branch}")


# -- keys and secrets --------------------------------------------------------------------------------------------------


async def keys_side(configuration: Configuration, session: aiohttp.ClientSession) -> Findings:
    """Published key sets that we depend on, and the secrets' files."""
    urls = {configuration.settings.admission.jwks_url: "admission"}
    for name, source in configuration.sources.items():
        if isinstance(source.profile.proof, JwtProof):
            urls.setdefault(
                configuration.settings.sources[name].jwks_url or source.profile.proof.jwks_url, f"source {name}"
            )
    for url, whose in urls.items():
        try:
            keys = await fetch_jwks(session, url)
        except Unavailable as error:
            fix = f"open outgoing https to {urlsplit(url).hostname}, or correct the address"
            yield Finding("JWKS", "fail", f"{url} ({whose}): {error.reason}", fix)
        else:
            yield Finding("JWKS", "ok", f"{url} ({whose}): {len(keys)} key(s)")
    for finding in secrets(configuration):
        yield finding


def secrets(configuration: Configuration) -> list[Finding]:
    """Files that others may read, and secrets that can be guessed. That they are there, the configuration has checked."""
    named, found = references(configuration.settings), []
    for key, reference in named:
        path = Path(reference.removeprefix("file:"))
        if reference.startswith("file:") and stat.S_IMODE(path.stat().st_mode) & 0o007:
            found.append(Finding("secrets", "warn", f"{key}: {path} is readable by everyone", f"chmod o= {path}"))
        if len(resolve(reference)) < LEAST_SECRET:
            detail = f"{key}: {reference} has fewer than {LEAST_SECRET} bytes"
            found.append(Finding("secrets", "warn", detail, "use at least 32 random bytes: openssl rand -hex 32"))
    return found or [Finding("secrets", "ok", f"{len(named)} present")]


# -- the store ---------------------------------------------------------------------------------------------------------


async def store_side(configuration: Configuration) -> Findings:
    """Whether the store answers, what it would survive, which secrets were used, and what waits in it."""
    logging.getLogger("gateway.store").setLevel(logging.CRITICAL)  # it is reported here
    try:
        async with opened(configuration) as store:
            for part in (_durability, _usage, _waiting):
                for finding in await part(store, configuration):
                    yield finding
    except ConfigError as error:
        for problem in error.problems:
            yield _of_problem("store", problem)
    except Unavailable as error:
        yield Finding("store", "fail", f"does not answer: {error.reason}", "start it, or correct store.url")


async def _durability(store: Store, configuration: Configuration) -> list[Finding]:
    state, settings = await store.server_state(), configuration.settings.store
    version = state.get("valkey_version") or state.get("redis_version")
    found = [Finding("store", "ok", f"version {version}, append-only file on")]
    if not int(state.get("aof_enabled", 0)):
        fix = "set appendonly yes; store.durability = 'relaxed' accepts the loss"
        found = [
            Finding("store", "warn", f"version {version}, no append-only file: a crash loses what was accepted", fix)
        ]
    if state.get("aof_last_write_status", "ok") != "ok":
        found.append(Finding("store", "fail", "its last write to the append-only file failed", "free disk space there"))
    replicas = int(state.get("connected_slaves", 0))
    if replicas < settings.wait_replicas:
        detail = f"{replicas} replica(s) in touch, store.wait_replicas asks for {settings.wait_replicas}"
        found.append(
            Finding("store", "fail", detail, "bring the replicas back: deliveries are answered 503 until then")
        )
    limit, used = int(state.get("maxmemory", 0)), int(state.get("used_memory", 0))
    if limit and used > limit * 0.8:
        found.append(Finding("store", "warn", f"{used / limit:.0%} of its memory is used", "raise maxmemory, or drain"))
    return [*found, skew("the store", await store.server_time(), time.time())]


async def _usage(store: Store, configuration: Configuration) -> list[Finding]:
    """Which of a source's live secrets was used last, and when: a rotation is through when only the new one is."""
    found = []
    for name, source in configuration.settings.sources.items():
        references = list(dict.fromkeys(reference for _, reference, _ in source.references()))
        used = await store.secrets_used(name)
        if not references:
            continue
        told = ", ".join(f"{r} {f'last used {_ago(used[r])} ago' if r in used else 'never used'}" for r in references)
        times = sorted((used[r], r) for r in references if r in used)
        old = [r for r in references if times and r != times[-1][1]]
        if len(references) > 1 and old:
            fix = f"once the provider uses {times[-1][1]} alone, remove {', '.join(old)}"
            found.append(Finding("rotation", "warn", f"source {name}: {told}", fix))
        else:
            found.append(Finding("rotation", "ok", f"source {name}: {told}"))
    return found


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


async def _waiting(store: Store, configuration: Configuration) -> list[Finding]:
    """Work that needs somebody: dead letters, questions, suspensions, parks, old queues, notices."""
    found: list[Finding] = []
    look: list[Callable[[str], Awaitable[Finding | None]]] = [
        lambda name: _queue(store, name),
        lambda name: _asked(store, name),
        lambda name: _lost(store, name),
    ]
    for name in configuration.sources:
        found += [one for each in look if (one := await each(name)) is not None]
    for digest, reason in (await store.suspended()).items():
        fix = "mend the cause, then enroll the subscription again"
        found.append(Finding("suspended", "warn", f"{digest}: {reason}", fix))
    for installation, until in (await store.parked()).items():
        detail = f"installation {installation} waits for GitHub's rate limit, {until - time.time():.0f} s more"
        found.append(Finding("rate limit", "warn", detail, "nothing to do: it goes on by itself"))
    return found or [Finding("queue", "ok", "nothing waits for an operator")]


async def _queue(store: Store, name: str) -> Finding | None:
    depth = await store.depth(name)
    if depth.oldest is not None and time.time() - depth.oldest > STUCK_S:
        detail = f"source {name}: {depth.waiting + depth.sealed} waiting, the oldest for {_ago(depth.oldest)}"
        return Finding("queue", "warn", detail, "gateway asks; the log of the dispatcher says why it retries")
    if depth.dead:
        fix = f"gateway dead list --source {name}"
        return Finding("dead letters", "warn", f"source {name}: {depth.dead}", fix)
    return None


async def _asked(store: Store, name: str) -> Finding | None:
    asked = await store.asked(name)
    return Finding("asks", "warn", f"source {name}: {len(asked)} wait for an answer", "gateway asks") if asked else None


async def _lost(store: Store, name: str) -> Finding | None:
    gap, pending = await store.recall(f"gap:{name}"), await store.notices(name)
    if gap is not None:
        fix = "look at the provider for what happened then: it does not send those again"
        return Finding(
            "provider", "warn", f"source {name}: events were lost at the provider {_ago(float(gap))} ago", fix
        )
    old = [notice for notice in pending if time.time() - notice.at > STUCK_S]
    if old:
        fix = f"gateway wire {name}"
        return Finding("provider", "fail", f"source {name}: {old[0].event} {_ago(old[0].at)} ago is not settled", fix)
    return None
