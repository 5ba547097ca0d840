"""The reader, with a body of every shipped provider, proved by `verify` as the provider would have signed it."""

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.delivery import RawDelivery
from gateway.errors import Rejection
from gateway.events import Reading, read
from gateway.profiles import (
    Answer,
    ClientStateProof,
    Condition,
    DeliveryId,
    Ed25519Proof,
    EventName,
    Freshness,
    Handshake,
    JwtProof,
    MacProof,
    Profile,
    Shape,
    SharedSecretProof,
    Source,
    load_profiles,
)
from gateway.signing import sign
from gateway.structs import replace
from gateway.verify import KeyRing, Secret, verify

PROFILES = load_profiles(Path(__file__).parents[1] / "profiles")
NOW = 1_790_000_000.0
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ORG = "11111111-1111-4111-8111-111111111111"
INSTALLATION = "ari:cloud:ecosystem::installation/5d1e"
APP = "ari:cloud:ecosystem::app/0b1f"

SAMPLES: dict[str, dict[str, Any]] = {
    "github": {
        "event": "issues.opened",
        "headers": {"x-github-event": "issues", "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
        "identity": {},
        "body": {
            "action": "opened",
            "issue": {"number": 7, "html_url": "https://github.com/acme/app/issues/7", "title": "Café"},
            "repository": {"id": 1, "full_name": "acme/app", "owner": {"login": "acme"}},
            "organization": {"login": "acme"},
            "installation": {"id": 48213991},
            "sender": {"id": 583231, "login": "octocat", "type": "User"},
        },
    },
    "gitlab-token": {
        "event": "merge_request.open",
        "headers": {"x-gitlab-event": "Merge Request Hook", "idempotency-key": "f5a1", "webhook-id": "f5a1"},
        "identity": {"project": ("42",)},
        "body": {
            "object_kind": "merge_request",
            "event_type": "merge_request",
            "user": {"id": 9, "username": "alice"},
            "project": {"id": 42, "path_with_namespace": "acme/app", "web_url": "https://gitlab.com/acme/app"},
            "object_attributes": {"iid": 3, "action": "open", "target_project_id": 42},
        },
    },
    "gitlab-signing": {
        "event": "pipeline",
        "headers": {"x-gitlab-event": "Pipeline Hook", "webhook-id": "f5a1", "webhook-timestamp": str(int(NOW))},
        "identity": {},
        "body": {
            "object_kind": "pipeline",
            "object_attributes": {"id": 31, "status": "success"},
            "user": {"id": 9, "username": "alice"},
            "project": {"id": 42, "path_with_namespace": "acme/app"},
        },
    },
    "linear": {
        "event": "Issue.update",
        "headers": {"linear-event": "Issue", "linear-delivery": "234d1a4e-b617-4388-90fe-adc3633d6b72"},
        "identity": {"organization": (ORG,)},
        "body": {
            "action": "update",
            "type": "Issue",
            "actor": {"id": "u-1", "type": "user"},
            "organizationId": ORG,
            "webhookTimestamp": int(NOW * 1000),
            "data": {"id": "i-1", "identifier": "ENG-7", "teamId": "t-1"},
            "url": "https://linear.app/acme/issue/ENG-7/title",
        },
    },
    "slack": {
        "event": "app_mention",
        "headers": {"x-slack-request-timestamp": str(int(NOW))},
        "identity": {"workspace": ("T1",), "app": ("A1",)},
        "body": {
            "type": "event_callback",
            "team_id": "T1",
            "api_app_id": "A1",
            "event_id": "Ev08MFMKH6",
            "event": {"type": "app_mention", "user": "U1", "channel": "C1", "ts": "1515449522.000016"},
        },
    },
    "microsoft-graph": {
        "event": "created",
        "headers": {},
        "identity": {"tenant": ("tenant-1",)},
        "body": {
            "value": [
                {
                    "id": "n-1",
                    "subscriptionId": "s-1",
                    "clientState": "client-state-of-thirty-two-chars",
                    "changeType": "created",
                    "tenantId": "tenant-1",
                    "resource": "teams('t')/channels('c')/messages('1')",
                    "resourceData": {"@odata.etag": 'W/"1"', "id": "1"},
                    "encryptedContent": None,
                }
            ]
        },
    },
    "forge": {
        "event": "avi:confluence:created:page",
        "headers": {},
        "identity": {
            "app": (APP,),
            "installation": (INSTALLATION,),
            "cloud": ("cloud-1",),
            "environment": ("PRODUCTION",),
        },
        "body": {
            "eventType": "avi:confluence:created:page",
            "atlassianId": "aa-1",
            "eventCreatedDate": "2026-08-01T00:00:00.000Z",
            "content": {"id": "65551", "type": "page", "space": {"id": 98306, "key": "ENG"}, "version": {"number": 1}},
        },
    },
    "jira": {
        "event": "jira:issue_updated",
        "headers": {"x-atlassian-webhook-identifier": "c5b1"},
        "identity": {},
        "body": {
            "timestamp": 1,
            "webhookEvent": "jira:issue_updated",
            "user": {"accountId": "5b10a2844c20165700ede21g"},
            "issue": {"id": "10002", "key": "ENG-7"},
        },
    },
    "azure-devops": {
        "event": "workitem.updated",
        "headers": {},
        "identity": {"collection": ("c-1",), "project": ("p-1",)},
        "body": {
            "subscriptionId": "9e3f",
            "notificationId": 12,
            "id": "27646e0e",
            "eventType": "workitem.updated",
            "resource": {"id": 2, "workItemId": 7, "revisedBy": {"id": "e5a5"}},
            "resourceContainers": {"collection": {"id": "c-1"}, "project": {"id": "p-1"}},
        },
    },
    "sentry": {
        "event": "issue.created",
        "headers": {"sentry-hook-resource": "issue", "request-id": "r-1"},
        "identity": {"installation": ("a8e5",)},
        "body": {
            "action": "created",
            "installation": {"uuid": "a8e5"},
            "data": {"issue": {"id": "4", "issueCategory": "error"}},
            "actor": {"type": "application", "id": "sentry"},
        },
    },
    "servicenow": {
        "event": "record.updated",
        "headers": {"webhook-id": "e1", "webhook-timestamp": str(int(NOW))},
        "identity": {"instance": ("acme.service-now.com",)},
        "body": {
            "type": "record.updated",
            "timestamp": "2026-08-01T00:00:00Z",
            "data": {"instance": "acme.service-now.com", "table": "incident", "sys_id": "0a", "sys_mod_count": 3},
        },
    },
    "standard-webhooks": {
        "event": "contact.created",
        "headers": {"webhook-id": "msg_1", "webhook-timestamp": str(int(NOW))},
        "identity": {},
        "body": {"type": "contact.created", "data": {}},
    },
}
WHOLE = sorted(set(SAMPLES) - {"microsoft-graph"})


class Everything(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


def secret(profile: Profile) -> bytes:
    proof = profile.proof
    if isinstance(proof, MacProof) and proof.key == "whsec":
        return b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    if isinstance(proof, Ed25519Proof):
        return ED_KEY.public_key().public_bytes_raw().hex().encode()
    if isinstance(proof, SharedSecretProof) and proof.form == "basic":
        return b"gateway:correct horse battery staple"
    return b"client-state-of-thirty-two-chars"


def claims() -> dict[str, Any]:
    contexts = [{"name": "jira", "cloudId": "cloud-0"}, {"name": "confluence", "cloudId": "cloud-1"}]
    app = {
        "id": APP,
        "installationId": INSTALLATION,
        "environment": {"type": "PRODUCTION", "id": "e-1"},
        "installation": {"id": INSTALLATION, "contexts": contexts},
    }
    times = {"iat": int(NOW), "nbf": int(NOW), "exp": int(NOW) + 25}
    return {"iss": "forge/invocation-token", "aud": APP, "jti": "jti-1", "app": app, **times}


def proved(profile: Profile, headers: Mapping[str, str], body: bytes) -> tuple[RawDelivery, KeyRing]:
    """A raw delivery as its provider would send it, and the keys that prove it."""
    if profile.name == "stripe":  # signs in a header of members, which `sign` does not build
        signature = hmac.digest(secret(profile), f"{int(NOW)}.".encode() + body, "sha256").hex()
        signed = {**headers, "stripe-signature": f"t={int(NOW)},v1={signature}"}
    elif isinstance(profile.proof, ClientStateProof):
        signed = dict(headers)
    else:
        key = ED_KEY if isinstance(profile.proof, Ed25519Proof) else RSA_KEY
        signed = sign(profile, headers, body, secret(profile), private_key=key, claims=claims(), kid="k")
    pairs = tuple((name.encode(), value.encode("latin-1")) for name, value in signed.items())
    jwks = {"k": RSA_KEY.public_key()} if isinstance(profile.proof, JwtProof) else {}
    secrets = () if jwks else (Secret("0", secret(profile)),)
    return RawDelivery("d-1", "source", NOW, pairs, b"", body), KeyRing(secrets, jwks)


def deliver(
    profile: str | Profile,
    body: Any = None,
    headers: Mapping[str, str | None] | None = None,
    wanted: Container[str] | None = None,
    **changes: Any,
) -> Reading:
    """Read a sample, or `body` (bytes as they are); a header of None is left out, `changes` are the source's."""
    if isinstance(profile, str):
        profile = PROFILES[profile]
    sample = SAMPLES.get(profile.name, {"headers": {}, "identity": {}, "body": {}, "event": ""})
    content = sample["body"] if body is None else body
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    merged = {**sample["headers"], **(headers or {})}
    source = replace(Source("source", profile, sample["identity"]), **changes)
    raw, keys = proved(profile, {name: value for name, value in merged.items() if value is not None}, data)
    return read(verify(raw, source, keys, NOW), source, {sample["event"]} if wanted is None else wanted, NOW)


def changed(profile: str, *changes: tuple[str, Any]) -> Any:
    """A sample's body with members set at simple pointers; a value of `...` removes the member."""
    body = copy.deepcopy(SAMPLES[profile]["body"])
    for pointer, value in changes:
        *path, last = pointer.split("/")[1:]
        place = body
        for token in path:
            place = place[int(token)] if isinstance(place, list) else place.setdefault(token, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return body


def rejection(act: Callable[[], Any]) -> tuple[str, int]:
    with pytest.raises(Rejection) as caught:
        act()
    return caught.value.reason, caught.value.status


def refused(*arguments: Any, **changes: Any) -> tuple[str, int]:
    """What `deliver` is refused for."""
    return rejection(lambda: deliver(*arguments, **changes))


# --- what each provider's sample says


@pytest.mark.parametrize("profile", sorted(SAMPLES))
def test_a_providers_own_body_is_one_event(profile: str) -> None:
    reading = deliver(profile)
    (event,) = reading.events
    assert (reading.handshake, reading.test, reading.ignored, reading.rejected) == (None, False, (), ())
    assert event.name == event.facts["event"] == SAMPLES[profile]["event"]
    expected = SAMPLES[profile]["body"]
    assert event.body == (expected["value"][0] if profile == "microsoft-graph" else expected)
    assert event.dedupe_ttl_s == PROFILES[profile].delivery_id.ttl_s
    assert all(isinstance(value, str) for value in event.facts.values())
    assert "acme" not in repr(event)


IDS = {
    "github": "id:72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "gitlab-token": "id:f5a1",
    "gitlab-signing": "id:f5a1",
    "linear": "id:234d1a4e-b617-4388-90fe-adc3633d6b72",
    "slack": "id:Ev08MFMKH6",
    "microsoft-graph": "id:n-1",
    "jira": "id:c5b1",
    "azure-devops": 'id:["9e3f", 12]',
    "servicenow": "id:e1",
    "standard-webhooks": "id:msg_1",
}


def digest_text(digest: str) -> str:
    return "body:" + base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")


def body_text(body: bytes) -> str:
    return digest_text(hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("profile", sorted(IDS))
def test_dedupe_texts(profile: str) -> None:
    (event,) = deliver(profile).events
    body = body_text(json.dumps(SAMPLES[profile]["body"]).encode())
    unsigned = profile in {"github", "gitlab-token", "linear", "jira"}
    assert event.dedupe == ((IDS[profile], body) if unsigned else (IDS[profile],))


def test_a_tokens_facts_and_single_use_id_go_on() -> None:
    (event,) = deliver("forge").events
    assert event.facts == {
        "app": APP,
        "installation": INSTALLATION,
        "cloud": "cloud-1",
        "environment": "PRODUCTION",
        "event": "avi:confluence:created:page",
    }
    assert event.jti is not None
    assert event.jti[0] == "jti-1"


def test_an_items_facts_are_its_own() -> None:
    (event,) = deliver("microsoft-graph").events
    assert event.facts == {"tenant": "tenant-1", "subscription": "s-1", "event": "created"}


def test_a_fact_with_a_lone_surrogate_is_no_fact() -> None:
    body = changed("microsoft-graph", ("/value/0/subscriptionId", "\ud800"))
    (event,) = deliver("microsoft-graph", body).events
    assert "subscription" not in event.facts


# --- JSON, its top level, a form


@pytest.mark.parametrize("profile", sorted(SAMPLES))
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":1,"a":1}', "json-duplicate-key"),
        (b'{"a":NaN}', "json-number"),
        (b"[" * 129 + b"]" * 129, "json-depth"),
        (b'{"a":1}x', "json-syntax"),
        (b"\xff", "json-syntax"),
        (b"", "json-syntax"),
        (b"[]", "json-shape"),
        (b'"text"', "json-shape"),
    ],
)
def test_a_body_that_is_not_one_meaning_is_refused(profile: str, body: bytes, reason: str) -> None:
    assert refused(profile, body) == (reason, 400)


def test_one_byte_order_mark_is_skipped() -> None:
    assert deliver("github", b"\xef\xbb\xbf" + json.dumps(SAMPLES["github"]["body"]).encode()).events


def test_a_profile_may_want_an_array() -> None:
    profile = PROFILES["jira"].model_copy(update={"top": "array", "event": EventName(parts=("/0",))})
    (event,) = deliver(profile, ["e"], wanted={"e"}).events
    assert event.name == "e"
    assert refused(profile, {}) == ("json-shape", 400)


FORM = {"content-type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}


def test_a_form_from_github_is_verified_as_sent_and_its_payload_decoded() -> None:
    text = json.dumps(SAMPLES["github"]["body"], ensure_ascii=False)
    body = b"payload=" + quote_plus(text).encode()
    (event,) = deliver("github", body, FORM).events
    assert event.body == SAMPLES["github"]["body"]
    assert event.dedupe[1] == body_text(body)


@pytest.mark.parametrize(
    "body",
    [
        b"payload=%7B%7D&payload=%7B%7D",
        b"payload=%7B%7D&other=1",
        b"other=%7B%7D",
        b"payload",
        b"payload=",
        b"",
        b"payload=%7B%22a%22%3A%22%zz%22%7D",
        b"payload=%7B%7D%",
        b"{}",
    ],
)
def test_a_form_of_anything_but_one_payload_is_refused(body: bytes) -> None:
    assert refused("github", body, FORM) == ("json-syntax", 400)


def test_a_form_where_the_profile_knows_none_is_no_json() -> None:
    assert refused("linear", b"payload=%7B%7D", FORM) == ("json-syntax", 400)


# --- a time inside the body


@pytest.mark.parametrize("offset_ms", [-60_000, 0, 60_000])
def test_a_time_in_the_body_within_the_window(offset_ms: int) -> None:
    assert deliver("linear", changed("linear", ("/webhookTimestamp", int(NOW * 1000) + offset_ms))).events


@pytest.mark.parametrize(
    "value",
    [
        int(NOW * 1000) - 60_001,
        int(NOW * 1000) + 60_001,
        int(NOW),
        10**63,
        -1,
        True,
        None,
        ...,
        str(int(NOW * 1000)),
        NOW * 1000,
        [],
    ],
)
def test_a_time_in_the_body_outside_the_window_missing_or_mistyped(value: Any) -> None:
    body = changed("linear", ("/webhookTimestamp", value), ("/type", "Unwanted"))
    assert refused("linear", body) == ("freshness", 401)


def test_a_source_widens_the_window_and_dedupe_outlives_it() -> None:
    body = changed("linear", ("/webhookTimestamp", int((NOW - 250_000) * 1000)))
    (event,) = deliver("linear", body, freshness_s=250_000.5).events
    assert event.dedupe_ttl_s == 500_001


def test_a_source_narrows_the_window() -> None:
    body = changed("linear", ("/webhookTimestamp", int((NOW - 30) * 1000)))
    assert refused("linear", body, freshness_s=10) == ("freshness", 401)


def test_a_time_in_seconds() -> None:
    profile = PROFILES["jira"].model_copy(update={"freshness": Freshness(at="/timestamp", unit="s", window_s=5)})
    assert deliver(profile, changed("jira", ("/timestamp", int(NOW) - 5))).events
    assert refused(profile, changed("jira", ("/timestamp", int(NOW) - 6))) == ("freshness", 401)


# --- handshakes and tests, before the identity


def test_slacks_challenge_is_given_back() -> None:
    answer = deliver("slack", {"type": "url_verification", "token": "x", "challenge": 'a"é'}).handshake
    assert answer is not None
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.body) == {"challenge": 'a"é'}
    assert ("X-Content-Type-Options", "nosniff") in answer.headers


@pytest.mark.parametrize("challenge", ["", "a" * 2049, 7, ["a"], "\ud800"])
def test_a_challenge_that_is_no_bounded_text_is_refused(challenge: Any) -> None:
    body = {"type": "url_verification", "challenge": challenge}
    assert refused("slack", body) == ("handshake", 400)


def test_a_handshake_without_its_members_is_an_event_that_nobody_wants() -> None:
    assert deliver("slack", {"type": "url_verification"}).ignored == ("undeclared-event",)


def test_discords_ping_has_an_empty_answer() -> None:
    answer = deliver("discord", {"type": 0}, {"x-signature-timestamp": str(int(NOW))}).handshake
    assert answer is not None
    assert (answer.status, answer.body) == (204, b"")
    # type counts: false is not 0
    body = {"type": False, "event": {"type": "E"}}
    assert deliver("discord", body, {"x-signature-timestamp": str(int(NOW))}).ignored == ("undeclared-event",)


def handshaking(**answer: Any) -> Profile:
    shake = Handshake(when=Condition(equals={"/hello": True}), max_bytes=8, answer=Answer(**answer))
    others = (Handshake(answer=Answer()), Handshake(unauthenticated=True, when=shake.when, answer=Answer(status=299)))
    return PROFILES["jira"].model_copy(update={"handshakes": (*others, shake)})


def test_a_handshake_answers_in_plain_text_or_echoes_a_header() -> None:
    plain = deliver(handshaking(content_type="text/plain", body_from="/word"), {"hello": True, "word": "wörd"})
    assert plain.handshake is not None
    assert plain.handshake.body == "wörd".encode()
    echo = deliver(handshaking(echo_header="x-hook-secret"), {"hello": True}, {"x-hook-secret": "s3"})
    assert echo.handshake is not None
    assert ("x-hook-secret", "s3") in echo.handshake.headers


@pytest.mark.parametrize("value", [None, "", "two words", "é", "123456789"])
def test_a_header_that_cannot_be_echoed_is_refused(value: str | None) -> None:
    profile = handshaking(echo_header="x-hook-secret")
    assert refused(profile, {"hello": True}, {"x-hook-secret": value}) == ("handshake", 400)


def test_an_answer_from_a_place_that_is_not_in_the_body_is_refused() -> None:
    assert refused(handshaking(body_from="query:x"), {"hello": True}) == ("handshake", 400)


PING = {"zen": "Design for failure.", "hook_id": 1, "hook": {}, "repository": {"full_name": "other/other"}}


def test_a_ping_is_a_test_before_the_identity_and_needs_no_delivery_id() -> None:
    headers = {"x-github-event": "ping", "x-github-delivery": None}
    assert deliver("github", PING, headers, identity={"repository": ("acme/app",)}) == Reading(test=True)


def test_another_body_under_the_name_of_a_test_is_no_test() -> None:
    assert deliver("github", headers={"x-github-event": "ping"}).ignored == ("undeclared-event",)


@pytest.mark.parametrize(
    ("pointer", "value", "test"),
    [
        ("/subscriptionId", "00000000-0000-0000-0000-000000000000", True),
        ("/resource/workItemId", 0, True),
        ("/resource/workItemId", False, False),
        ("/resource/workItemId", "0", False),
    ],
)
def test_the_test_button_of_azure_devops(pointer: str, value: Any, test: bool) -> None:
    assert (
        deliver(
            "azure-devops",
            changed("azure-devops", (pointer, value)),
            identity={} if test else SAMPLES["azure-devops"]["identity"],
        ).test
        is test
    )


# --- what nobody wants


@pytest.mark.parametrize("profile", WHOLE)
def test_an_undeclared_event_is_ignored_before_identity_and_delivery_id(profile: str) -> None:
    headers = dict.fromkeys(
        ("x-github-delivery", "linear-delivery", "idempotency-key", "x-atlassian-webhook-identifier")
    )
    if profile == "gitlab-token":
        headers["webhook-id"] = None
    assert deliver(
        profile,
        headers=headers,
        wanted=(),
        identity={"organization": ("other",)} if profile != "forge" else SAMPLES["forge"]["identity"],
    ) == Reading(ignored=("undeclared-event",))


def test_the_signed_body_decides_which_event_it_is() -> None:
    # the header says an event that is wanted, the body one that is not
    body = changed("linear", ("/type", "Comment"))
    assert deliver("linear", body).ignored == ("undeclared-event",)


def test_notices_are_ignored_even_if_declared() -> None:
    body = {"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1, "api_app_id": "A1"}
    assert deliver("slack", body, wanted=Everything()).ignored == ("notice",)
    confidential = {"object_kind": "issue", "event_type": "confidential_issue"}
    headers = {"x-gitlab-event": "Confidential Issue Hook"}
    for profile in ("gitlab-token", "gitlab-signing"):
        assert deliver(profile, confidential, headers, wanted=Everything()).ignored == ("notice",)
    headers = {"x-github-event": "repository_vulnerability_alert"}
    assert deliver("github", {"alert": {}}, headers, wanted=Everything()).ignored == ("notice",)


# --- the event header against the body


@pytest.mark.parametrize("profile", ["github", "sentry"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_event_header_where_the_body_cannot_speak(profile: str, value: str | None) -> None:
    name = PROFILES[profile].event.header
    assert name is not None
    assert refused(profile, headers={name: value}) == ("event-missing", 400)


@pytest.mark.parametrize("profile", ["linear", "gitlab-token", "gitlab-signing"])
def test_a_missing_event_header_where_the_body_speaks(profile: str) -> None:
    assert deliver(profile, headers={"linear-event": None, "x-gitlab-event": None}).events


def test_a_required_header_that_is_no_part_of_the_name() -> None:
    profile = PROFILES["linear"].model_copy(
        update={"event": EventName(parts=("/type", "/action"), header="linear-event", header_required=True)}
    )
    assert deliver(profile).events  # present: and compared with nothing
    assert refused(profile, headers={"linear-event": None}) == ("event-missing", 400)


@pytest.mark.parametrize("value", [None, 7, "", ...])
def test_a_body_that_names_no_event(value: Any) -> None:
    assert refused("jira", changed("jira", ("/webhookEvent", value))) == ("event-missing", 400)


def test_a_header_that_contradicts_the_body() -> None:
    assert refused("linear", headers={"linear-event": "Comment"}) == ("event-mismatch", 400)
    for profile in ("gitlab-token", "gitlab-signing"):
        assert refused(profile, headers={"x-gitlab-event": "Push Hook"}) == (
            "event-mismatch",
            400,
        )


def test_a_header_value_that_claims_nothing() -> None:
    assert deliver("gitlab-token", headers={"x-gitlab-event": "System Hook"}).events


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("issue_comment", []),
        ("pull_request", []),
        ("issues", [("/comment", {"id": 1})]),
        ("issues", [("/issue", None)]),
        ("issues", [("/issue", ...)]),
        ("dependabot_alert", []),
        ("an_event_without_a_shape", []),
    ],
)
def test_a_body_relabelled_as_another_event(event: str, change: list[tuple[str, Any]]) -> None:
    body = changed("github", *change)
    assert refused("github", body, {"x-github-event": event}, wanted=Everything()) == ("event-mismatch", 400)


def test_a_null_member_is_not_there() -> None:
    assert deliver("github", changed("github", ("/comment", None))).events


def test_a_header_cannot_stand_for_the_signed_action() -> None:
    body = changed("github", ("/action", ...))
    assert refused("github", body, {"x-github-event": "issues.opened"}) == ("event-missing", 400)


def test_an_open_profile_takes_events_without_a_shape() -> None:
    shapes = {"a": Shape(required=("/a",), equals={"/b": "c"})}
    event = EventName(parts=("/webhookEvent",), shapes=shapes, open=True)
    profile = PROFILES["jira"].model_copy(update={"event": event})
    assert deliver(profile).events
    for members in ({}, {"a": 1}, {"b": "c"}):
        body = {"webhookEvent": "a", **members}
        assert refused(profile, body, wanted={"a"}) == ("event-mismatch", 400)
    assert deliver(profile, {"webhookEvent": "a", "a": 1, "b": "c"}, wanted={"a"}).events


def test_an_event_header_in_two_copies_is_refused() -> None:
    sample = SAMPLES["github"]
    source = Source("source", PROFILES["github"])
    raw, keys = proved(source.profile, sample["headers"], json.dumps(sample["body"]).encode())
    raw = replace(raw, headers=(*raw.headers, (b"x-github-event", b"ping")))
    assert rejection(lambda: read(verify(raw, source, keys, NOW), source, Everything(), NOW)) == (
        "header-repeated",
        401,
    )


# --- identity


IDENTITIES = [
    ("linear", "/organizationId", {}),
    ("slack", "/team_id", {}),
    ("slack", "/api_app_id", {}),
    ("azure-devops", "/resourceContainers/collection/id", {}),
    ("azure-devops", "/resourceContainers/project/id", {}),
    ("azure-devops", "/subscriptionId", {**SAMPLES["azure-devops"]["identity"], "subscription": ("9e3f",)}),
    ("sentry", "/installation/uuid", {}),
    ("servicenow", "/data/instance", {}),
    ("gitlab-token", "/project/id", {}),
    ("github", "/installation/id", {"installation": ("48213991",)}),
    ("github", "/organization/login", {"organization": ("acme",)}),
    ("github", "/repository/full_name", {"repository": ("acme/app",)}),
]


@pytest.mark.parametrize(("profile", "pointer", "identity"), IDENTITIES)
def test_another_tenant_or_none_is_refused(profile: str, pointer: str, identity: dict[str, Any]) -> None:
    changes = {"identity": identity} if identity else {}
    assert deliver(profile, **changes).events
    values: tuple[Any, ...] = ("other", "", None, True, 7.0, [], ...)
    for value in values:
        body = changed(profile, (pointer, value))
        assert refused(profile, body, **changes) == ("identity", 403)


def test_identity_comes_before_the_delivery_id() -> None:
    body = changed("linear", ("/organizationId", "other"))
    assert refused("linear", body, {"linear-delivery": None}) == ("identity", 403)


def test_the_shape_comes_before_the_identity() -> None:
    body = changed("linear", ("/organizationId", "other"))
    assert refused("linear", body, {"linear-event": "Comment"}) == ("event-mismatch", 400)


def test_a_boolean_is_no_integer_and_text_is_compared_as_it_is() -> None:
    for value, identity in ((True, "1"), ("042", "42"), (" 42", "42"), (42.0, "42"), (42.0, "42.0")):
        body = changed("gitlab-token", ("/project/id", value))
        assert refused("gitlab-token", body, identity={"project": (identity,)}) == (
            "identity",
            403,
        )
    assert deliver("gitlab-token", changed("gitlab-token", ("/project/id", "42"))).events


@pytest.mark.parametrize("identity", [{}, {"organization": ()}])
def test_a_source_that_names_no_tenant_has_none(identity: dict[str, Any]) -> None:
    assert refused("linear", identity=identity) == ("identity", 403)


def test_an_optional_name_that_is_set_but_empty_accepts_nobody() -> None:
    assert refused("gitlab-token", identity={"project": ()}) == ("identity", 403)


def test_a_header_is_neither_identity_nor_fact_nor_actor() -> None:
    update = {"identity": {"tenant": "header:x"}, "facts": {"x": "header:x"}, "actors": ("header:x",)}
    profile = PROFILES["jira"].model_copy(update=update)
    assert refused(profile, headers={"x": "me"}, identity={"tenant": ("me",)}) == ("identity", 403)
    (event,) = deliver(
        profile.model_copy(update={"identity": {}}), headers={"x": "me"}, self_ids=frozenset({"me"})
    ).events
    assert "x" not in event.facts


# --- delivery ids


HEADER_IDS = {
    "github": "x-github-delivery",
    "linear": "linear-delivery",
    "jira": "x-atlassian-webhook-identifier",
}


@pytest.mark.parametrize("profile", sorted(HEADER_IDS))
def test_a_delivery_id_in_a_header(profile: str) -> None:
    name = HEADER_IDS[profile]
    for value in (None, ""):
        assert refused(profile, headers={name: value}) == ("delivery-id-missing", 400)
    for value in ("a" * 201, "two words", "é", "\x7f", "tab\t"):
        assert refused(profile, headers={name: value}) == ("delivery-id-invalid", 400)
    (event,) = deliver(profile, headers={name: "~" * 200}).events
    assert event.dedupe[0] == "id:" + "~" * 200


def test_a_signed_id_is_bounded_too() -> None:
    # the layout covers webhook-id, so a long one is authentic and still refused
    assert refused("gitlab-signing", headers={"webhook-id": "a" * 201, "idempotency-key": None}) == (
        "delivery-id-invalid",
        400,
    )


@pytest.mark.parametrize("value", [None, "", True, 1.5, [], {}, ...])
def test_a_missing_or_mistyped_id_in_the_body(value: Any) -> None:
    assert refused("slack", changed("slack", ("/event_id", value))) == ("delivery-id-missing", 400)


@pytest.mark.parametrize("value", ["a" * 201, "é", "a b", "\ud800", "a\n"])
def test_an_invalid_id_in_the_body(value: str) -> None:
    assert refused("slack", changed("slack", ("/event_id", value))) == ("delivery-id-invalid", 400)


def test_an_id_of_two_members_in_azure_devops() -> None:
    def dedupe(*changes: tuple[str, Any]) -> tuple[str, ...]:
        return deliver("azure-devops", changed("azure-devops", *changes)).events[0].dedupe

    assert dedupe(("/notificationId", ...)) == ('id:["9e3f", "27646e0e"]',)
    assert dedupe(("/notificationId", True)) == ('id:["9e3f", "27646e0e"]',)
    assert dedupe(("/notificationId", "12")) != dedupe()
    act = lambda: dedupe(("/notificationId", ...), ("/id", ...))  # noqa: E731
    assert rejection(act) == ("delivery-id-missing", 400)
    assert rejection(lambda: dedupe(("/notificationId", "9" * 201))) == ("delivery-id-invalid", 400)
    assert rejection(lambda: dedupe(("/notificationId", int("9" * 64)), ("/subscriptionId", "é"))) == (
        "delivery-id-invalid",
        400,
    )


def test_parts_are_joined_unambiguously_and_hashed_when_long() -> None:
    def dedupe(first: str, second: str) -> str:
        body = changed("azure-devops", ("/subscriptionId", first), ("/notificationId", second))
        return deliver("azure-devops", body).events[0].dedupe[0]

    assert dedupe('a","b', "c") != dedupe("a", 'b","c')
    assert dedupe("ab", "c") != dedupe("a", "bc")
    assert len(dedupe("a" * 200, "b" * 200)) == len("id:sha256 ") + 64
    assert dedupe("a" * 200, "b" * 200) != dedupe("a" * 200, "b" * 199 + "c")


@pytest.mark.parametrize("profile", ["gitlab-token", "gitlab-signing"])
def test_gitlabs_two_id_headers_must_agree(profile: str) -> None:
    headers = {"idempotency-key": "other"}
    assert refused(profile, headers=headers) == ("delivery-id-invalid", 400)
    assert deliver(profile, headers={"idempotency-key": "f5a1"}).events[0].dedupe[0] == "id:f5a1"
    assert deliver(profile, headers={"idempotency-key": None}).events[0].dedupe[0] == "id:f5a1"


def test_an_old_gitlab_has_the_digest_beside_its_shared_uuid() -> None:
    headers = {"idempotency-key": None, "webhook-id": None, "x-gitlab-event-uuid": "u-1"}
    body = json.dumps(SAMPLES["gitlab-token"]["body"]).encode()
    digest = hashlib.sha256(body).hexdigest()
    (event,) = deliver("gitlab-token", headers=headers).events
    assert event.dedupe == (f'id:["u-1", "{digest}"]', body_text(body))
    headers["x-gitlab-event-uuid"] = "two words"
    assert refused("gitlab-token", headers=headers) == ("delivery-id-invalid", 400)
    headers["x-gitlab-event-uuid"] = None
    assert refused("gitlab-token", headers=headers) == ("delivery-id-missing", 400)


def test_sentrys_id_ignores_the_request() -> None:
    first, again = (deliver("sentry", headers={"request-id": r}).events[0].dedupe for r in ("r-1", "r-2"))
    other = deliver("sentry", changed("sentry", ("/data/issue/id", "5"))).events[0].dedupe
    assert first == again != other
    assert first[0].startswith("id:")


def graph(*changes: tuple[str, Any]) -> Reading:
    return deliver("microsoft-graph", changed("microsoft-graph", *[(f"/value/0{p}", v) for p, v in changes]))


def test_a_graph_item_without_an_id_has_one_of_its_members() -> None:
    def composed(*changes: tuple[str, Any]) -> str:
        return graph(("/id", ...), *changes).events[0].dedupe[0]

    base = composed()
    assert base == composed(("/subscriptionExpirationDateTime", "2026"))
    for member in ("/resource", "/resourceData/@odata.etag", "/subscriptionId"):
        assert composed((member, "other")) != base
    for value in (None, ...):
        assert composed(("/resourceData/@odata.etag", value)) == composed(("/resourceData", ...)) != base
    assert composed(("/resource", "é" * 500)) != base
    assert graph(("/id", ...), ("/resource", ...)).rejected == ((0, "delivery-id-missing"),)


def confluence(*changes: tuple[str, Any], nested: bool = False) -> str:
    body = changed("forge", *changes)
    body = {"payload": body} if nested else body
    return deliver("forge", body).events[0].dedupe[0]


def test_a_confluence_event_is_named_by_its_parts_at_the_top_or_under_payload() -> None:
    base = confluence()
    assert base == confluence(nested=True) == confluence(("/retryContext", {"retryCount": 1}))
    for member, value in (("/content/id", "2"), ("/content/version/number", 2), ("/eventCreatedDate", "x")):
        assert confluence((member, value)) != base
        assert confluence((member, value)) == confluence((member, value), nested=True)


@pytest.mark.parametrize("missing", ["/content/version", "/eventCreatedDate", "/content/id"])
def test_where_a_part_is_missing_the_event_without_its_retry_context_is_in_the_id(missing: str) -> None:
    base = confluence((missing, ...))
    assert base != confluence()
    assert base == confluence((missing, ...), ("/retryContext", {"retryCount": 1}))
    assert base == confluence((missing, ...), ("/retryContext", {"retryCount": 1}), nested=True)
    assert base != confluence((missing, ...), ("/updateTrigger", "edit"))


def with_id(*parts: str, signed: bool = True) -> Profile:
    spec = DeliveryId(parts=(parts,), signed=signed, ttl_s=60)
    return PROFILES["jira"].model_copy(update={"delivery_id": spec})


def test_an_id_of_optional_parts_alone_needs_one_of_them() -> None:
    profile = with_id("/a?", "/b?")
    body = {"webhookEvent": "jira:issue_updated"}
    assert refused(profile, body) == ("delivery-id-missing", 400)
    first, second = (deliver(profile, {**body, member: "1"}).events[0].dedupe for member in ("a", "b"))
    assert first == ('id:["1", null]',)
    assert second == ('id:[null, "1"]',)


def test_a_digest_of_any_value() -> None:
    profile = with_id("digest:/a without retry")
    values: tuple[Any, ...] = ([], "\ud800", 0)
    bodies = [{"webhookEvent": "jira:issue_updated", "a": value} for value in values]
    texts = {deliver(profile, body).events[0].dedupe for body in bodies}
    assert len(texts) == 3
    assert all(len(text) == 67 for (text,) in texts)


# --- our own events


OWN = [
    ("github", "583231"),
    ("github", "octocat"),
    ("slack", "U1"),
    ("linear", "u-1"),
    ("jira", "5b10a2844c20165700ede21g"),
    ("gitlab-token", "9"),
    ("gitlab-signing", "alice"),
    ("azure-devops", "e5a5"),
    ("sentry", "sentry"),
    ("forge", "aa-1"),
]


@pytest.mark.parametrize(("profile", "actor"), OWN)
def test_an_event_that_we_caused_is_ignored(profile: str, actor: str) -> None:
    assert deliver(profile, self_ids=frozenset({actor})) == Reading(ignored=("own-event",))
    assert deliver(profile, self_ids=frozenset({actor + "x", "", "None"})).events


def test_an_own_event_comes_after_the_delivery_id() -> None:
    assert refused("github", headers={"x-github-delivery": None}, self_ids=frozenset({"octocat"})) == (
        "delivery-id-missing",
        400,
    )


# --- batches


def test_each_item_of_a_batch_stands_on_its_own() -> None:
    (item,) = SAMPLES["microsoft-graph"]["body"]["value"]
    items = [
        item,
        7,
        {**item, "clientState": "wrong"},
        {**item, "tenantId": "other"},
        {**item, "id": "", "resource": None},
        {**item, "id": "é"},
        {**item, "changeType": None},
        {**item, "changeType": "deleted", "tenantId": "other"},
        {**item, "encryptedContent": {"data": "x"}},
        {**item, "lifecycleEvent": "reauthorizationRequired", "changeType": None},
        {**item, "lifecycleEvent": "missed", "tenantId": "other"},
        {**item, "lifecycleEvent": None, "id": "n-2"},
    ]
    reading = deliver("microsoft-graph", {"value": items})
    assert [event.dedupe for event in reading.events] == [("id:n-1",), ("id:n-2",)]
    assert reading.rejected == (
        (1, "json-shape"),
        (2, "signature"),
        (3, "identity"),
        (4, "delivery-id-missing"),
        (5, "delivery-id-invalid"),
        (6, "event-missing"),
        (8, "rich-notification"),
        (10, "identity"),
    )
    assert reading.ignored == ("undeclared-event", "lifecycle")
    assert reading.lifecycle == (items[9],)


def test_an_empty_batch_says_nothing() -> None:
    assert deliver("microsoft-graph", {"value": []}) == Reading()


def test_an_optional_subscription_binds_where_it_is_set() -> None:
    identity = {"tenant": ("tenant-1",), "subscription": ("s-1",)}
    body = {"value": [SAMPLES["microsoft-graph"]["body"]["value"][0]] * 2}
    body["value"][1] = {**body["value"][1], "subscriptionId": "s-2"}
    reading = deliver("microsoft-graph", body, identity=identity)
    assert (len(reading.events), reading.rejected) == (1, ((1, "identity"),))


def batch() -> Profile:
    """A batch that one signature covers whole, as Asana's `events`."""
    update = {
        "items": "/events",
        "event": EventName(parts=("/action",)),
        "delivery_id": DeliveryId(parts=(("body-digest",),), signed=False, ttl_s=60),
        "tests": (Condition(equals={"/test": True}),),
    }
    return PROFILES["jira"].model_copy(update=update)


def test_a_batch_under_one_signature() -> None:
    items = [{"action": "added", "n": 1}, {"action": "added", "n": 2}, "text", {"action": "added", "test": True}]
    reading = deliver(batch(), {"events": items}, wanted={"added"})
    first, second = (event.dedupe for event in reading.events)
    assert not set(first) & set(second)  # the bytes are shared, so each item has a digest of its own
    assert first[1] == digest_text(first[0].removeprefix("id:"))
    assert reading.rejected == ((2, "json-shape"),)
    assert (reading.ignored, reading.test) == (("provider-test",), False)


@pytest.mark.parametrize("value", [None, {}, "x", ...])
def test_a_batch_without_its_list_is_refused(value: Any) -> None:
    body = {} if value is ... else {"events": value}
    assert refused(batch(), body) == ("json-shape", 400)
    body = {} if value is ... else {"value": value}
    assert refused("microsoft-graph", body) == ("json-shape", 400)


def test_a_lifecycle_notice_and_a_refused_shape_without_a_batch() -> None:
    update = {
        "lifecycle": Condition(present=("/renew",)),
        "refused": {"encrypted": Condition(event="jira:issue_updated", present=("/secret",))},
    }
    profile = PROFILES["jira"].model_copy(update=update)
    body = changed("jira", ("/renew", 1))
    assert deliver(profile, body) == Reading(ignored=("lifecycle",), lifecycle=(body,))
    assert refused(profile, changed("jira", ("/secret", 1))) == ("encrypted", 400)


# --- any input


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def pointers_of(profile: Profile) -> list[str]:
    """Every pointer that the profile's reading looks at."""
    spec = profile.model_dump()
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            walk(list(value))
            walk(list(value.values()))
        elif isinstance(value, list | tuple):
            for inner in value:
                walk(inner)
        elif isinstance(value, str) and value.removeprefix("digest:").startswith("/"):
            found.add(value.removeprefix("digest:").removesuffix("?").partition(" without ")[0])

    for key in ("event", "identity", "facts", "delivery_id", "actors", "handshakes", "tests", "refused", "lifecycle"):
        walk(spec[key])
    return sorted(found - {"/value", "/"})


def put(document: dict[str, Any], pointer: str, value: Any) -> None:
    *path, last = pointer.split("/")[1:]
    for token in path:
        inner = document.get(token)
        document[token] = document = inner if isinstance(inner, dict) else {}
    document[last] = value


@pytest.mark.parametrize("name", sorted(PROFILES))
@settings(max_examples=60)
@given(data=st.data())
def test_any_json_raises_nothing_but_a_rejection(name: str, data: st.DataObject) -> None:
    profile = PROFILES[name]
    sample = SAMPLES.get(name, {"headers": {}, "body": {}, "identity": {}})
    body: Any = copy.deepcopy(sample["body"])
    target = body["value"][0] if name == "microsoft-graph" else body
    for pointer in data.draw(st.lists(st.sampled_from(pointers_of(profile)), max_size=4)):
        put(target, pointer, data.draw(JSON))
    body = data.draw(st.sampled_from([body, None])) or data.draw(JSON)
    headers = dict(sample["headers"])
    for header in ("x-github-event", "x-gitlab-event", "linear-event", "sentry-hook-resource", "x-github-delivery"):
        if header in headers and data.draw(st.booleans()):
            headers[header] = data.draw(st.text(st.characters(max_codepoint=255), max_size=8))
    for header in ("x-slack-request-timestamp", "webhook-timestamp", "x-signature-timestamp", "webhook-id"):
        headers.setdefault(header, str(int(NOW)))
    try:
        reading = deliver(profile, json.dumps(body).encode(), headers, Everything(), identity=sample["identity"])
    except Rejection as refused:
        assert refused.status in {400, 401, 403}  # noqa: PT017
        return
    for event in reading.events:
        assert all(text.isascii() and len(text) <= 300 for text in event.dedupe)
        assert all(isinstance(value, str) for value in event.facts.values())


@settings(max_examples=200)
@given(st.binary(max_size=64), st.sampled_from(sorted(PROFILES)), st.booleans())
def test_any_bytes_raise_nothing_but_a_rejection(body: bytes, name: str, form: bool) -> None:
    headers = dict(FORM) if form else {}
    for header in ("x-slack-request-timestamp", "webhook-timestamp", "x-signature-timestamp", "webhook-id"):
        headers[header] = str(int(NOW))
    try:
        deliver(name, b"payload=" + body if form else body, headers, Everything())
    except Rejection as refused:
        assert refused.status in {400, 401, 403}  # noqa: PT017
