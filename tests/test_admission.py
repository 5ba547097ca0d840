"""Attacks on admission, each by its name, against a dispatch that was really sent; and what must be admitted."""

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway import envelope
from gateway.doubles.oidc import encode
from gateway.errors import Rejection, Unavailable
from gateway.store import Store
from gateway.structs import replace
from tests.destination_house import House, enrolled_with, house
from tests.valkey import PrivateValkey

TEXT = "on: repository_dispatch\n"


@pytest.fixture
async def home(server: PrivateValkey) -> AsyncIterator[House]:
    async with house(server, TEXT) as made:
        yield made


async def refusal(home: House, token: str, dispatch: str, digest: str | None = None) -> tuple[int, str]:
    with pytest.raises(Rejection) as caught:
        await home.admit(token, dispatch, digest)
    return caught.value.status, caught.value.reason


async def test_the_run_of_a_dispatch_is_admitted_once_its_repeats_included(home: House) -> None:
    body = await home.sent()
    dispatch = body["client_payload"]["gateway"]["dispatch"]
    run = await home.admit(home.token(run_id="77", jti="j1"), dispatch)
    assert run.to_json() == {
        "admitted": True,
        "run_id": "77",
        "events": 1,
        "envelope_digest": envelope.envelope_digest(body["client_payload"]),
    }
    assert await home.admit(home.token(run_id="77", jti="j1"), dispatch) == run  # its answer was lost
    assert await home.admit(home.token(run_id="77", run_attempt="2"), dispatch) == run  # a re-run
    assert await refusal(home, home.token(run_id="78"), dispatch) == (409, "taken")
    known = await home.store.dispatch(dispatch)
    assert known is not None
    assert known.run == "77"


Attack = Callable[[House], str]


def hs256(home: House) -> str:
    """Sign with the public key as an HMAC secret, which a verifier that lets the header choose would accept."""
    key = home.oidc.issuer.keys[home.oidc.issuer.kid].public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = orjson.dumps({"alg": "HS256", "typ": "JWT", "kid": home.oidc.issuer.kid})
    signed = encode(head) + b"." + encode(orjson.dumps(home.claims()))
    return (signed + b"." + encode(hmac.new(pem, signed, hashlib.sha256).digest())).decode()


def unsigned(home: House, signature: bytes = b"") -> str:
    head = orjson.dumps({"alg": "none", "typ": "JWT", "kid": home.oidc.issuer.kid})
    return (encode(head) + b"." + encode(orjson.dumps(home.claims())) + b"." + encode(signature)).decode()


def other_key(header: dict[str, Any]) -> Attack:
    return lambda home: home.oidc.issuer.sign(home.claims(), header, own_key=False)


def raw_claims(change: Callable[[bytes], bytes]) -> Attack:
    def made(home: House) -> str:
        head = orjson.dumps({"alg": "RS256", "typ": "JWT", "kid": home.oidc.issuer.kid})
        return home.oidc.issuer.sign_raw(head, change(orjson.dumps(home.claims())))

    return made


def claims(**changes: Any) -> Attack:
    return lambda home: home.token(**changes)


def later(**shifts: int) -> Attack:
    return lambda home: home.token(**{name: int(time.time()) + shift for name, shift in shifts.items()})


OTHER = "sha256:" + "0" * 64
FILE = "acme/app/.github/workflows/linear-issue-created.lock.yml"
ATTACKS: dict[str, tuple[int, str, Attack]] = {
    "a dispatch sent with a job's own GITHUB_TOKEN": (403, "sender", claims(actor_id="41898282")),
    "a dispatch sent by a person": (403, "sender", claims(actor_id="1")),
    "the App's id instead of its bot's": (403, "sender", claims(actor_id="4711")),
    "a token without an actor": (403, "sender", claims(actor_id=None)),
    "another audience": (401, "audience", claims(aud="https://github.com/acme")),
    "another workflow's audience": (401, "audience", claims(aud=f"gh-aw-gateway:{OTHER}")),
    "two audiences": (401, "audience", lambda h: h.token(aud=[h.claims()["aud"], "x"])),
    "a list of the one audience": (401, "audience", lambda h: h.token(aud=[h.claims()["aud"]])),
    "no audience": (401, "audience", claims(aud=None)),
    "another repository": (403, "repository", claims(repository="acme/other", repository_id="5")),
    "a fork": (403, "repository", claims(repository="mallory/app", repository_id="6")),
    "the name taken over by another repository": (403, "repository", claims(repository_id="7")),
    "the id under another name": (403, "repository", claims(repository="acme/renamed")),
    "no repository id": (403, "repository", claims(repository_id=None)),
    "another workflow": (403, "workflow", claims(workflow_ref="acme/app/.github/workflows/x.yml@refs/heads/main")),
    "the workflow of another branch": (403, "workflow", claims(workflow_ref=f"{FILE}@refs/heads/evil")),
    "another branch": (403, "ref", claims(ref="refs/heads/evil", workflow_ref=f"{FILE}@refs/heads/evil")),
    "a tag of the branch's name": (403, "ref", claims(ref="refs/tags/main")),
    "a ref type that is no branch": (403, "ref", claims(ref_type="tag")),
    "a reusable workflow": (
        403,
        "workflow",
        claims(job_workflow_ref="acme/lib/.github/workflows/r.yml@refs/heads/main"),
    ),
    "the enrolled file called as a reusable workflow at another commit": (
        403,
        "workflow",
        claims(job_workflow_sha="b" * 40),
    ),
    "another environment": (403, "environment", claims(environment="production")),
    "another event": (403, "event", claims(event_name="workflow_dispatch")),
    "a pull request": (403, "event", claims(event_name="pull_request")),
    "another issuer": (401, "issuer", claims(iss="https://token.actions.example.com")),
    "an issuer with a suffix": (401, "issuer", lambda h: h.token(iss=h.oidc.address + "/acme")),
    "no issuer": (401, "issuer", claims(iss=None)),
    "alg none": (401, "token", unsigned),
    "alg none with a signature": (401, "token", lambda h: unsigned(h, b"x")),
    "HS256 with the public key": (401, "token", hs256),
    "alg RS512": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"alg": "RS512"})),
    "a jku header": (401, "token", other_key({"jku": "https://evil.example/jwks"})),
    "an x5u header": (401, "token", other_key({"x5u": "https://evil.example/cert"})),
    "an embedded key": (401, "token", other_key({"jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}})),
    "a critical extension": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"crit": ["exp"]})),
    "key confusion": (401, "token", other_key({})),
    "an unknown kid": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"kid": "nobody"})),
    "no kid": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"kid": None})),
    "duplicate claims": (401, "token", raw_claims(lambda c: b'{"aud":"x",' + c[1:])),
    "claims that are a list": (401, "token", raw_claims(lambda c: b"[" + c + b"]")),
    "trailing bytes in the claims": (401, "token", raw_claims(lambda c: c + b"{}")),
    "a huge token": (401, "token", claims(padding="x" * 16_384)),
    "padding in a segment": (401, "token", lambda h: h.token() + "="),
    "four segments": (401, "token", lambda h: h.token() + ".x"),
    "an edited claim": (401, "token", lambda h: edited(h.token())),
    "expired": (401, "freshness", later(iat=-400, nbf=-400, exp=-31)),
    "not yet valid": (401, "freshness", later(nbf=60, exp=300)),
    "issued in the future": (401, "freshness", later(iat=60, exp=300)),
    "a lifetime over 15 minutes": (401, "lifetime", later(exp=1000)),
    "an end before its beginning": (401, "lifetime", later(iat=20, exp=10)),
    "exp as text": (401, "freshness", claims(exp="9999999999")),
    "iat as a boolean": (401, "freshness", claims(iat=True)),
    "no nbf": (401, "freshness", claims(nbf=None)),
    "no jti": (401, "claim-jti", claims(jti=None)),
    "a long jti": (401, "claim-jti", claims(jti="x" * 201)),
    "a jti with a line feed": (401, "claim-jti", claims(jti="a\nb")),
    "no run id": (401, "claim-run-id", claims(run_id=None)),
    "a run id that is no number": (401, "claim-run-id", claims(run_id="7 ")),
    "no workflow commit": (401, "claim-workflow-sha", claims(workflow_sha=None)),
    "a commit that is a branch's name": (401, "claim-workflow-sha", claims(workflow_sha="main")),
    "the workflow changed at that commit": (403, "workflow-hash", claims(workflow_sha="c" * 40, job_workflow_sha=None)),
    "no bearer": (401, "token", lambda _: ""),
    "nbf in the future beyond the leeway": (401, "freshness", later(nbf=31, exp=300)),
    "a time beyond every clock": (
        401,
        "lifetime",
        raw_claims(lambda c: c.replace(b'"exp":', b'"exp":9' + b"0" * 50 + b',"x":')),
    ),
    "a time before every clock": (
        401,
        "lifetime",
        raw_claims(lambda c: c.replace(b'"iat":', b'"iat":-9' + b"0" * 50 + b',"x":')),
    ),
    "an audience that is an object": (401, "audience", claims(aud={"0": "x"})),
    "an audience in capitals": (401, "audience", lambda h: h.token(aud=h.claims()["aud"].upper())),
    "an audience with white space after it": (401, "audience", lambda h: h.token(aud=h.claims()["aud"] + " ")),
    "a kid with control characters": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"kid": "k\r\nX: y\0"})),
    "a kid that is a path": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"kid": "../../dev/null"})),
    "a kid that is a list": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"kid": ["x"]})),
    "an embedded certificate": (401, "token", other_key({"x5c": ["MIIB"], "x5t": "x"})),
    "alg in lower case": (401, "token", lambda h: h.oidc.issuer.sign(h.claims(), {"alg": "rs256"})),
    "claims nested without end": (
        401,
        "token",
        raw_claims(lambda c: b'{"x":' + b"[" * 200 + b"]" * 200 + b"," + c[1:]),
    ),
    "claims that are no UTF-8": (401, "token", raw_claims(lambda c: c[:-1] + b',"x":"\xff"}')),
    "a claim that is not a number": (401, "token", raw_claims(lambda c: c[:-1] + b',"x":NaN}')),
    "another spelling of the repository": (403, "repository", claims(repository="Acme/App")),
    "a look-alike letter in the repository": (403, "repository", claims(repository="\u0430cme/app")),
    "a composed repository": (403, "repository", claims(repository="acme/a\u0301pp")),
    "a lone surrogate in the repository": (
        403,
        "repository",
        raw_claims(lambda c: c.replace(b'"repository":"acme/app"', b'"repository":"acme/app\\ud800"')),
    ),
    "a repository id with a zero before it": (
        403,
        "repository",
        lambda h: h.token(repository_id="0" + h.claims()["repository_id"]),
    ),
    "another spelling of the branch": (403, "ref", claims(ref="refs/heads/Main")),
    "a branch's short name": (403, "ref", claims(ref="main")),
    "the ref of a pull request": (403, "ref", claims(ref="refs/pull/1/merge")),
    "the workflow of a tag of the branch's name": (403, "workflow", claims(workflow_ref=f"{FILE}@refs/tags/main")),
    "the workflow's ref twice": (403, "workflow", claims(workflow_ref=f"{FILE}@refs/heads/main@refs/heads/main")),
    "another spelling of the workflow": (
        403,
        "workflow",
        claims(workflow_ref=f"{FILE.replace('workflows', 'Workflows')}@refs/heads/main"),
    ),
    "dots in the workflow's path": (
        403,
        "workflow",
        claims(workflow_ref=f"{FILE.replace('workflows/', 'workflows/../workflows/')}@refs/heads/main"),
    ),
    "the workflow of a fork": (
        403,
        "workflow",
        claims(workflow_ref=f"mallory/{FILE.partition('/')[2]}@refs/heads/main"),
    ),
    "a reusable workflow of the same repository": (
        403,
        "workflow",
        claims(job_workflow_ref="acme/app/.github/workflows/r.yml@refs/heads/main"),
    ),
    "a reusable workflow that is no text": (403, "workflow", claims(job_workflow_ref=[])),
}


def edited(token: str) -> str:
    head, body, signature = token.split(".")
    return f"{head}.{'A' if body[-1] != 'A' else 'Q'}{body[1:]}.{signature}"


async def test_attacks_are_refused_and_the_run_is_admitted_all_the_same(home: House) -> None:
    dispatch = await home.dispatch()
    home.file("on: push\n", "c" * 40)
    results = {name: await refusal(home, made(home), dispatch) for name, (_, _, made) in ATTACKS.items()}
    assert results == {name: (status, reason) for name, (status, reason, _) in ATTACKS.items()}
    known = await home.store.dispatch(dispatch)
    assert known is not None
    assert known.run is None
    assert await home.store.suspended() == {}  # the default branch agrees: a refused run alone suspends nothing
    await home.admit(home.token(), dispatch)


ISSUERS = {
    "GitHub Enterprise Server": "https://github.acme.example/_services/token",
    "data residency": "https://token.actions.acme.ghe.com",
    "an issuer with the enterprise's name": "https://token.actions.githubusercontent.com/acme",
}


@pytest.mark.parametrize("issuer", ISSUERS.values(), ids=ISSUERS)
async def test_another_issuer_is_configuration(server: PrivateValkey, issuer: str) -> None:
    async with house(server, TEXT, issuer_url=issuer) as home:
        dispatch = await home.dispatch()
        for other in ("https://token.actions.githubusercontent.com", issuer + "/", issuer.upper()):
            assert await refusal(home, home.token(iss=other), dispatch) == (401, "issuer")
        assert (await home.admit(home.token(run_id="7"), dispatch)).run_id == "7"


async def test_two_gateways_and_one_run(home: House) -> None:
    """The run asks both at once, as after a lost answer behind a balancer: both say the same, and another run never has it."""
    other = await Store.open(home.valkey.url)
    gateways = (home.admission, home.another(other))

    async def ask(n: int, dispatch: str, run: str) -> str:
        body = json.dumps({"dispatch": dispatch, "subscription": home.digest}).encode()
        bearer = f"Bearer {home.token(run_id=run, jti=f'{run}-{n % 3}-{dispatch}')}".encode()
        try:
            return (await gateways[n % 2].admit(bearer, body)).run_id
        except Rejection as error:
            return error.reason

    try:
        for _ in range(5):
            dispatch = await home.dispatch()
            answers = await asyncio.gather(*(ask(n, dispatch, "7") for n in range(20)))
            assert answers == ["7"] * 20
            assert await ask(1, dispatch, "8") == "taken"
            raced = await home.dispatch()
            answers = await asyncio.gather(*(ask(n, raced, str(10 + n // 2)) for n in range(20)))
            known = await home.store.dispatch(raced)
            assert known is not None
            assert set(answers) == {known.run, "taken"}
            assert answers.count(str(known.run)) == 2  # its call at either gateway
    finally:
        await other.close()


async def test_one_token_raced_for_two_dispatches_has_one(home: House) -> None:
    first, second = await home.dispatch(), await home.dispatch()
    token = home.token(jti="both")
    results = await asyncio.gather(*(home.admit(token, one) for one in (first, second) * 5), return_exceptions=True)
    reasons = [getattr(result, "reason", "admitted") for result in results]
    assert sorted(reasons) == ["admitted"] * 5 + ["replayed-token"] * 5
    runs = [getattr(await home.store.dispatch(one), "run", None) for one in (first, second)]
    assert runs.count(None) == 1


KILLED = """
import asyncio, os, signal, sys
from gateway.store import Store
from gateway.store.client import Client

url, step, dispatch, digest, now = sys.argv[1:]
calls, real = [], Client.run

async def run(self, name, *args):
    answer = await real(self, name, *args)
    calls.append(name)
    if len(calls) == int(step):
        print(name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

async def main():
    store = await Store.open(url)
    Client.run = run
    await store.admit_run(dispatch, digest, "7", f"jti-{dispatch}", float(now), 60.0)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("step", "name", "run"), [(1, "admit_run", None), (2, "claim_jti", None), (3, "admit_run", "7")]
)
async def test_a_gateway_killed_between_the_steps_of_an_admission(
    home: House, step: int, name: str, run: str | None
) -> None:
    """kill -9 of the process, after each of its calls of the store: the run's repeat is admitted, or another run, never both."""
    for repeats in (True, False):
        dispatch = await home.dispatch()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, home.valkey.url, str(step), dispatch, home.digest, str(time.time()),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert (process.returncode, out.decode().strip()) == (-9, name)
        known = await home.store.dispatch(dispatch)
        assert known is not None
        assert known.run == run
        if repeats:
            assert (await home.admit(home.token(run_id="7", jti=f"jti-{dispatch}"), dispatch)).run_id == "7"
            assert await refusal(home, home.token(run_id="8"), dispatch) == (409, "taken")
        elif run is None:
            assert (await home.admit(home.token(run_id="8"), dispatch)).run_id == "8"
            assert await refusal(home, home.token(run_id="7", jti=f"jti-{dispatch}"), dispatch) == (409, "taken")


async def test_replayed_jti(home: House) -> None:
    first, second = await home.dispatch(), await home.dispatch()
    token = home.token(jti="once")
    await home.admit(token, first)
    assert await refusal(home, token, second) == (401, "replayed-token")
    assert await refusal(home, home.token(jti="once", run_id="5"), first) == (409, "taken")
    await home.admit(home.token(), second)


async def test_swapped_dispatch_id(home: House) -> None:
    dispatch = await home.dispatch()
    for other in ("0196f0c0-0000-7000-8000-000000000000", "nonsense", ""):
        assert await refusal(home, home.token(), other) == (404, "unknown-dispatch")
    assert await refusal(home, home.token(), dispatch, "sha256:" + "1" * 64) == (403, "not-enrolled")
    # a dispatch of another subscription that is enrolled too

    other_one = enrolled_with("other\n")
    home.enrolled[other_one.subscription.digest] = other_one
    home.file("other\n", "d" * 40)
    token = home.token(
        aud=f"gh-aw-gateway:{other_one.subscription.workflow_hash}", workflow_sha="d" * 40, job_workflow_sha=None
    )
    assert await refusal(home, token, dispatch, other_one.subscription.digest) == (404, "unknown-dispatch")


async def test_envelope_edited_after_dispatch(home: House) -> None:
    body = await home.sent()
    payload = json.loads(json.dumps(body["client_payload"]))
    run = await home.admit(home.token(), payload["gateway"]["dispatch"])
    assert run.envelope_digest == envelope.envelope_digest(payload)
    payload["gateway"]["events"][0]["url"] += "9"
    assert run.envelope_digest != envelope.envelope_digest(payload)


async def test_expired_jwks(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = await home.dispatch()
    now = [time.monotonic()]
    monkeypatch.setattr("gateway.keys.time.monotonic", lambda: now[0])
    await home.admit(home.token(run_id="5"), dispatch)
    home.oidc.issuer.away = True
    now[0] += 5 * 3600
    await home.admit(home.token(run_id="5"), dispatch)  # stale, and the issuer is away
    now[0] += 2 * 3600
    with pytest.raises(Unavailable, match="jwks-unavailable"):
        await home.admit(home.token(run_id="5"), dispatch)
    home.oidc.issuer.away = False
    now[0] += 61
    await home.admit(home.token(run_id="5"), dispatch)


async def test_unknown_kids_refresh_the_keys_once_a_minute(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = await home.dispatch()
    now = [time.monotonic()]
    monkeypatch.setattr("gateway.keys.time.monotonic", lambda: now[0])
    await home.admit(home.token(run_id="5"), dispatch)
    asked = home.oidc.issuer.asked
    for n in range(20):
        await refusal(home, home.oidc.issuer.sign(home.claims(), {"kid": f"k{n}"}), dispatch)
    assert home.oidc.issuer.asked == asked
    home.oidc.issuer.rotate()
    now[0] += 61
    await home.admit(home.token(run_id="5"), dispatch)
    assert home.oidc.issuer.asked == asked + 1


async def test_a_thousand_racing_callers_exactly_one_wins(home: House) -> None:
    dispatch = await home.dispatch()
    tokens = [home.token(run_id=str(1000 + n)) for n in range(1000)]

    async def call(token: str) -> str:
        while True:
            try:
                return (await home.admit(token, dispatch)).run_id
            except Rejection as error:
                return error.reason
            except Unavailable:
                await asyncio.sleep(0.05)

    results = await asyncio.gather(*map(call, tokens))
    won = [result for result in results if result != "taken"]
    known = await home.store.dispatch(dispatch)
    assert known is not None
    assert won == [known.run]
    assert (
        home.github.double.calls["contents"] < 10
    )  # read for all of them, and again only where a busy machine timed out


async def test_admission_during_a_failover_fails_closed_and_then_admits_the_same_run(home: House) -> None:
    dispatch = await home.dispatch()
    await home.admit(home.token(run_id="5"), dispatch)
    home.valkey.kill()
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await home.admit(home.token(run_id="6"), dispatch)
    assert time.monotonic() - began < 15
    home.valkey.start()
    assert await refusal(home, home.token(run_id="6"), dispatch) == (409, "taken")
    assert (await home.admit(home.token(run_id="5"), dispatch)).run_id == "5"


async def test_a_stopped_store_is_unavailable_within_two_seconds(home: House) -> None:
    dispatch = await home.dispatch()
    home.valkey.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await home.admit(home.token(), dispatch)
        assert time.monotonic() - began < 15
        assert await refusal(home, home.token(aud="x"), dispatch) == (401, "audience")
    finally:
        home.valkey.resume()


async def test_windows_suspension_denial_and_unknown_files(home: House) -> None:
    dispatch = await home.dispatch()
    await home.store.suspend(home.digest, "opt-in-revoked")
    assert await refusal(home, home.token(), dispatch) == (403, "suspended")
    await home.store.resume(home.digest)
    home.ahead[0] = 86_401
    now = int(time.time()) + 86_401
    assert await refusal(home, home.token(iat=now, nbf=now, exp=now + 60), dispatch) == (410, "expired")


@pytest.mark.parametrize("act", ["suspended", "denied", "not-enrolled"])
async def test_what_an_operator_does_while_github_is_asked_holds(home: House, act: str) -> None:
    dispatch = await home.dispatch()
    home.github.double.script(home.one.subscription.repository, {"delay_s": 0.5}, on="contents")
    asked = asyncio.create_task(home.admit(home.token(), dispatch))
    calls = home.github.double.calls
    async with asyncio.timeout(10):
        while not calls["contents"]:  # noqa: ASYNC110 (the double counts, and tells nobody)
            await asyncio.sleep(0.01)
    if act == "suspended":
        await home.store.suspend(home.digest, "opt-in-revoked")
    elif act == "denied":
        home.enrolled[home.digest] = replace(home.one, mode="deny")
    else:
        home.enrolled.clear()
    with pytest.raises(Rejection, match=act):
        await asked
    known = await home.store.dispatch(dispatch)
    assert known is not None
    assert known.run is None


async def test_what_cannot_be_told_is_unavailable(home: House) -> None:
    dispatch = await home.dispatch()
    repo = home.one.subscription.repository
    home.github.double.script(repo, {"status": 500}, on="repository")
    with pytest.raises(Unavailable):
        await home.admit(home.token(), dispatch)
    home.github.double.script(repo, {"status": 502}, on="contents")
    with pytest.raises(Unavailable):
        await home.admit(home.token(), dispatch)
    await home.admit(home.token(), dispatch)


async def test_without_permission_only_what_is_attested_is_admitted(server: PrivateValkey) -> None:
    async with house(server, TEXT) as home:
        home.github.double.script(home.one.subscription.repository, {"status": 403}, on="contents")
        dispatch = await home.dispatch()
        with pytest.raises(Unavailable, match="contents-unreadable"):
            await home.admit(home.token(), dispatch)
    async with house(server, TEXT, attested=True) as home:
        dispatch = await home.dispatch()
        await home.admit(home.token(), dispatch)
        assert home.github.double.calls["contents"] == 0


async def test_a_request_that_is_not_closed(home: House) -> None:
    dispatch = await home.dispatch()
    bearer = f"Bearer {home.token()}".encode()
    good = {"dispatch": dispatch, "subscription": home.digest}
    for body in (
        b"",
        b"[]",
        b"{}",
        json.dumps({**good, "run_id": "1"}).encode(),
        json.dumps({**good, "dispatch": 1}).encode(),
    ):
        with pytest.raises(Rejection, match="request"):
            await home.admission.admit(bearer, body)
    with pytest.raises(Rejection, match="token"):
        await home.admission.admit(None, json.dumps(good).encode())


async def test_the_default_branch_is_read_again_where_another_one_is_named(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = await home.dispatch()
    await home.admit(home.token(run_id="5"), dispatch)
    home.github.double.add_repository(home.one.subscription.repository).default_branch = "trunk"
    renamed = {"ref": "refs/heads/trunk", "workflow_ref": f"{FILE}@refs/heads/trunk", "job_workflow_ref": None}
    assert await refusal(home, home.token(run_id="5", **renamed), dispatch) == (403, "ref")
    assert home.github.double.calls["repository"] == 2  # the second is the look after a refused admission
    await home.admit(home.token(run_id="5", **renamed), dispatch)  # which brought the new branch
