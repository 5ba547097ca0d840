"""The doctor on whole and broken deployments: real sockets, real certificates, a real store and GitHub's double."""

import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from gateway.configuration import Configuration, load_configuration
from gateway.demo import public_jwk
from gateway.doctor import examine
from gateway.doctor.finding import Finding, skew
from gateway.doctor.public import certificate
from gateway.doubles.github import Running, running
from gateway.store import Store
from gateway.words import about_run
from tests.operating import APP_ID, LINEAR, PUBLIC, admit, gateway, write
from tests.valkey import PrivateValkey

JWKS = {"keys": [public_jwk(rsa.generate_private_key(65537, 2048))]}


class Deployment:
    """A configuration, what stands behind its addresses, and knobs to break each."""

    def __init__(self, config: Path, github: Running, url: str) -> None:
        self.config, self.github, self.url = config, github, url
        self.hook = (405, True)
        self.exposed = False
        self.jwks: Any = JWKS

    async def findings(self) -> list[Finding]:
        return [finding async for finding in examine(self.config)]

    async def broken(self) -> dict[str, Finding]:
        return {finding.check: finding for finding in await self.findings() if finding.state != "ok"}

    def edit(self, old: str, new: str) -> None:
        assert old in self.config.read_text()
        self.config.write_text(self.config.read_text().replace(old, new))


@pytest.fixture
async def deployment(server: PrivateValkey, tmp_path: Path) -> AsyncIterator[Deployment]:
    with server.client() as client:
        client.flushall()
    knobs: list[Deployment] = []

    async def hook(_: web.Request) -> web.Response:
        status, ours = knobs[0].hook
        return web.Response(status=status, headers={"gateway-delivery": "x"} if ours else {})

    async def quiet(_: web.Request) -> web.Response:
        return web.Response(status=200 if knobs[0].exposed else 404)

    async def jwks(_: web.Request) -> web.Response:
        return web.json_response(knobs[0].jwks)

    app = web.Application()
    app.add_routes([web.get("/hooks/{name}", hook), web.get("/metrics", quiet), web.get("/jwks", jwks)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with running(app_id=APP_ID, public_key_pem=PUBLIC, installations={11: [LINEAR["repository"]]}) as github:
        github.double.add_repository(LINEAR["repository"]).id = LINEAR["repository_id"]
        more = ["[server]", f'public_url = "{url}"', "[admission]", f'jwks_url = "{url}/jwks"']
        more += [
            "[github]",
            f'api_url = "{github.address}"',
            f"app_id = {APP_ID}",
            f'private_key = "file:{tmp_path}/app.pem"',
        ]
        knobs.append(Deployment(write(tmp_path, server.url, more=more), github, url))
        yield knobs[0]
    await runner.cleanup()


async def test_a_whole_deployment_has_nothing_to_mend(deployment: Deployment) -> None:
    found = await deployment.findings()
    assert [finding for finding in found if finding.state != "ok"] == []
    assert {finding.check for finding in found} >= {
        "configuration", "DNS", "reachability", "GitHub App", "clock", "installation", "repository", "JWKS", "secrets",
        "store", "rotation", "queue",
    }  # fmt: skip


async def test_the_bots_user_id_is_told_and_compared(deployment: Deployment) -> None:
    bot = deployment.github.double.bot_id
    (told,) = [finding for finding in await deployment.findings() if finding.check == "App's bot user"]
    assert (told.state, told.detail) == ("ok", f"id {bot}: the admission action's sender-id")
    deployment.edit("[github]", f"[github]\nsender_id = {bot + 1}")
    wrong = (await deployment.broken())["App's bot user"]
    assert (wrong.state, wrong.fix) == ("fail", "correct github.sender_id")


async def test_a_broken_deployment_says_what_to_mend(deployment: Deployment) -> None:
    deployment.hook, deployment.exposed, deployment.jwks = (404, True), True, {"keys": []}
    deployment.github.double.world.installations[11].suspended = True
    (deployment.config.parent / "linear").write_text("short")
    (deployment.config.parent / "linear").chmod(0o644)
    broken = await deployment.broken()
    assert {check: finding.state for check, finding in broken.items()} == {
        "reachability": "fail",
        "admin side": "fail",
        "installation": "fail",
        "repository": "fail",
        "JWKS": "fail",
        "secrets": "warn",
    }
    assert "does not know source linear-acme" in broken["reachability"].detail
    assert "suspended" in broken["installation"].detail
    assert "jwks-empty" in broken["JWKS"].detail
    assert all(finding.fix for finding in broken.values())
    assert "short" not in str(broken)


async def test_permissions_names_and_ids_on_github(deployment: Deployment) -> None:
    deployment.github.double.world.installations[11].permissions = {"contents": "read", "metadata": "read"}
    assert "lacks contents: write" in (await deployment.broken())["installation"].detail
    deployment.github.double.world.installations[11].permissions = {"contents": "write", "metadata": "read"}
    deployment.github.double.add_repository(LINEAR["repository"]).id = 7
    assert "has id 7" in (await deployment.broken())["repository"].detail
    deployment.github.double.world.installations.clear()
    broken = await deployment.broken()
    assert (broken["installation"].detail, broken["repository"].state) == ("11: not-found", "fail")
    deployment.edit(f"app_id = {APP_ID}", "app_id = 99")
    assert "does not accept" in (await deployment.broken())["GitHub App"].detail
    deployment.edit(deployment.github.address, "http://127.0.0.1:1")
    assert "connection" in (await deployment.broken())["GitHub App"].detail


async def test_addresses_that_lead_elsewhere(deployment: Deployment) -> None:
    deployment.hook = (200, False)
    assert "not from a gateway" in (await deployment.broken())["reachability"].detail
    deployment.edit(f'public_url = "{deployment.url}"', 'public_url = "http://127.0.0.1:1"')
    assert "ClientConnectorError" in (await deployment.broken())["reachability"].detail
    deployment.edit('public_url = "http://127.0.0.1:1"', 'public_url = "https://nowhere.invalid"')
    assert "does not resolve" in (await deployment.broken())["DNS"].detail
    deployment.edit('public_url = "https://nowhere.invalid"', 'public_url = "https://localhost:1"')
    assert (await deployment.broken())["TLS"].state == "fail"
    deployment.edit('public_url = "https://localhost:1"', "")
    assert (await deployment.broken())["public URL"].state == "fail"


async def test_one_broken_part_hides_no_other(deployment: Deployment) -> None:
    """A key that is none, a name that IDNA cannot write, key sets and a store that are away: all in one run."""
    (deployment.config.parent / "app.pem").write_text("planted-secret-that-is-no-key")
    deployment.edit(f'public_url = "{deployment.url}"', 'public_url = "https://nowhere.invalid"')
    deployment.edit(f"{deployment.url}/jwks", "http://127.0.0.1:1/jwks")
    text = re.sub(
        r'^url = ".*"',
        'url = "redis://u:planted-secret@127.0.0.1:1"',
        deployment.config.read_text(),
        flags=re.MULTILINE,
    )
    deployment.config.write_text(text)
    broken = await deployment.broken()
    assert {check for check, finding in broken.items() if finding.state == "fail"} == {
        "DNS",
        "GitHub App",
        "JWKS",
        "store",
    }
    assert str(deployment.config) in broken["GitHub App"].detail
    assert "planted" not in str(broken)


async def test_a_missing_secret_hides_no_other_check(deployment: Deployment) -> None:
    (deployment.config.parent / "linear").unlink()
    deployment.exposed = True
    found = await deployment.findings()
    (wrong,) = [one for one in found if one.check == "configuration"]
    assert (wrong.state, "sources.linear-acme.secrets.0" in wrong.detail) == ("fail", True)
    assert {one.check for one in found} >= {
        "DNS", "reachability", "admin side", "GitHub App", "clock", "installation", "repository", "JWKS", "store", "queue",
    }  # fmt: skip
    assert {one.check for one in found if one.state == "fail"} == {"configuration", "admin side"}


@pytest.mark.parametrize(
    ("old", "new", "hidden"),
    [
        (f"app_id = {APP_ID}", 'app_id = "x"', {"GitHub App", "installation", "repository"}),
        ("[store]", "[store]\nnonsense = 1", {"store", "rotation", "queue"}),
        ('profile = "linear"', 'profile = "liner"', set()),
        ("[subscriptions]", "[subscriptions]\nnonsense = 1", set()),
        (f'subscription = "{LINEAR["digest"]}"', f'subscription = "sha256:{"0" * 64}"', {"installation", "repository"}),
    ],
)
async def test_a_wrong_key_hides_its_own_part_alone(
    deployment: Deployment, old: str, new: str, hidden: set[str]
) -> None:
    deployment.edit(old, new)
    found = await deployment.findings()
    assert "fail" in {one.state for one in found if one.check == "configuration"}
    parts = {"DNS", "GitHub App", "JWKS", "store"}
    assert {one.check for one in found} >= parts - hidden
    assert not {one.check for one in found} & hidden
    assert {one.check for one in found if one.state == "fail"} == {"configuration"}


async def test_what_is_no_toml_is_all_that_can_be_told(deployment: Deployment) -> None:
    deployment.config.write_text("[[[")
    assert {one.check for one in await deployment.findings()} == {"configuration"}


async def test_the_store(deployment: Deployment, server: PrivateValkey) -> None:
    deployment.edit("[subscriptions]", "wait_replicas = 1\n[subscriptions]")
    assert "wait_replicas asks for 1" in (await deployment.broken())["store"].detail
    deployment.edit("wait_replicas = 1", "")
    with server.client() as client:
        client.config_set("appendonly", "no")
    try:
        assert "append-only" in (await deployment.broken())["store"].detail
        deployment.edit("[subscriptions]", 'durability = "relaxed"\n[subscriptions]')
        assert (await deployment.broken())["store"].state == "warn"
    finally:
        with server.client() as client:
            client.config_set("appendonly", "yes")
    deployment.edit(server.url, "redis://127.0.0.1:1/0")
    assert "does not answer" in (await deployment.broken())["store"].detail


async def test_what_waits_for_an_operator(deployment: Deployment, server: PrivateValkey) -> None:
    store = await Store.open(server.url, require=True)
    configuration = load_configuration(deployment.config)
    now = time.time()
    await admit(store, configuration, 1, now - 7200)
    assert "the oldest for 2 h" in (await deployment.broken())["queue"].detail
    (batch,) = await store.seal("linear-acme", now, 60, 1)
    await store.ask("linear-acme", batch.dispatch, now, 60)
    assert "1 wait" in (await deployment.broken())["asks"].detail
    await store.dead(batch, "not-found", now)
    await store.suspend(LINEAR["digest"], "workflow-superseded")
    assert "suspended" not in await deployment.broken()  # a rollover needs nobody
    (told,) = [finding for finding in await deployment.findings() if finding.check == "rollover"]
    assert "revoke it when its queue is empty" in told.detail
    await store.suspend(LINEAR["digest"], "repository-moved")
    await store.park(11, now + 60, "rate-limited")
    await store.keep_notice("linear-acme", "subscriptionRemoved", "s", now - 7200)
    broken = await deployment.broken()
    assert {check: finding.state for check, finding in broken.items()} == {
        "dead letters": "warn", "suspended": "warn", "rate limit": "warn", "provider": "fail",
    }  # fmt: skip
    await store.remember("gap:linear-acme", str(now - 60), 60)
    assert "events were lost" in (await deployment.broken())["provider"].detail
    await store.close()


async def sent(store: Store, configuration: Configuration, number: int, age_s: float) -> str:
    """Let GitHub take a dispatch so long ago; return its id."""
    at = time.time() - age_s
    await admit(store, configuration, number, at)
    (batch,) = await store.seal("linear-acme", at, 60, 1)
    await store.started(batch, at)
    await store.done(batch, at, "sent")
    return batch.dispatch


async def test_whether_runs_are_admitted(deployment: Deployment, server: PrivateValkey) -> None:
    store, configuration = await Store.open(server.url, require=True), load_configuration(deployment.config)
    whose = f"{LINEAR['digest']} ({LINEAR['repository']}): of its last"

    async def told() -> list[tuple[str, str]]:
        return [(one.state, one.detail) for one in await deployment.findings() if one.check == "admission"]

    assert await told() == []  # nothing to judge by
    await sent(store, configuration, 1, 90_000)  # longer than a day ago
    await sent(store, configuration, 2, 60)  # a run may still ask
    assert await told() == []
    first = await sent(store, configuration, 3, 7200)
    silent = (await deployment.broken())["admission"]
    assert (silent.state, silent.detail) == (
        "warn",
        f"{whose} 1 dispatch(es) 1 had no run admitted, and none has asked",
    )
    assert f"types of the workflow lacks {LINEAR['event_type']}" in silent.fix
    assert "All is well where the workflow does not use the action." in silent.fix
    assert (await store.admit_run(first, LINEAR["digest"], "9000000064", "jti-1", time.time(), 86_400)) == "admitted"
    assert await told() == [("ok", "a run was admitted for the last dispatch of 1 subscription(s)")]
    second = await sent(store, configuration, 4, 3600)
    some = (await deployment.broken())["admission"]
    assert some.detail == f"{whose} 2 dispatch(es) 1 had no run admitted, and none has asked"
    assert "does not use the action" not in some.fix  # it does
    await store.refuse_run(second, LINEAR["digest"], "sender", "9000000065", time.time())
    refused = (await deployment.broken())["admission"]
    assert refused.detail == f"{whose} 2 dispatch(es) 1 had no run admitted; last refused: sender"
    assert refused.fix == about_run("sender")
    await store.suspend(LINEAR["digest"], "opt-in-revoked")
    assert await told() == []  # that is told, and why
    await store.resume(LINEAR["digest"])
    for number in range(5, 60):  # what came just now hides nothing
        await admit(store, configuration, number, time.time())
    assert (await deployment.broken())["admission"] == refused
    await store.close()


async def test_which_of_two_live_secrets_was_last_used(deployment: Deployment, server: PrivateValkey) -> None:
    folder = deployment.config.parent
    (folder / "newer").write_text("another-secret-of-the-test")
    (folder / "newer").chmod(0o600)
    deployment.edit(f'secrets = ["file:{folder}/linear"]', f'secrets = ["file:{folder}/newer", "file:{folder}/linear"]')
    store = await Store.open(server.url, require=True)
    await store.secret_used("linear-acme", {f"file:{folder}/linear": time.time() - 7200})
    before = (await deployment.broken())["rotation"]
    assert "newer never used" in before.detail
    assert "linear last used 2 h ago" in before.detail
    await store.secret_used("linear-acme", {f"file:{folder}/newer": time.time() - 5})
    after = (await deployment.broken())["rotation"]
    assert after.fix == f"once the provider uses file:{folder}/newer alone, remove file:{folder}/linear"
    await store.close()


def authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=99))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made, key


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[Callable[[float], Any]]:
    """Start a TLS server for `localhost` with a certificate that ends in so many days; returns port and trust."""
    root, root_key = authority()
    servers: list[Any] = []

    async def start(days: float) -> tuple[int, ssl.SSLContext]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
            .issuer_name(root.subject)
            .public_key(key.public_key())
            .serial_number(2)
            .not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(root_key, hashes.SHA256())
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = tmp_path / f"{days}.pem"
        path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        runner = web.AppRunner(web.Application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        servers.append(runner)
        trust = ssl.create_default_context(cadata=root.public_bytes(serialization.Encoding.PEM).decode())
        return runner.addresses[0][1], trust

    yield start
    for runner in servers:
        await runner.cleanup()


async def test_certificates(tls: Callable[[float], Any]) -> None:
    port, trust = await tls(60)
    good = await certificate("localhost", port, trust)
    assert (good.state, "60 day" in good.detail) == ("ok", True)
    untrusted = await certificate("localhost", port)
    assert (untrusted.state, "unable to get local issuer" in untrusted.detail) == ("fail", True)
    wrong = await certificate("127.0.0.1", port, trust)
    assert wrong.state == "fail"
    port, trust = await tls(3)
    assert (await certificate("localhost", port, trust)).state == "warn"
    port, trust = await tls(-1)
    assert "expired" in (await certificate("localhost", port, trust)).detail
    assert (await certificate("localhost", 1, trust)).state == "fail"


def test_clocks() -> None:
    assert [skew("x", 100.0, 100.0 + off).state for off in (0, 1, 5, -5, 40)] == ["ok", "ok", "warn", "warn", "fail"]
    assert skew("GitHub", 100.0, 140.0).detail == "40 s ahead of GitHub"


def test_the_command(tmp_path: Path) -> None:
    missing = gateway(tmp_path / "none.toml", "doctor", "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["checks"][0]["state"]) == (2, "fail")
    config = write(tmp_path, "redis://127.0.0.1:1/0", more=["[admission]", 'jwks_url = "http://127.0.0.1:1/x"'])
    config.write_text(config.read_text().replace("[github]", '[github]\napi_url = "http://127.0.0.1:1"'))
    done = gateway(config, "doctor")
    assert done.exit_code == 1
    assert "FAIL store: does not answer" in done.stdout
    assert done.stdout.count("fix:") >= 4
    config.write_text(config.read_text().partition("[[enrollments]]")[0])
    assert "nothing is enrolled" in gateway(config, "doctor").stdout
