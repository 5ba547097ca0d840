"""The App over real sockets, against the double."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import gateway.github as github_module
from gateway.answers import Answer, GitHubAway, GitHubRefusal, Repository
from gateway.credentials import Proof
from gateway.doubles.github import Running, running
from gateway.errors import ConfigError, Unavailable
from gateway.github import GitHubApp, open_session

APP_ID = 4711
KEY = rsa.generate_private_key(65537, 2048)
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
BODY = b'{"event_type":"x","client_payload":{"gateway":{}}}'


def pem(key: Any) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


class Clock:
    """Real time plus what a test adds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def double(clock: Clock) -> AsyncIterator[Running]:
    async with running(
        app_id=APP_ID, public_key_pem=PUBLIC, installations={11: ["acme/web", "acme/api"]}, clock=clock
    ) as running_double:
        yield running_double


@pytest.fixture
async def app(double: Running, clock: Clock) -> AsyncIterator[GitHubApp]:
    async with open_session() as session:
        yield GitHubApp(double.address + "/", APP_ID, pem(KEY), session, clock=clock)


async def post(double: Running, where: str, **change: Any) -> None:
    async with aiohttp.ClientSession(double.address) as http, http.post(where, json=change) as response:
        assert response.status == 204


# -- dispatch ---------------------------------------------------------------------------------------------------------


async def test_a_dispatch_is_done(app: GitHubApp, double: Running) -> None:
    assert await app.dispatch(11, "acme/web", BODY) == Answer("done", 204, "done")
    (kept,) = double.double.dispatches
    assert kept["raw"].encode() == BODY


async def test_a_token_is_for_one_repository_and_contents_alone(app: GitHubApp, double: Running) -> None:
    await app.token(11, "acme/web")
    (token,) = double.double.world.tokens.values()
    assert token.repositories == {"acme/web"}
    assert token.permissions == {"contents": "write", "metadata": "read"}


@pytest.mark.parametrize(
    ("scripted", "expected"),
    [
        ({"status": 500}, ("retry", 500, "server-error")),
        ({"status": 503, "body": "x" * 200_000}, ("retry", 503, "server-error")),
        ({"status": 200}, ("retry", 200, "unexpected-status")),
        ({"status": 202}, ("retry", 202, "unexpected-status")),
        ({"cut": True}, ("retry", None, "connection")),
        ({"status": 403}, ("dead", 403, "forbidden")),
        ({"status": 403, "headers": {"x-ratelimit-remaining": "12"}}, ("dead", 403, "forbidden")),
        ({"status": 403, "body": {"message": "Resource not accessible by integration"}}, ("dead", 403, "forbidden")),
        ({"status": 404}, ("dead", 404, "not-found")),
        ({"status": 409}, ("dead", 409, "http-409")),
        ({"status": 410}, ("dead", 410, "gone")),
        ({"status": 422}, ("dead", 422, "unprocessable")),
        ({"status": 301, "headers": {"Location": "/repositories/1/dispatches"}}, ("moved", 301, "repository-moved")),
        ({"status": 302, "headers": {"Location": "/login"}}, ("retry", 302, "api-redirect")),
        ({"status": 307, "headers": {"Location": "/app"}}, ("retry", 307, "api-redirect")),
        ({"status": 308}, ("moved", 308, "repository-moved")),
    ],
)
async def test_answers(app: GitHubApp, double: Running, scripted: dict[str, Any], expected: tuple[Any, ...]) -> None:
    double.double.script("acme/web", scripted)
    assert await app.dispatch(11, "acme/web", BODY) == Answer(*expected)
    assert double.double.calls["dispatch"] == 1
    assert double.double.dispatches == []


@pytest.mark.parametrize(
    ("status", "headers", "body", "wait_s"),
    [
        (403, {"Retry-After": "30"}, None, 30),
        (429, {"Retry-After": "30"}, None, 30),
        (429, {"Retry-After": "0"}, None, 1),
        (429, {"Retry-After": "999999999"}, None, 86_400),
        (429, {"Retry-After": "soon"}, None, 60),
        (429, {}, None, 60),
        (403, {}, {"message": "You have exceeded a secondary rate limit. Please wait"}, 60),
        (403, {"x-ratelimit-remaining": "0"}, None, 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "junk"}, None, 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, None, 1),
    ],
)
async def test_rate_limits_park(
    app: GitHubApp, double: Running, status: int, headers: dict[str, str], body: Any, wait_s: float
) -> None:
    double.double.script("acme/web", {"status": status, "headers": headers, "body": body})
    answer = await app.dispatch(11, "acme/web", BODY)
    assert (answer.kind, answer.status, answer.reason) == ("park", status, "rate-limited")
    assert answer.until == pytest.approx(time.time() + wait_s, abs=2)
    assert not answer.outage


async def test_a_reset_is_told_by_githubs_clock(app: GitHubApp, double: Running, clock: Clock) -> None:
    clock.ahead = 5_000.0
    reset = str(int(time.time()) + 120)
    double.double.script(
        "acme/web", {"status": 403, "headers": {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}}
    )
    answer = await app.dispatch(11, "acme/web", BODY)
    assert answer.until == pytest.approx(clock() + 120, abs=3)


async def test_retry_after_may_be_a_date(app: GitHubApp, double: Running) -> None:
    later = format_datetime(datetime.fromtimestamp(time.time() + 90, UTC), usegmt=True)
    double.double.script("acme/web", {"status": 429, "headers": {"Retry-After": later}})
    assert (await app.dispatch(11, "acme/web", BODY)).until == pytest.approx(time.time() + 90, abs=3)


async def test_unstated_rate_limits_wait_longer_each_time_until_a_success(app: GitHubApp, double: Running) -> None:
    limited = {"status": 429}
    double.double.script("acme/web", limited, limited, limited, {}, limited)
    waits = []
    for _ in range(5):
        answer = await app.dispatch(11, "acme/web", BODY)
        waits.append(None if answer.until is None else round((answer.until - time.time()) / 60))
    assert waits == [1, 2, 4, None, 1]


async def test_a_slow_answer_is_a_timeout(app: GitHubApp, double: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.token(11, "acme/web")
    monkeypatch.setattr(github_module, "TOTAL_TIMEOUT_S", 0.2)
    double.double.script("acme/web", {"delay_s": 1})
    answer = await app.dispatch(11, "acme/web", BODY)
    assert answer == Answer("retry", None, "timeout")
    assert answer.outage


async def test_nobody_listens(double: Running) -> None:
    async with open_session() as session:
        app = GitHubApp("http://127.0.0.1:1", APP_ID, pem(KEY), session)
        assert await app.dispatch(11, "acme/web", BODY) == Answer("retry", None, "connection")


async def test_a_peer_that_speaks_no_http() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff\xfe junk\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_session() as session:
        app = GitHubApp(f"http://127.0.0.1:{port}", APP_ID, pem(KEY), session)
        assert await app.dispatch(11, "acme/web", BODY) == Answer("retry", None, "connection")


async def test_a_body_that_breaks_off_does_not_hide_the_status() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_session() as session:
        app = GitHubApp(f"http://127.0.0.1:{port}", APP_ID, pem(KEY), session)
        assert await app.dispatch(11, "acme/web", BODY) == Answer("dead", 404, "installation-gone")


@pytest.mark.parametrize("name", ["web", "a/b/c", "acme/..", "acme/we b", "acme/web\n", "acme/web?x=1", ""])
async def test_a_repository_name_is_checked(app: GitHubApp, name: str) -> None:
    with pytest.raises(ValueError, match="OWNER/NAME"):
        await app.dispatch(11, name, BODY)


# -- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_is_cached_until_five_minutes_before_its_end(
    app: GitHubApp, double: Running, clock: Clock
) -> None:
    first = await app.token(11, "acme/web")
    clock.ahead = 3_200.0
    assert await app.token(11, "acme/web") == first
    clock.ahead = 3_310.0
    assert await app.token(11, "acme/web") != first
    assert double.double.calls["token"] == 2


async def test_concurrent_callers_share_one_minting(app: GitHubApp, double: Running) -> None:
    double.double.script("acme/web", {"delay_s": 0.1}, on="token")
    tokens = await asyncio.gather(*(app.token(11, "acme/web") for _ in range(20)))
    assert len(set(tokens)) == 1
    assert double.double.calls["token"] == 1
    await app.token(11, "acme/api")
    assert double.double.calls["token"] == 2


async def test_a_cancelled_caller_leaves_the_minting_to_the_others(app: GitHubApp, double: Running) -> None:
    double.double.script("acme/web", {"delay_s": 0.2}, on="token")
    first = asyncio.create_task(app.token(11, "acme/web"))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(app.token(11, "acme/web"))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await second).startswith("ghs_")
    assert first.cancelled() or first.cancelling()
    assert double.double.calls["token"] == 1
    await asyncio.wait([first])


async def test_a_refused_token_is_minted_once_more(app: GitHubApp, double: Running) -> None:
    await app.token(11, "acme/web")
    double.double.revoke_tokens()
    answers = await asyncio.gather(*(app.dispatch(11, "acme/web", BODY) for _ in range(5)))
    assert {answer.kind for answer in answers} == {"done"}
    assert double.double.calls["token"] == 2


async def test_a_repository_that_joins_the_installation_is_found_with_an_older_token_at_hand(
    app: GitHubApp, double: Running, clock: Clock
) -> None:
    await app.repository(11, "acme/web")
    await post(double, "/_double/installation", id=11, repositories=["acme/web", "acme/new"])
    clock.ahead = 30
    assert (await app.repository(11, "acme/new")).full_name == "acme/new"
    assert double.double.calls["token"] == 2


async def test_what_is_not_there_is_read_once_more_with_a_new_token(
    app: GitHubApp, double: Running, clock: Clock
) -> None:
    double.double.add_repository("acme/web").contents[("x", None)] = b"text"
    await app.contents(11, "acme/web", "x", "main")
    await app.dispatch(11, "acme/web", BODY)
    clock.ahead = 30
    double.double.script("acme/web", {"status": 404}, on="contents")
    assert await app.contents(11, "acme/web", "x", "main") == b"text"
    double.double.script("acme/web", {"status": 404}, on="dispatch")
    assert await app.dispatch(11, "acme/web", BODY) == Answer("done", 204, "done")
    assert double.double.calls["token"] == 4
    double.double.script("acme/web", {"status": 404}, {"status": 404}, on="dispatch")
    clock.ahead = 60
    assert await app.dispatch(11, "acme/web", BODY) == Answer("dead", 404, "not-found")


async def test_a_404_is_not_believed_where_no_new_token_can_be_had(
    app: GitHubApp, double: Running, clock: Clock
) -> None:
    await app.dispatch(11, "acme/web", BODY)
    clock.ahead = 30
    double.double.script("acme/web", {"status": 404})
    double.double.script("acme/web", {"status": 500}, on="token")
    assert (await app.dispatch(11, "acme/web", BODY)).kind == "retry"


async def test_what_is_gone_costs_few_tokens(app: GitHubApp, double: Running, clock: Clock) -> None:
    for second in range(60):
        clock.ahead = second
        with pytest.raises(GitHubRefusal, match="not-found"):
            await app.repository(11, f"acme/gone-{second % 3}")
    assert double.double.calls["token"] <= 7
    assert double.double.calls["repository"] <= 67


async def test_a_token_refused_twice_is_tried_later(app: GitHubApp, double: Running) -> None:
    double.double.script("acme/web", {"status": 401}, {"status": 401})
    answer = await app.dispatch(11, "acme/web", BODY)
    assert answer == Answer("retry", 401, "app-unauthorized")
    assert not answer.outage
    assert double.double.calls["token"] == 2
    assert double.double.calls["dispatch"] == 2


@pytest.mark.parametrize(
    ("scripted", "expected"),
    [
        ({"status": 401}, ("retry", 401, "app-unauthorized")),
        ({"status": 403}, ("dead", 403, "forbidden")),
        ({"status": 404}, ("dead", 404, "installation-gone")),
        ({"status": 422}, ("dead", 422, "repository-inaccessible")),
        ({"status": 502}, ("retry", 502, "server-error")),
        ({"status": 302, "headers": {"Location": "/app"}}, ("retry", 302, "api-redirect")),
        ({"status": 200, "body": {}}, ("retry", 200, "unexpected-status")),
        ({"status": 201, "body": {}}, ("retry", 201, "token-malformed")),
        ({"status": 201, "body": [1]}, ("retry", 201, "token-malformed")),
        ({"status": 201, "body": {"token": "ghs_x", "expires_at": "soon"}}, ("retry", 201, "token-malformed")),
        (
            {"status": 201, "body": {"token": "a\r\nb", "expires_at": "2099-01-01T00:00:00Z"}},
            ("retry", 201, "token-malformed"),
        ),
        ({"cut": True}, ("retry", None, "connection")),
    ],
)
async def test_the_token_endpoints_failures(
    app: GitHubApp, double: Running, scripted: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    double.double.script("acme/web", scripted, on="token")
    assert await app.dispatch(11, "acme/web", BODY) == Answer(*expected)
    assert double.double.calls["dispatch"] == 0
    double.double.script("acme/web", scripted, on="token")
    with pytest.raises((GitHubAway, GitHubRefusal)) as error:
        await app.token(11, "acme/web")
    assert isinstance(error.value, GitHubAway | GitHubRefusal)
    assert error.value.answer == Answer(*expected)


async def test_a_rate_limit_at_the_token_endpoint_parks(app: GitHubApp, double: Running) -> None:
    double.double.script("acme/web", {"status": 403, "headers": {"Retry-After": "40"}}, on="token")
    with pytest.raises(Unavailable) as error:
        await app.token(11, "acme/web")
    assert isinstance(error.value, GitHubAway)
    assert error.value.answer.kind == "park"
    assert error.value.retry_after_s == pytest.approx(40, abs=1)


async def test_a_renamed_repository_is_told_from_one_that_is_out_of_reach(app: GitHubApp, double: Running) -> None:
    assert await app.dispatch(11, "acme/elsewhere", BODY) == Answer("dead", 422, "repository-inaccessible")
    await post(double, "/_double/repository", repo="acme/web", moved_to="acme/site")
    assert await app.dispatch(11, "acme/web", BODY) == Answer("moved", 301, "repository-moved")
    double.double.script("acme/web", {"status": 500}, on="repository")
    assert await app.dispatch(11, "acme/web", BODY) == Answer("retry", 500, "server-error")


async def test_a_missing_installation(app: GitHubApp) -> None:
    assert await app.dispatch(12, "acme/web", BODY) == Answer("dead", 404, "installation-gone")


def test_the_app_jwt_keeps_githubs_limits() -> None:
    proof, now = Proof(APP_ID, pem(KEY)), time.time()
    token = proof.jwt(now)
    claims = jwt.decode(token, KEY.public_key(), algorithms=["RS256"], issuer=str(APP_ID))
    assert claims["iat"] == pytest.approx(time.time() - 60, abs=2)
    assert claims["exp"] < time.time() + 600
    assert jwt.get_unverified_header(token)["alg"] == "RS256"
    assert proof.jwt(now + 100.0) == token
    assert proof.jwt(now + 300.0) != token
    assert proof.jwt(now - 300.0) != token


# -- reads ------------------------------------------------------------------------------------------------------------


async def test_contents_are_read_raw(app: GitHubApp, double: Running) -> None:
    await post(
        double, "/_double/contents", repo="acme/web", path=".github/workflows/a b.yml", ref="c0ffee", text="on: é\n"
    )
    assert await app.contents(11, "acme/web", ".github/workflows/a b.yml", "c0ffee") == "on: é\n".encode()
    with pytest.raises(GitHubRefusal) as error:
        await app.contents(11, "acme/web", ".github/workflows/a b.yml", "main")
    assert error.value.answer == Answer("dead", 404, "not-found")


async def test_a_file_over_the_limit_is_refused_not_cut(app: GitHubApp, double: Running) -> None:
    contents = double.double.add_repository("acme/web").contents
    contents.update({("fits", None): b"x" * 1_048_576, ("big", None): b"x" * 1_048_577})
    assert len(await app.contents(11, "acme/web", "fits", "main")) == 1_048_576
    with pytest.raises(GitHubRefusal, match="response-too-large"):
        await app.contents(11, "acme/web", "big", "main")


@pytest.mark.parametrize("path", ["", "/x", "a//b", "a/../b", "./a"])
async def test_a_path_is_checked(app: GitHubApp, path: str) -> None:
    with pytest.raises(ValueError, match="segments"):
        await app.contents(11, "acme/web", path, "main")


async def test_a_repository_is_read(app: GitHubApp, double: Running) -> None:
    await post(double, "/_double/repository", repo="acme/web", id=77, default_branch="trunk")
    assert await app.repository(11, "ACME/web") == Repository(77, "acme/web", "trunk")
    with pytest.raises(GitHubRefusal, match="not-found"):
        await app.repository(11, "acme/none")


@pytest.mark.parametrize("body", [None, [], {"id": "7"}, "x"])
async def test_an_answer_of_another_shape_is_no_answer(app: GitHubApp, double: Running, body: Any) -> None:
    double.double.script("acme/web", {"status": 200, "body": body}, on="repository")
    with pytest.raises(GitHubAway, match="answer-malformed"):
        await app.repository(11, "acme/web")


async def test_the_bots_id(app: GitHubApp) -> None:
    assert await app.app_bot_id() == 200_000_001


async def test_the_bots_id_where_github_does_not_know_us(double: Running) -> None:
    async with open_session() as session:
        app = GitHubApp(double.address, 1, pem(KEY), session)
        with pytest.raises(GitHubAway, match="app-unauthorized"):
            await app.app_bot_id()


# -- secrets ----------------------------------------------------------------------------------------------------------


async def test_no_secret_in_a_repr_or_an_error(app: GitHubApp, double: Running) -> None:
    token = await app.token(11, "acme/web")
    shown = [repr(app), repr(app._tokens), str(app)]
    for scripted in ({"status": 500}, {"status": 404}, {"cut": True}):
        # Twice: aiohttp repeats a GET by itself where a connection that it had kept open breaks.
        double.double.script("acme/web", *([scripted] * (2 if "cut" in scripted else 1)), on="repository")
        with pytest.raises((GitHubAway, GitHubRefusal)) as error:
            await app.repository(11, "acme/web")
        shown += [repr(error.value), repr(error.value.args)]
        # Not even as a hidden context: a traceback with locals, or a report of it, would show the request's headers.
        assert error.value.__context__ is None
        assert error.value.__cause__ is None
    assert not [text for text in shown if token in text or "ghs_" in text or "PRIVATE" in text or "eyJ" in text]


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        pem(ec.generate_private_key(ec.SECP256R1())),
        pem(rsa.generate_private_key(65537, 1024)),
        PUBLIC,
    ],
)
async def test_an_unusable_key_is_a_configuration_error(key: bytes) -> None:
    async with open_session() as session:
        with pytest.raises(ConfigError) as error:
            GitHubApp("http://127.0.0.1:1", APP_ID, key, session)
    (problem,) = error.value.problems
    assert problem.key == "github.private_key"
    assert "c2VjcmV0" not in str(error.value)
    assert error.value.__context__ is None
