"""The token of a workflow run: everything that it must be is asked for, and nothing of it is believed before its proof."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given
from hypothesis import strategies as st
from jwt import api_jws

from gateway import oidc
from gateway.errors import Rejection
from gateway.oidc import Expected, Proven, check_run, check_workflow, claimed_branch, prove
from gateway.schemes import jwt

NOW = 1_780_000_000
ISSUER = "https://token.actions.githubusercontent.com"
KEY = generate_private_key(public_exponent=65537, key_size=2048)
SHA = "a" * 40
EXPECTED = Expected("gw:sha256:0", "acme/app", 7, ".github/workflows/a.lock.yml", 99)
WORKFLOW = "acme/app/.github/workflows/a.lock.yml@refs/heads/main"
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "gw:sha256:0",
    "iat": NOW,
    "nbf": NOW - 5,
    "exp": NOW + 300,
    "jti": "j-1",
    "run_id": "123",
    "workflow_sha": SHA,
    "event_name": "repository_dispatch",
    "repository": "acme/app",
    "repository_id": "7",
    "actor_id": "99",
    "ref": "refs/heads/main",
    "ref_type": "branch",
    "workflow_ref": WORKFLOW,
    "job_workflow_ref": WORKFLOW,
    "job_workflow_sha": SHA,
}
GONE = object()


def edited(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (CLAIMS | changes).items() if value is not GONE}


def token(claims: dict[str, Any], **header: Any) -> jwt.Token:
    text = api_jws.encode(json.dumps(claims).encode(), KEY, "RS256", headers={"kid": "k", **header})
    return jwt.parse(b"Bearer " + text.encode())


def proven(now: float = NOW, **changes: Any) -> Proven:
    return prove(token(edited(changes)), {"k": KEY.public_key()}, ISSUER, now)


def said(call: Any, *args: Any, **kwargs: Any) -> tuple[str, int]:
    with pytest.raises(Rejection) as caught:
        call(*args, **kwargs)
    return caught.value.reason, caught.value.status


def test_a_good_token_passes_every_step() -> None:
    one = proven()
    assert (one.jti, one.run_id, one.workflow_sha) == ("j-1", "123", SHA)
    check_run(one, EXPECTED)
    check_workflow(one, EXPECTED, "main")
    assert claimed_branch(one) == "main"
    numbers = proven(run_id=123, repository_id=7, actor_id=99, environment="")
    assert numbers.run_id == "123"
    check_run(numbers, EXPECTED)


@pytest.mark.parametrize("now", [NOW - 30, NOW + 329])
def test_the_leeway_holds_at_both_ends(now: float) -> None:
    proven(now)


@pytest.mark.parametrize(
    ("changes", "now", "reason"),
    [
        ({"iss": "https://evil.example"}, NOW, "issuer"),
        ({"iss": GONE}, NOW, "issuer"),
        ({}, NOW + 330, "freshness"),
        ({}, NOW - 36, "freshness"),
        ({"nbf": NOW + 31}, NOW, "freshness"),
        ({"iat": NOW + 31}, NOW, "freshness"),
        ({"exp": NOW + 901}, NOW, "lifetime"),
        ({"exp": NOW - 10}, NOW, "lifetime"),
        ({"nbf": NOW + 20, "exp": NOW + 20}, NOW, "lifetime"),
        ({"exp": GONE}, NOW, "freshness"),
        ({"iat": str(NOW)}, NOW, "freshness"),
        ({"nbf": True}, NOW, "freshness"),
        ({"jti": GONE}, NOW, "claim-jti"),
        ({"jti": 7}, NOW, "claim-jti"),
        ({"jti": ""}, NOW, "claim-jti"),
        ({"jti": "a b"}, NOW, "claim-jti"),
        ({"jti": "j" * 201}, NOW, "claim-jti"),
        ({"run_id": GONE}, NOW, "claim-run-id"),
        ({"run_id": "0"}, NOW, "claim-run-id"),
        ({"run_id": "1\n"}, NOW, "claim-run-id"),
        ({"run_id": True}, NOW, "claim-run-id"),
        ({"workflow_sha": GONE}, NOW, "claim-workflow-sha"),
        ({"workflow_sha": "a" * 39}, NOW, "claim-workflow-sha"),
        ({"workflow_sha": "A" * 40}, NOW, "claim-workflow-sha"),
        ({"workflow_sha": 7}, NOW, "claim-workflow-sha"),
    ],
)
def test_a_token_that_is_not_provable(changes: dict[str, Any], now: float, reason: str) -> None:
    found, status = said(proven, now, **changes)
    assert (re.fullmatch(reason, found) is not None, status) == (True, 401), found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"aud": ["gw:sha256:0"]}, ("audience", 401)),
        ({"aud": "gw:sha256:1"}, ("audience", 401)),
        ({"event_name": "push"}, ("event", 403)),
        ({"repository": "acme/App"}, ("repository", 403)),
        ({"repository_id": "8"}, ("repository", 403)),
        ({"repository_id": GONE}, ("repository", 403)),
        ({"repository_id": 7.0}, ("repository", 403)),
        ({"actor_id": "41898282"}, ("sender", 403)),
        ({"actor_id": GONE}, ("sender", 403)),
        ({"environment": "prod"}, ("environment", 403)),
    ],
)
def test_a_run_that_is_not_the_enrolled_one(changes: dict[str, Any], expected: tuple[str, int]) -> None:
    assert said(check_run, proven(**changes), EXPECTED) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref": "refs/heads/other"}, "ref"),
        ({"ref": "refs/tags/main"}, "ref"),
        ({"ref_type": "tag"}, "ref"),
        ({"workflow_ref": WORKFLOW.replace("a.lock", "b.lock")}, "workflow"),
        ({"workflow_ref": GONE}, "workflow"),
        ({"job_workflow_ref": WORKFLOW.replace("acme/app", "acme/shared")}, "workflow"),
        ({"job_workflow_sha": "b" * 40}, "workflow"),
    ],
)
def test_a_workflow_that_is_not_the_enrolled_one(changes: dict[str, Any], reason: str) -> None:
    assert said(check_workflow, proven(**changes), EXPECTED, "main") == (reason, 403)


def test_what_a_job_need_not_say() -> None:
    check_workflow(proven(job_workflow_ref=GONE, job_workflow_sha=GONE, ref_type=GONE), EXPECTED, "main")


@pytest.mark.parametrize("ref", [None, 7, "refs/tags/v1", "refs/pull/1/merge", "main"])
def test_only_a_branch_is_a_branch(ref: Any) -> None:
    assert claimed_branch(proven(ref=ref)) is None


def test_the_key_is_chosen_by_a_known_kid_alone() -> None:
    good = token(CLAIMS)
    assert oidc.unverified_kid(good) == "k"
    assert said(prove, good, {}, ISSUER, NOW)[1] == 401
    other = generate_private_key(public_exponent=65537, key_size=2048).public_key()
    assert said(prove, good, {"k": other}, ISSUER, NOW)[1] == 401
    for kid in (7, "", "a b", "k" * 201, "ü"):
        header = {"alg": "RS256", "kid": kid}
        assert oidc.unverified_kid(jwt.Token(header, {}, b"", b"")) is None


def test_a_thing_that_is_no_id_is_no_id() -> None:
    assert [oidc.number(value) for value in (None, True, 1.0, "01", "-1", "1e3", [1], 10**30)] == [None] * 8


@given(st.sampled_from(sorted(CLAIMS)), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))
def test_any_other_value_of_any_claim_is_a_rejection_or_the_same_run(name: str, value: Any) -> None:
    try:
        one = proven(**{name: value})
        check_run(one, EXPECTED)
        check_workflow(one, EXPECTED, "main")
    except Rejection as error:
        assert error.status in (401, 403)  # noqa: PT017 (either end is good)
    else:
        assert name in {"iat", "nbf", "exp", "jti", "run_id"} or str(value) == CLAIMS[name]


def test_every_reason_is_told_to_operators() -> None:
    reasons = set(re.findall(r'Rejection\("([a-z-]+)"', Path(str(oidc.__file__)).read_text()))
    assert reasons == {
        "issuer",
        "freshness",
        "lifetime",
        "claim-jti",
        "claim-run-id",
        "claim-workflow-sha",
        "audience",
        "event",
        "repository",
        "sender",
        "environment",
        "ref",
        "workflow",
    }
