import base64
import json
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.profiles import ClientStateProof, Ed25519Proof, JwtProof, MacProof, Pick, SharedSecretProof
from gateway.schemes import client_state, ed25519, jwt, layout, mac, shared_secret

NOW = 1_780_000_000
KEY = generate_private_key(public_exponent=65537, key_size=2048)
JWKS = {"k": KEY.public_key()}
PROOF = JwtProof(
    scheme="jwt",
    issuer="issuer",
    jwks_url="https://example.com/jwks",
    audience="app",
    max_lifetime_s=300,
    facts={"subject": "/sub", "number": "/n"},
    equals={"/use": "event"},
    same=(("/app", "/aud"),),
    forbidden=("/label",),
    picked={"cloud": Pick(among="/contexts", where={"/name": "wiki"}, take="/id")},
)
CLAIMS: dict[str, Any] = {
    "iss": "issuer",
    "aud": "me",
    "app": "me",
    "use": "event",
    "sub": "s",
    "n": 7,
    "contexts": [{"name": "wiki", "id": "c"}, 7],
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 60,
    "jti": "j",
}


def raw(body: bytes = b"{}", **headers: bytes) -> RawDelivery:
    pairs = tuple((name.replace("_", "-").encode(), value) for name, value in headers.items())
    return RawDelivery("d", "s", NOW, pairs, b"", body)


def mac_proof(**more: Any) -> MacProof:
    return MacProof(scheme="mac", header="x-sig", encoding="hex", **more)


# --- layout


def test_layout_is_concatenated_over_the_bytes_as_received() -> None:
    proof = mac_proof(layout=("v0:", "{header:x-time}", ":", "{body}", "!"))
    assert layout.signed_bytes(raw(b"\xff\x00", x_time=b"\xe9"), proof) == b"v0:\xe9:\xff\x00!"


@pytest.mark.parametrize("value", [b"a.b", b".", b"a.", b".b"])
def test_a_signed_header_that_holds_its_own_end_is_refused(value: bytes) -> None:
    proof = mac_proof(layout=("{header:x-id}", ".", "{body}"))
    with pytest.raises(Rejection, match="signature"):
        layout.signed_bytes(raw(x_id=value), proof)


def test_members_of_the_signature_header() -> None:
    proof = mac_proof(separator=",", prefix="v1=")
    delivery = raw(x_sig=b"t=5, v1=a,v1=b,v0=c,junk,")
    assert layout.offered(delivery, proof, "v1=") == [b"a", b"b"]
    assert layout.offered(raw(), proof, "v1=") == []
    assert layout.member(delivery, proof, "t") == b"5"
    assert layout.member(delivery, proof, "absent") is None
    assert layout.member(raw(), proof, "t") is None
    with pytest.raises(Rejection, match="header-repeated"):
        layout.member(delivery, proof, "v1")


# --- MAC and Ed25519


@pytest.mark.parametrize(
    ("secret", "form", "key"),
    [
        (b"abc", "utf8", b"abc"),
        (b"", "utf8", None),
        (b"whsec_YWJj", "whsec", b"abc"),
        (b"v1,whsec_YWJj", "whsec", b"abc"),
        (b"YWJj", "whsec", b"abc"),
        (b"whsec_", "whsec", None),
        (b"whsec_YWJ", "whsec", None),
        (b"whsec_YW Jj", "whsec", None),
        (b"616263", "hex", b"abc"),
        (b"6162zz", "hex", None),
        (b"\xff", "hex", None),
    ],
)
def test_mac_keys(secret: bytes, form: Any, key: bytes | None) -> None:
    assert mac.mac_key(secret, form) == key


def test_the_first_of_several_matching_secrets_is_named() -> None:
    proof = SharedSecretProof(scheme="shared-secret", header="x-token")
    assert shared_secret.verify(raw(x_token=b"t"), proof, [("old", b"x"), ("a", b"t"), ("b", b"t")]) == "a"


@pytest.mark.parametrize(
    ("text", "encoding", "value"),
    [
        (b"00ff", "hex", b"\x00\xff"),
        (b"00FF", "hex", None),
        (b"0", "hex", None),
        (b"zz", "hex", None),
        (b"\xff\xff", "hex", None),
        (b"AP8=", "base64", b"\x00\xff"),
        (b"AP8", "base64", None),
        (b"AP9=", "base64", None),  # the same bytes in another spelling
        (b"AP8=\n", "base64", None),
        (b"!", "base64", None),
    ],
)
def test_a_signature_has_one_spelling(text: bytes, encoding: Any, value: bytes | None) -> None:
    assert ed25519.decode(text, encoding) == value


def test_ed25519_tries_every_key_and_signature() -> None:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    proof = Ed25519Proof(
        scheme="ed25519",
        header="x-sig",
        prefix="s=",
        separator=" ",
        encoding="base64",
        key="whsec",
        layout=("{body}",),
    )
    good = b"s=" + base64.b64encode(private.sign(b"{}"))
    secrets = [("junk", b"\xff"), ("other", base64.b64encode(other)), ("own", b"whpk_" + base64.b64encode(public))]
    assert ed25519.verify(raw(x_sig=b"s=AAAA x " + good), proof, secrets) == "own"
    for sent in (b"s=AAAA", b"", good[2:]):
        with pytest.raises(Rejection, match="signature"):
            ed25519.verify(raw(x_sig=sent), proof, secrets)


# --- secrets sent as they are


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_shared_secrets_are_compared_whole(sent: bytes, secret: bytes) -> None:
    assert shared_secret.equal(sent, secret) == (sent == secret)


def test_basic_credentials_have_one_spelling() -> None:
    proof = SharedSecretProof(scheme="shared-secret", header="authorization", form="basic")
    good = b"Basic " + base64.b64encode(b"u:p")
    assert shared_secret.verify(raw(authorization=good), proof, [("0", b"u:p")]) == "0"
    for sent in (b"Basic  " + good[6:], good + b" ", good.rstrip(b"="), b"basic " + good[6:], b"u:p"):
        if sent != good:
            with pytest.raises(Rejection, match="signature"):
                shared_secret.verify(raw(authorization=sent), proof, [("0", b"u:p")])


@pytest.mark.parametrize(
    ("item", "label"),
    [
        ({"state": "one", "sub": "a"}, "bound"),
        ({"state": "one", "sub": "b"}, None),
        ({"state": "one"}, None),
        ({"state": "one", "sub": 7}, None),
        ({"state": "two", "sub": 7}, "free"),
        ({"state": "two"}, "free"),
        ({"state": ["two"]}, None),
        ({"state": "\ud800"}, None),
        ({}, None),
        ("two", None),
        (None, None),
    ],
)
def test_client_state(item: Any, label: str | None) -> None:
    proof = ClientStateProof(scheme="client-state", items="/value", at="/state", subscription="/sub")
    assert client_state.verify(item, proof, [("bound", b"one", "a"), ("free", b"two", None)]) == label


# --- signed JWT


def token(claims: dict[str, Any], headers: dict[str, Any] | None = None) -> RawDelivery:
    text = pyjwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "k"} if headers is None else headers)
    return raw(authorization=b"Bearer " + text.encode())


def prove(delivery: RawDelivery, now: float = NOW) -> jwt.Proved:
    return jwt.verify(delivery, PROOF, JWKS, ("me", "us"), now)


def test_jwt_facts_are_text_alone() -> None:
    proved = prove(token(CLAIMS))
    assert proved.kid == "k"
    assert dict(proved.facts) == {"subject": "s", "cloud": "c"}
    assert proved.jti == ("j", NOW + 70)


def test_jwt_times_may_be_fractions() -> None:
    assert prove(token({**CLAIMS, "exp": NOW + 60.5})).jti == ("j", NOW + 70.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use": "other"}, "claims"),
        ({"use": None}, "claims"),
        ({"app": "us"}, "claims"),
        ({"app": None}, "claims"),
        ({"aud": "them", "app": "them"}, "claims"),
        ({"label": None}, "claims"),
        ({"jti": "a b"}, "claims"),
        ({"jti": "caf\u00e9"}, "claims"),
        ({"exp": NOW + 301}, "claims"),
        ({"exp": NOW - 10, "iat": NOW - 20}, "freshness"),
        ({"nbf": NOW + 11}, "freshness"),
        ({"iat": NOW + 11}, "freshness"),
    ],
)
def test_jwt_claims(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejection) as caught:
        prove(token({**CLAIMS, **change}))
    assert (caught.value.reason, caught.value.status) == (reason, 401)


@pytest.mark.parametrize(
    ("now", "fresh"), [(NOW - 10, True), (NOW - 10.1, False), (NOW + 69.9, True), (NOW + 70, False)]
)
def test_jwt_leeway(now: float, fresh: bool) -> None:
    if fresh:
        assert prove(token(CLAIMS), now).kid == "k"
    else:
        with pytest.raises(Rejection, match="freshness"):
            prove(token(CLAIMS), now)


def test_jwt_kid() -> None:
    assert jwt.unverified_kid(token(CLAIMS), PROOF) == "k"
    assert jwt.unverified_kid(token(CLAIMS, {}), PROOF) is None
    assert jwt.unverified_kid(raw(), PROOF) is None
    for headers in ({}, {"kid": "other"}):
        with pytest.raises(Rejection) as caught:
            prove(token(CLAIMS, headers))
        assert (caught.value.reason, caught.value.status) == ("token", 401)


def test_jwt_keys_in_the_token_are_never_looked_at() -> None:
    stranger = generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(stranger.public_key()))
    text = pyjwt.encode(CLAIMS, stranger, algorithm="RS256", headers={"kid": "k", "jwk": jwk})
    with pytest.raises(Rejection, match="token"):
        prove(raw(authorization=b"Bearer " + text.encode()))


GOOD = token(CLAIMS).headers[0][1]


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_every_changed_byte_of_a_token_is_refused(at: int, byte: int) -> None:
    changed = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    if changed != GOOD:
        with pytest.raises(Rejection, match="token"):
            prove(raw(authorization=changed))


def test_a_segment_of_a_token_has_one_spelling() -> None:
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spellings = {GOOD[:-1] + bytes([last]) for last in alphabet}  # the last character has four bits to spare
    for text in spellings - {GOOD} | {
        GOOD + b"A",
        GOOD + b"AAA",
        GOOD[:-1],
        GOOD + b"==",
        GOOD.replace(b".", b"=.", 1),
    }:
        with pytest.raises(Rejection, match="token"):
            prove(raw(authorization=text))
