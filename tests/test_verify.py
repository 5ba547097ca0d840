import base64
import datetime as dt
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import (
    Ed25519Proof,
    JwtProof,
    MacProof,
    Profile,
    SharedSecretProof,
    Source,
    load_profiles,
)
from gateway.verify import (
    KeyRing,
    Secret,
    VerifiedDelivery,
    handshake,
    secret_problem,
    unverified_kid,
    verify,
)

PROFILES = load_profiles(Path(__file__).parent.parent / "profiles")
VECTORS = Path(__file__).parent / "vectors" / "profiles"
TABLES: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))}
OFFICIAL: list[Any] = TABLES.pop("official")
CASES = [(name, vector) for name, table in TABLES.items() for vector in table["vectors"]]
NOW = 1_780_000_000.0


def raw(headers: Any, body: bytes, query: bytes = b"") -> RawDelivery:
    pairs = tuple((name.encode(), value.encode() if isinstance(value, str) else value) for name, value in headers)
    return RawDelivery("d", "source", NOW, pairs, query, body)


def source(name: str, identity: Any = None, freshness_s: float | None = None) -> Source:
    pairs = {key: tuple(values) for key, values in (identity or {}).items()}
    return Source("source", PROFILES[name], pairs, freshness_s=freshness_s)


def ring(table: Any) -> KeyRing:
    secrets = tuple(Secret(s["label"], s["value"].encode(), s.get("subscription")) for s in table["secrets"])
    keys = table.get("jwks", {})
    return KeyRing(secrets, {kid: RSAPublicNumbers(k["e"], int(k["n"], 16)).public_key() for kid, k in keys.items()})


RINGS = {name: ring(table) for name, table in TABLES.items()}


def judge(name: str, delivery: RawDelivery, now: float = NOW) -> VerifiedDelivery:
    return verify(delivery, source(name, TABLES[name]["identity"]), RINGS[name], now)


def refusal(name: str, delivery: RawDelivery, now: float = NOW) -> tuple[str, int]:
    with pytest.raises(Rejection) as caught:
        judge(name, delivery, now)
    return caught.value.reason, caught.value.status


def accepted(name: str) -> list[RawDelivery]:
    return [raw(v["headers"], v["body"].encode()) for n, v in CASES if n == name and "reason" not in v["expect"]]


@pytest.mark.parametrize(("name", "vector"), CASES, ids=[f"{name}-{vector['id']}" for name, vector in CASES])
def test_vectors(name: str, vector: Any) -> None:
    delivery = raw(vector["headers"], vector["body"].encode(), vector["query"].encode())
    expect = vector["expect"]
    if "reason" in expect:
        assert refusal(name, delivery, TABLES[name]["now"]) == (expect["reason"], expect["status"])
        return
    verified = judge(name, delivery, TABLES[name]["now"])
    assert verified.raw is delivery
    if "items" in expect:
        assert verified.key == ""
        assert verified.items is not None
        assert [{"key": item.key, "reason": item.reason} for item in verified.items] == expect["items"]
        return
    assert verified.key == expect["key"]
    assert verified.items is None
    if "jti" in expect:
        assert verified.jti == tuple(expect["jti"])
        assert dict(verified.facts) == expect["facts"]


def test_every_shipped_profile_has_accepting_and_refusing_vectors() -> None:
    assert set(TABLES) == set(PROFILES)
    for table in TABLES.values():
        good = [v for v in table["vectors"] if v["id"].startswith("accepts-")]
        bad = [v for v in table["vectors"] if v["id"].startswith("refuses-")]
        assert len(good) >= 1
        assert len(bad) >= 5
        assert all("reason" not in v["expect"] for v in good)
        assert all("reason" in v["expect"] or any(i["reason"] for i in v["expect"]["items"]) for v in bad)
        assert len({v["id"] for v in table["vectors"]}) == len(table["vectors"])


@pytest.mark.parametrize("vector", OFFICIAL, ids=[vector["id"] + "-" + vector["profile"] for vector in OFFICIAL])
def test_official_vectors(vector: Any) -> None:
    delivery = raw(vector["headers"], vector["body"].encode())
    keys = KeyRing((Secret("only", vector["secret"].encode()),))
    assert verify(delivery, source(vector["profile"]), keys, vector["now"]).key == "only"
    with pytest.raises(Rejection, match="signature"):
        verify(raw(vector["headers"], vector["body"].encode() + b" "), source(vector["profile"]), keys, vector["now"])


# --- independent implementations sign what we verify, and judge as we do


def test_standardwebhooks_signs_what_we_verify() -> None:
    secret = TABLES["standard-webhooks"]["secrets"][0]["value"]
    body = '{"type":"caf\u00e9"}'
    at = dt.datetime.fromtimestamp(NOW, tz=dt.UTC)
    for name in ("standard-webhooks", "gitlab-signing", "servicenow"):
        headers = {
            "webhook-id": "msg_9",
            "webhook-timestamp": str(int(NOW)),
            "webhook-signature": Webhook(secret).sign("msg_9", at, body),
        }
        assert judge(name, raw(headers.items(), body.encode())).key == "0"


def test_slack_sdk_signs_what_we_verify_and_accepts_what_we_accept() -> None:
    secret = TABLES["slack"]["secrets"][0]["value"]
    verifier = SignatureVerifier(secret)
    body = '{"text":"caf\u00e9"}'
    signature = verifier.generate_signature(timestamp=str(int(NOW)), body=body)
    assert signature is not None
    headers = {"x-slack-request-timestamp": str(int(NOW)), "x-slack-signature": signature}
    assert judge("slack", raw(headers.items(), body.encode())).key == "0"


def test_pyjwt_signs_what_we_verify() -> None:
    private = generate_private_key(public_exponent=65537, key_size=2048)
    identity = TABLES["forge"]["identity"]
    claims = {
        "iss": "forge/invocation-token",
        "aud": identity["app"][0],
        "iat": int(NOW),
        "nbf": int(NOW),
        "exp": int(NOW) + 25,
        "jti": "a",
        "app": {
            "id": identity["app"][0],
            "installationId": identity["installation"][0],
            "environment": {"type": "PRODUCTION"},
            "installation": {"contexts": [{"name": "confluence", "cloudId": identity["cloud"][0]}]},
        },
    }
    token = pyjwt.encode(claims, private, algorithm="RS256", headers={"kid": "k"})
    delivery = raw([("authorization", f"Bearer {token}")], b"{}")
    keys = KeyRing(jwks={"k": private.public_key()})
    assert verify(delivery, source("forge", identity), keys, NOW).jti == ("a", NOW + 35)
    assert unverified_kid(delivery, source("forge", identity)) == "k"
    for name in ("app", "installation", "cloud", "environment"):  # an identity that was not configured allows nothing
        missing = {key: value for key, value in identity.items() if key != name}
        with pytest.raises(Rejection) as caught:
            verify(delivery, source("forge", missing), keys, NOW)
        assert caught.value.reason == ("claims" if name == "app" else "identity")


def test_an_optional_identity_of_a_token_binds_only_where_it_is_configured() -> None:
    profile = PROFILES["forge"].model_copy(update={"identity_optional": ("environment",)})
    identity = {name: tuple(values) for name, values in TABLES["forge"]["identity"].items()}
    delivery = accepted("forge")[0]
    without = {name: values for name, values in identity.items() if name != "environment"}
    assert verify(delivery, Source("s", profile, without), RINGS["forge"], NOW).key == "one"
    with pytest.raises(Rejection, match="identity"):
        verify(delivery, Source("s", profile, {**identity, "environment": ("STAGING",)}), RINGS["forge"], NOW)


def test_unverified_kid_is_for_tokens_alone() -> None:
    assert unverified_kid(raw([], b""), source("forge")) is None
    assert unverified_kid(raw([("authorization", "Bearer a.b.c")], b""), source("forge")) is None
    assert unverified_kid(accepted("forge")[0], source("github")) is None
    token = pyjwt.encode({}, "k" * 32, algorithm="HS256", headers={"kid": "a b"})
    assert unverified_kid(raw([("authorization", f"Bearer {token}")], b""), source("forge")) is None


# --- nothing but a Rejection, for any input

INTERESTING = st.sampled_from(
    [
        b"",
        b"sha256=",
        b"v0=",
        b"v1,",
        b"v1a,AAAA",
        b"t=1,v1=0",
        b"Bearer a.b.c",
        b"Bearer eyJ9.e30.AA",
        b"Basic Og==",
        b"0",
        b"99999999999999",
        b"-1",
        b"\xff",
        b"1780000000",
    ],
)
HEADERS = sorted({name for _, vector in CASES for name, _ in vector["headers"]})
PAIRS = st.lists(
    st.tuples(st.sampled_from([name.encode() for name in HEADERS]), INTERESTING | st.binary(max_size=40)),
    max_size=8,
)


def outcome(call: Callable[[], Any]) -> tuple[Any, tuple[str, int] | None]:
    """Return a result and no refusal, or no result and the refusal; any other exception fails the test."""
    try:
        return call(), None
    except Rejection as error:
        return None, (error.reason, error.status)


@given(st.sampled_from(sorted(PROFILES)), PAIRS, st.binary(max_size=80), st.floats(0, 2e9))
@settings(max_examples=400)
def test_only_rejections_come_out(name: str, pairs: list[tuple[bytes, bytes]], body: bytes, now: float) -> None:
    delivery = RawDelivery("d", "s", now, tuple(pairs), b"", body)
    verified, refused = outcome(lambda: judge(name, delivery, now))
    if refused is None:  # only the batch that is proved item by item may hold no proof at all
        assert name == "microsoft-graph"
        assert all(item.key is None for item in verified.items)
    else:
        assert refused[1] in {400, 401, 403}
    _, refused = outcome(lambda: handshake(RawDelivery("d", "s", now, (), body, b""), source(name)))
    assert refused in {None, ("handshake", 400)}


@given(PAIRS)
def test_a_claimed_kid_never_raises(pairs: list[tuple[bytes, bytes]]) -> None:
    assert unverified_kid(RawDelivery("d", "s", NOW, tuple(pairs), b"", b""), source("forge")) is None


graph_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["sub-a", "state-for-any"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", "clientState", "subscriptionId"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(graph_json)
def test_only_rejections_come_out_of_batches(value: Any) -> None:
    verified, refused = outcome(lambda: judge("microsoft-graph", raw([], json.dumps(value).encode())))
    assert refused in {None, ("json-shape", 400)}
    for item in verified.items if verified is not None else ():
        assert (item.key is None) != (item.reason is None)
        assert item.key is None or item.value["clientState"] in {"state-for-any", "state-of-subscription-a"}


# --- every byte counts

SIGNED = [
    (name, index)
    for name, profile in sorted(PROFILES.items())
    if isinstance(profile.proof, MacProof | Ed25519Proof)
    for index in range(len(accepted(name)))
]


@given(st.sampled_from(SIGNED), st.data(), st.integers(1, 255))
@settings(max_examples=400)
def test_one_changed_byte_of_a_signed_body_is_refused(case: tuple[str, int], data: st.DataObject, mask: int) -> None:
    name, index = case
    good = accepted(name)[index]
    at = data.draw(st.integers(0, len(good.body) - 1))
    body = bytes(byte ^ mask if place == at else byte for place, byte in enumerate(good.body))
    assert refusal(name, RawDelivery("d", "s", NOW, good.headers, b"", body))[0] == "signature"


def proof_header(name: str) -> bytes:
    proof = PROFILES[name].proof
    assert isinstance(proof, MacProof | Ed25519Proof | SharedSecretProof | JwtProof)
    return proof.header.encode()


def security_headers(name: str) -> list[bytes]:
    proof = PROFILES[name].proof
    layout = proof.layout if isinstance(proof, MacProof | Ed25519Proof) else ()
    signed = [piece[8:-1].encode() for piece in layout if piece.startswith("{header:")]
    return [proof_header(name), *signed]


PROVED_BY_HEADER = sorted(set(PROFILES) - {"microsoft-graph"})


@pytest.mark.parametrize("name", PROVED_BY_HEADER)
def test_every_changed_byte_of_a_security_header_is_refused(name: str) -> None:
    good = accepted(name)[0]
    for header in security_headers(name):
        value = good.header(header.decode())
        assert value is not None
        for at in range(len(value)):
            for mask in (0x01, 0x20, 0x80):
                changed = value[:at] + bytes([value[at] ^ mask]) + value[at + 1 :]
                pairs = tuple((key, changed if key == header else old) for key, old in good.headers)
                if name == "stripe" and b"v0=" in value and at >= value.index(b",v0="):
                    continue  # a scheme that is never looked at
                assert refusal(name, RawDelivery("d", "s", NOW, pairs, b"", good.body))[1] == 401


@pytest.mark.parametrize("name", PROVED_BY_HEADER)
def test_a_second_copy_of_a_security_header_is_refused(name: str) -> None:
    good = accepted(name)[0]
    for header in security_headers(name):
        value = good.header(header.decode())
        assert value is not None
        for pairs in (((header, value), *good.headers), (*good.headers, (header, b"other"))):
            assert refusal(name, RawDelivery("d", "s", NOW, pairs, b"", good.body)) == ("header-repeated", 401)


@pytest.mark.parametrize("name", PROVED_BY_HEADER)
def test_without_live_keys_nothing_is_proved(name: str) -> None:
    good = accepted(name)[0]
    for keys in (KeyRing(), KeyRing((Secret("0", b""),))):
        with pytest.raises(Rejection) as caught:
            verify(good, source(name, TABLES[name]["identity"]), keys, NOW)
        assert caught.value.reason in {"signature", "token"}


def test_an_empty_client_state_proves_nothing() -> None:
    body = b'{"value":[{"clientState":"","subscriptionId":"s"}]}'
    verified = verify(raw([], body), source("microsoft-graph"), KeyRing((Secret("0", b""),)), NOW)
    assert [item.reason for item in verified.items or ()] == ["signature"]


def test_a_key_that_cannot_be_decoded_proves_nothing_and_harms_no_other() -> None:
    for name in ("standard-webhooks", "discord"):
        good = accepted(name)[0]
        live = RINGS[name].secrets[0]
        keys = KeyRing((Secret("junk", b"whsec_\xff!"), Secret("odd", b"abc"), Secret("pk", b"whpk_AAAA"), live))
        assert verify(good, source(name), keys, NOW).key == "0"
        with pytest.raises(Rejection, match="signature"):
            verify(good, source(name), KeyRing(keys.secrets[:3]), NOW)


# --- freshness


def test_a_source_may_widen_or_narrow_its_window() -> None:
    good = accepted("slack")[0]
    keys = RINGS["slack"]
    assert verify(good, source("slack", freshness_s=3600), keys, NOW + 3600).key == "0"
    with pytest.raises(Rejection, match="freshness"):
        verify(good, source("slack", freshness_s=3600), keys, NOW + 3601)
    with pytest.raises(Rejection, match="freshness"):
        verify(good, source("slack", freshness_s=10), keys, NOW + 11)
    with pytest.raises(Rejection, match="freshness"):
        verify(good, source("slack", freshness_s=10), keys, NOW - 11)


@pytest.mark.parametrize("name", ["github", "jira", "sentry", "linear", "gitlab-token", "azure-devops"])
def test_what_signs_no_header_time_is_not_refused_for_age_here(name: str) -> None:
    assert judge(name, accepted(name)[0], NOW + 1e8).key == "0"


def test_milliseconds() -> None:
    profile = Profile.model_validate(
        {
            "name": "example",
            "title": "Example",
            "docs": ["https://example.com/"],
            "proof": {
                "scheme": "mac",
                "header": "x-signature",
                "encoding": "hex",
                "key": "hex",
                "layout": ["{header:x-time}", "{body}"],
            },
            "freshness": {"at": "header:x-time", "unit": "ms", "window_s": 1},
            "event": {"parts": ["/type"]},
            "delivery_id": {"parts": [["/id"]], "signed": True, "ttl_s": 60},
        },
    )
    stamp = b"1780000000999"
    signature = hmac.new(b"\x00\x01", stamp + b"{}", hashlib.sha256).hexdigest()
    delivery = raw([("x-signature", signature), ("x-time", stamp)], b"{}")
    keys = KeyRing((Secret("junk", b"zz"), Secret("0", b"0001")))
    assert verify(delivery, Source("s", profile), keys, NOW).key == "0"
    with pytest.raises(Rejection, match="freshness"):
        verify(delivery, Source("s", profile), keys, NOW - 1)


# --- the unauthenticated handshake


def shake(query: bytes, name: str = "microsoft-graph") -> Any:
    return handshake(raw([("content-type", "text/plain; charset=utf-8")], b"", query), source(name))


def test_graph_gets_its_token_back_decoded_and_inert() -> None:
    answer = shake(b"a=b&validationToken=Validation%3a+Testing%20%3Cscript%3E+caf%C3%A9%2B")
    assert answer.status == 200
    assert answer.content_type == "text/plain"
    assert answer.body == "Validation: Testing <script> caf\u00e9+".encode()
    assert ("X-Content-Type-Options", "nosniff") in answer.headers


@pytest.mark.parametrize("query", [b"", b"a=b", b"validationtoken=x", b"x=validationToken"])
def test_no_handshake(query: bytes) -> None:
    assert shake(query) is None


@pytest.mark.parametrize("name", sorted(set(PROFILES) - {"microsoft-graph"}))
def test_no_other_profile_answers_before_the_proof(name: str) -> None:
    assert shake(b"validationToken=x&challenge=y", name) is None


@pytest.mark.parametrize(
    "query",
    [
        b"validationToken=",
        b"validationToken",
        b"validationToken=a&validationToken=b",
        b"validationToken=%FF",
        b"validationToken=\xff",
        b"validationToken=a%0D%0Ab",
        b"validationToken=%00",
        b"validationToken=" + b"a" * 2049,
        b"validationToken=x" + b"&a=b" * 40,
    ],
)
def test_a_bad_token_is_refused(query: bytes) -> None:
    with pytest.raises(Rejection) as caught:
        shake(query)
    assert (caught.value.reason, caught.value.status) == ("handshake", 400)


# --- configured secrets

WHPK = TABLES["standard-webhooks"]["secrets"][2]["value"].encode()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("github", b"anything", None),
        ("github", b"", "empty"),
        ("forge", b"x", "not used"),
        ("azure-devops", b"user:password", None),
        ("azure-devops", b":password", None),
        ("azure-devops", b"password", "user:password"),
        ("azure-devops", b"user:", "user:password"),
        ("gitlab-token", b"token", None),
        ("gitlab-token", b"to ken", "header"),
        ("gitlab-token", b"token\n", "header"),
        ("gitlab-token", "caf\u00e9".encode(), "header"),
        ("standard-webhooks", b"whsec_" + base64.b64encode(b"k" * 24), None),
        ("standard-webhooks", b"v1,whsec_" + base64.b64encode(b"k" * 24), None),
        ("standard-webhooks", b"whsec_", "encoded"),
        ("standard-webhooks", b"whsec_not base64", "encoded"),
        ("standard-webhooks", WHPK, None),
        ("standard-webhooks", b"whpk_AAAA", "Ed25519"),
        ("standard-webhooks", b"whsk_AAAA", "Ed25519"),
        ("gitlab-signing", WHPK, "encoded"),
        ("discord", TABLES["discord"]["secrets"][0]["value"].encode(), None),
        ("discord", b"00", "Ed25519"),
        ("discord", b"zz", "Ed25519"),
        ("microsoft-graph", b"state", None),
    ],
)
def test_secret_problems_are_found_at_start(name: str, value: bytes, problem: str | None) -> None:
    said = secret_problem(PROFILES[name].proof, value)
    assert (said is None) if problem is None else (said is not None and problem in said)


def test_nothing_secret_is_shown() -> None:
    value = b"whsec_very-secret"
    secret = Secret("0", value)
    private = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    for shown in (repr(secret), repr(KeyRing((secret,))), repr(KeyRing((Secret("k", private),)))):
        assert "secret" not in shown.replace("Secret", "").replace("secrets", "")
        assert repr(private) not in shown
    with pytest.raises(Rejection) as caught:
        judge("github", raw([("x-hub-signature-256", "sha256=0")], b"body-text"))
    assert str(caught.value) == "signature"
