"""A delivery's path through the application, on a real store: outcomes, statuses, records."""

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.app import Gateway, public_app
from gateway.configuration import Configuration, load_configuration
from gateway.console import admin_app
from gateway.deliveries import delivery_query
from gateway.demo import KID, make_secret
from gateway.environment import data_folder
from gateway.errors import Unavailable
from gateway.profiles import JwtProof, load_profile
from gateway.samples import load_samples
from gateway.sender import with_sender
from gateway.signing import fill, prepare, sign
from gateway.store import Store
from gateway.structs import replace
from gateway.subscriptions import build_index, load_subscription, seal
from gateway.suspension import Suspensions
from gateway.verify import KeyRing, Secret
from tests.valkey import PrivateValkey

FORGE_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SAMPLES = {sample["source"]: sample for sample in load_samples()}


class FixedKeys:
    """Key rings by source, as `Keys` hands them out."""

    def __init__(self, configuration: Configuration) -> None:
        self.secrets = {name: make_secret(source.profile) for name, source in configuration.sources.items()}
        self.away = False

    async def ring(self, source: Any, kid: str | None = None) -> KeyRing:
        if self.away:
            raise Unavailable("jwks-unavailable", 30)
        if isinstance(source.profile.proof, JwtProof):
            return KeyRing((), {KID: FORGE_KEY.public_key()})
        return KeyRing((Secret("0", b"x" * 40), Secret("1", self.secrets[source.name])))


class Driver:
    """Calls the application as a server would."""

    def __init__(self, gateway: Gateway, keys: FixedKeys) -> None:
        self.gateway, self.keys = gateway, keys
        self.public, self.admin = public_app(gateway), admin_app(gateway)

    async def call(
        self,
        path: str,
        headers: Mapping[str, str] | list[tuple[bytes, bytes]],
        body: bytes,
        *,
        method: str = "POST",
        admin: bool = False,
    ) -> tuple[int, dict[str, str], bytes]:
        pairs = headers if isinstance(headers, list) else [(k.encode(), v.encode()) for k, v in headers.items()]
        target, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1"), *pairs],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 9),
            "root_path": "",
        }
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await (self.admin if admin else self.public)(scope, receive, send)
        answered = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], answered, b"".join(m.get("body", b"") for m in sent[1:])

    def signed(
        self, source: str, sample: Mapping[str, Any] | None = None, now: float | None = None
    ) -> tuple[dict[str, str], bytes]:
        chosen = sample or SAMPLES[source]
        profile = self.gateway.configuration.sources[source].profile
        at = time.time() if now is None else now
        headers, body = prepare(profile, chosen, self.keys.secrets[source], at)
        claims = fill(chosen.get("claims", {}), at, f"jti-{time.monotonic_ns()}")
        return sign(
            profile, headers, body, self.keys.secrets[source], private_key=FORGE_KEY, claims=claims, kid=KID
        ), body

    async def post(self, source: str, headers: Any, body: bytes, query: str = "") -> tuple[int, dict[str, str], bytes]:
        return await self.call(f"/hooks/{source}{query}", headers, body)

    async def newest(self, source: str) -> dict[str, Any]:
        await self.gateway.store.flush()
        page = await self.gateway.store.deliveries(source=source, limit=1)
        return dict(page.rows[0])


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "key").write_text("x" * 40)
    lines = ["[store]", 'url = "redis://127.0.0.1:1/0"', "[github]", "app_id = 1", f'private_key = "file:{folder}/key"']
    lines += ["[subscriptions]", f'path = "{data_folder("subscriptions") / "examples"}"']
    for sample in SAMPLES.values():
        lines += [f"[sources.{sample['source']}]", f'profile = "{sample["profile"]}"']
        if sample["profile"] != "forge":
            secret = folder / sample["source"]
            secret.write_bytes(make_secret(load_profile(data_folder("profiles") / f"{sample['profile']}.yaml")))
            lines.append(f'secrets = ["file:{secret}"]')
        lines += [f"identity.{key} = {json.dumps(value)}" for key, value in sample.get("identity", {}).items()]
        document = json.loads((data_folder("subscriptions") / "examples" / sample["subscription"]).read_bytes())
        entry = (
            f'[[enrollments]]\nsubscription = "{document["digest"]}"\nsource = "{sample["source"]}"\ninstallation = 1\n'
        )
        lines.append(f"# {sample['source']}")
        (folder / f"{sample['source']}.entry").write_text(entry)
    path: Path = folder / "gateway.toml"
    entries = "".join((folder / f"{name}.entry").read_text() for name in SAMPLES)
    path.write_text("\n".join(lines) + "\n" + entries)
    return load_configuration(path)


@pytest.fixture
async def driver(server: PrivateValkey, configuration: Configuration) -> AsyncIterator[Driver]:
    server.client().flushall()
    store = await Store.open(server.url)
    keys = FixedKeys(configuration)
    yield Driver(Gateway(configuration, keys, store), keys)  # type: ignore[arg-type]  # the rings are all it is asked for
    await store.close()


@pytest.mark.parametrize("source", SAMPLES)
async def test_every_sample_is_forwarded_once(driver: Driver, source: str) -> None:
    woken: list[str] = []
    driver.gateway.wake = woken.append
    headers, body = driver.signed(source)
    status, answered, empty = await driver.post(source, headers, body)
    assert (status, empty) == (202 if source == "teams-acme" else 200, b"")
    record = await driver.newest(source)
    assert (record["outcome"], record["id"]) == ("forwarded", answered["gateway-delivery"])
    assert woken == [source]
    again, second, _ = await driver.post(source, headers, body)
    assert (again, second["gateway-delivery"]) == (status, record["id"])
    assert (await driver.newest(source))["outcome"] == "duplicate"
    assert (await driver.gateway.store.depth(source)).waiting == 1
    assert woken == [source]


async def test_the_same_bytes_under_a_new_id_are_a_replay(driver: Driver) -> None:
    headers, body = driver.signed("github-acme")
    await driver.post("github-acme", headers, body)
    status, _, _ = await driver.post("github-acme", {**headers, "x-github-delivery": "another"}, body)
    assert status == 200
    record = await driver.newest("github-acme")
    assert (record["outcome"], record["reason"]) == ("duplicate", "replayed-body")


async def test_a_suspended_subscription_is_ignored_and_consumes_nothing(driver: Driver) -> None:
    store = driver.gateway.store
    digests = [one.subscription.digest for one in driver.gateway.configuration.enrolled]
    for digest in digests:
        await store.suspend(digest, "opt-in-revoked")
    headers, body = driver.signed("linear-acme")
    status, _, _ = await driver.post("linear-acme", headers, body)
    record = await driver.newest("linear-acme")
    assert (status, record["outcome"], record["reason"]) == (200, "ignored", "suspended")
    assert [(row["matched"], row["test"]) for row in record["subscriptions"]] == [(False, "suspended")]
    assert (await store.depth("linear-acme")).waiting == 0
    for digest in digests:
        await store.resume(digest)
    driver.gateway.suspensions = Suspensions(store)  # as a second later
    await driver.post("linear-acme", headers, body)
    assert (await driver.newest("linear-acme"))["outcome"] == "forwarded"  # no id was consumed


@pytest.mark.parametrize(("reason", "named"), [("workflow-pending", True), ("workflow-superseded", False)])
async def test_of_several_matches_the_suspended_one_is_skipped_and_named_unless_superseded(
    driver: Driver, reason: str, named: bool
) -> None:
    configuration = driver.gateway.configuration
    one = next(one for one in configuration.enrolled if one.source == "linear-acme")
    document = {name: value for name, value in one.subscription.document.items() if name != "digest"}
    second = load_subscription(json.dumps(seal({**document, "workflow_hash": "sha256:" + "0" * 64})).encode(), "second")
    enrolled = (*configuration.enrolled, replace(one, subscription=second))
    driver.gateway.configuration = replace(
        configuration, enrolled=enrolled, index=build_index(enrolled, configuration.sources)
    )
    await driver.gateway.store.suspend(second.digest, reason)
    await driver.post("linear-acme", *driver.signed("linear-acme"))
    record = await driver.newest("linear-acme")
    assert record["outcome"] == "forwarded"
    told = {row["digest"]: (row["matched"], row["test"]) for row in record["subscriptions"]}
    assert told == {one.subscription.digest: (True, None)} | ({second.digest: (False, "suspended")} if named else {})
    assert (await driver.gateway.store.depth("linear-acme")).waiting == 1


async def test_events_of_our_own_app_start_nothing(driver: Driver) -> None:
    driver.gateway.configuration = with_sender(driver.gateway.configuration, 200_000_001)
    sample = copy.deepcopy(SAMPLES["github-acme"])
    sample["body"]["sender"] = {"id": 200_000_001, "login": "gateway[bot]", "type": "Bot"}
    status, _, _ = await driver.post("github-acme", *driver.signed("github-acme", sample))
    record = await driver.newest("github-acme")
    assert (status, record["outcome"], record["reason"]) == (200, "ignored", "own-event")
    assert "200000001" in driver.gateway.configuration.sources["github-acme"].self_ids
    assert "200000001" not in driver.gateway.configuration.sources["linear-acme"].self_ids


async def test_admission_answers_closed_and_nothing_but_post(driver: Driver) -> None:
    status, answered, body = await driver.call("/admission", {}, b"{}")
    assert (status, json.loads(body)) == (503, {"admitted": False, "reason": "admission-off"})
    assert int(answered["retry-after"]) > 0
    assert (await driver.call("/admission", {}, b"", method="GET"))[0] == 405
    status, _, body = await driver.call("/admission", {"content-length": "99999"}, b"{}")
    assert (status, json.loads(body)) == (413, {"admitted": False, "reason": "body-too-large"})
    two = [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]
    driver.gateway.admission = object()  # type: ignore[assignment]  # it is not asked
    status, answered, body = await driver.call("/admission", two, b"{}")
    assert (status, json.loads(body)) == (401, {"admitted": False, "reason": "header-repeated"})
    assert answered["www-authenticate"] == "Bearer"


async def test_slack_answers_a_challenge_only_when_it_is_signed(driver: Driver) -> None:
    sample = {
        "headers": SAMPLES["slack-acme"]["headers"],
        "body": {"token": "t", "challenge": "<b>abc</b>", "type": "url_verification"},
    }
    headers, body = driver.signed("slack-acme", sample)
    status, answered, content = await driver.post("slack-acme", headers, body)
    assert (status, json.loads(content)) == (200, {"challenge": "<b>abc</b>"})
    assert answered["content-type"].startswith("application/json")
    status, _, content = await driver.post("slack-acme", {**headers, "x-slack-signature": "v0=" + "0" * 64}, body)
    assert (status, content) == (401, b"")


async def test_graph_validation_and_a_mixed_batch(driver: Driver) -> None:
    status, answered, content = await driver.post("teams-acme", {}, b"", "?validationToken=a%2Bb%20%3Cscript%3E")
    assert (status, content) == (200, b"a+b <script>")
    assert answered["content-type"].startswith("text/plain")
    assert answered["x-content-type-options"] == "nosniff"
    headers, body = driver.signed("teams-acme")
    batch = json.loads(body)
    foreign = {**batch["value"][0], "clientState": "wrong", "id": "foreign"}
    lifecycle = {k: batch["value"][0][k] for k in ("subscriptionId", "clientState", "tenantId")} | {
        "lifecycleEvent": "reauthorizationRequired"
    }
    batch["value"] += [foreign, lifecycle, "no object"]
    await asyncio.sleep(0.002)  # records of one millisecond are in no order
    status, _, _ = await driver.post("teams-acme", headers, json.dumps(batch).encode())
    assert status == 202
    record = await driver.newest("teams-acme")
    assert record["outcome"] == "forwarded"
    assert record["items"] == [{"index": 1, "reason": "signature"}, {"index": 3, "reason": "json-shape"}]
    assert (await driver.gateway.store.depth("teams-acme")).waiting == 1
    (notice,) = await driver.gateway.store.notices("teams-acme")
    assert (notice.event, notice.subscription) == ("reauthorizationRequired", lifecycle["subscriptionId"])
    await driver.gateway.usage.write(driver.gateway.store)
    assert list(await driver.gateway.store.secrets_used("teams-acme")) == []  # the rings of this test have no reference
    await asyncio.sleep(0.002)
    batch["value"] = [foreign]
    status, _, _ = await driver.post("teams-acme", headers, json.dumps(batch).encode())
    assert (status, (await driver.newest("teams-acme"))["outcome"]) == (202, "rejected")


async def test_graph_cannot_be_made_to_prove_a_million_items(driver: Driver) -> None:
    for count, reason in ((300_000, "json-size"), (1001, "json-shape")):
        body = b'{"value":[' + b"{}," * count + b"1]}"
        assert (await driver.post("teams-acme", {}, body))[0] == 400
        assert (await driver.newest("teams-acme"))["reason"] == reason


async def test_gitlab_gets_2xx_for_what_is_authentic_and_401_for_what_is_not(driver: Driver) -> None:
    headers, body = driver.signed(
        "gitlab-acme",
        {
            **SAMPLES["gitlab-acme"],
            "body": {"object_kind": "push"},
            "headers": {**SAMPLES["gitlab-acme"]["headers"], "X-Gitlab-Event": "Push Hook"},
        },
    )
    assert (await driver.post("gitlab-acme", headers, body))[0] == 200
    assert (await driver.newest("gitlab-acme"))["reason"] == "undeclared-event"
    assert (await driver.post("gitlab-acme", {**headers, "webhook-signature": "v1,AAAA"}, body))[0] == 401
    bad = driver.signed("gitlab-acme", {**SAMPLES["gitlab-acme"], "body": {"object_kind": 1}})
    assert (await driver.post("gitlab-acme", *bad))[0] == 200  # a 400 would count towards disabling the hook
    assert (await driver.newest("gitlab-acme"))["outcome"] == "rejected"


async def test_a_token_serves_one_delivery(driver: Driver) -> None:
    headers, body = driver.signed("confluence-acme")
    assert (await driver.post("confluence-acme", headers, body))[0] == 200
    other = json.loads(body)
    other["content"]["id"] = "777"
    status, _, _ = await driver.post("confluence-acme", headers, json.dumps(other).encode())
    record = await driver.newest("confluence-acme")
    assert (status, record["outcome"], record["reason"]) == (401, "rejected", "replayed-token")


async def test_keys_away_is_503_but_what_cannot_be_a_token_is_401(driver: Driver) -> None:
    headers, body = driver.signed("confluence-acme")
    driver.keys.away = True
    status, answered, _ = await driver.post("confluence-acme", headers, body)
    assert (status, answered["retry-after"]) == (503, "30")
    assert (await driver.post("confluence-acme", {**headers, "authorization": "Bearer x"}, body))[0] == 401


async def test_a_full_disk_or_a_dead_store_consumes_nothing(server: PrivateValkey, driver: Driver) -> None:
    headers, body = driver.signed("github-acme")
    driver.gateway.low_on_disk = lambda: True
    status, answered, _ = await driver.post("github-acme", headers, body)
    assert (status, answered["retry-after"]) == (503, "60")
    assert (await driver.call("/readyz", {}, b"", method="GET"))[0] == 503
    driver.gateway.low_on_disk = lambda: False
    server.kill()
    try:
        began = time.monotonic()
        status, answered, _ = await driver.post("github-acme", headers, body)
        assert status == 503
        assert int(answered["retry-after"]) > 0
        assert time.monotonic() - began < 15
        assert (await driver.call("/readyz", {}, b"", method="GET"))[0] == 503
        assert (await driver.call("/api/v1/deliveries", {}, b"", method="GET", admin=True))[0] == 503
        assert (await driver.call("/healthz", {}, b"", method="GET"))[0] == 200
    finally:
        server.start()
    assert (await driver.post("github-acme", headers, body))[0] == 200
    assert (await driver.newest("github-acme"))["outcome"] == "forwarded"


async def test_concurrent_copies_queue_once(driver: Driver) -> None:
    headers, body = driver.signed("linear-acme")
    answers = await asyncio.gather(*(driver.post("linear-acme", headers, body) for _ in range(50)))
    assert {status for status, _, _ in answers} == {200}
    assert len({answered["gateway-delivery"] for _, answered, _ in answers}) == 1
    assert (await driver.gateway.store.depth("linear-acme")).waiting == 1


async def test_the_api_pages_and_refuses_bad_parameters(driver: Driver) -> None:
    for _ in range(3):
        await driver.post("github-acme", *driver.signed("github-acme"))
    status, _, body = await driver.call(
        "/api/v1/deliveries?source=github-acme&limit=2", {}, b"", method="GET", admin=True
    )
    page = json.loads(body)
    assert (status, len(page["deliveries"])) == (200, 2)
    row = page["deliveries"][0]
    assert set(row) >= {"id", "source", "received_at", "outcome", "reason", "subscriptions", "dispatches"}
    assert row["subscriptions"][0]["matched"] is True
    _, _, body = await driver.call(
        f"/api/v1/deliveries?source=github-acme&limit=2&next={page['next']}", {}, b"", method="GET", admin=True
    )
    rest = json.loads(body)
    assert (len(rest["deliveries"]), rest["next"]) == (1, None)
    for query in ("limit=0", "limit=501", "limit=x", "outcome=lost", "nonsense=1", "next=%00"):
        status, _, _ = await driver.call(f"/api/v1/deliveries?{query}", {}, b"", method="GET", admin=True)
        assert status == 400, query


def test_query_defaults() -> None:
    assert delivery_query({}) == {"source": None, "outcome": None, "limit": 100, "before": None}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    source=st.sampled_from(sorted(SAMPLES)),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"x-hub-signature-256",
                    b"linear-signature",
                    b"authorization",
                    b"webhook-signature",
                    b"webhook-id",
                    b"x-slack-signature",
                ]
            ),
            st.binary(max_size=80),
        ),
        max_size=4,
    ),
    body=st.binary(max_size=200),
    query=st.sampled_from(["", "?validationToken=", "?validationToken=%FF", "?x=1"]),
)
async def test_no_bytes_make_an_error_of_ours(
    driver: Driver, source: str, headers: Any, body: bytes, query: str
) -> None:
    status, answered, _ = await driver.post(source, headers, body, query)
    assert status in {200, 202, 400, 401, 403}
    assert len(answered["gateway-delivery"]) == 36


async def test_a_bug_of_ours_is_retriable_and_told(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.app.match", broken)
    headers, body = driver.signed("github-acme")
    status, answered, _ = await driver.post("github-acme", headers, body)
    assert (status, answered["retry-after"]) == (503, "60")
    assert "delivery-bug" in caplog.text
    monkeypatch.undo()
    assert (await driver.newest("github-acme"))["outcome"] == "unavailable"
    await driver.post("github-acme", headers, body)
    assert (await driver.newest("github-acme"))["outcome"] == "forwarded"
