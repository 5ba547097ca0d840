"""Operators: tokens, sessions, forms."""

from pathlib import Path

import pytest

from gateway.console.session import ADDRESSES, COOKIE, FAILURES, SESSION_S, Guesses, Operators
from tests.console.client import TOKEN, Client

PROTECTED = ("/", "/deliveries", "/deliveries/x", "/subscriptions", "/dead", "/asks", "/sources/linear-acme")


async def test_every_page_needs_a_session(client: Client) -> None:
    for path in PROTECTED:
        answered = await client.get(path)
        assert (answered.status, answered.headers["location"]) == (303, "/login")
    for path in ("/dead", "/logout", "/sources/linear-acme/test"):
        answered = await client.form(path, {"act": "replay"})
        assert (answered.status, answered.headers["location"]) == (303, "/login")


async def test_login(client: Client) -> None:
    assert (await client.form("/login", {"token": "wrong-but-long-enough"})).status == 401
    assert (await client.form("/login", {})).status == 401
    answered = await client.form("/login", {"token": TOKEN + "\n"})
    cookie = answered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie  # localhost
    assert TOKEN not in answered.headers["set-cookie"]
    assert (await client.get("/")).status == 200
    assert (await client.get("/login")).status == 303


async def test_away_from_localhost_the_cookie_needs_encryption(client: Client) -> None:
    client.host = "console.example"
    answered = await client.form("/login", {"token": TOKEN})
    assert "secure" in answered.headers["set-cookie"].lower()
    client.cookies.clear()  # as a browser without https does
    assert (await client.get("/?signed-in")).headers["location"] == "/login?kept=no"
    assert "https" in (await client.get("/login?kept=no")).text


async def test_a_form_of_another_site_changes_nothing(client: Client) -> None:
    csrf = await client.log_in()
    for fields, headers in (
        ({"act": "replay"}, {}),
        ({"act": "replay", "csrf": "x"}, {}),
        ({"act": "replay", "csrf": csrf}, {"origin": "https://evil.example"}),
        ({"act": "replay", "csrf": csrf}, {"origin": "null"}),
        ({"act": "replay", "csrf": csrf}, {"sec-fetch-site": "cross-site"}),
    ):
        assert (await client.form("/dead", fields, **headers)).status == 403
    good = {"origin": "http://localhost:8081", "sec-fetch-site": "same-origin"}
    assert (await client.form("/dead", {"act": "replay", "id": "x", "csrf": csrf}, **good)).status == 303
    other = {"content-type": "text/plain"}
    assert (await client.call("POST", "/dead", f"act=replay&csrf={csrf}".encode(), other)).status == 415
    assert (await client.form("/login", {"token": TOKEN}, origin="https://evil.example")).status == 403


async def test_another_sessions_value_is_no_proof(client: Client) -> None:
    first = await client.log_in()
    client.cookies.clear()
    second = await client.log_in()
    assert first != second
    assert (await client.form("/dead", {"act": "replay", "csrf": first})).status == 403


async def test_altered_cookies_are_nobody(client: Client) -> None:
    await client.log_in()
    good = client.cookies[COOKIE]
    end, place, nonce, mac = good.split(".")
    for bad in (
        f"{int(end) + 1}.{place}.{nonce}.{mac}",
        f"{end}.1.{nonce}.{mac}",
        f"{end}.9999999.{nonce}.{mac}",
        f"{end}.{place}.x.{mac}",
        f"{end}.{place}.{nonce}.{'0' * 64}",
        f"{end}.{place}.{nonce}.",
        "....",
        "²." + good,
        "",
    ):
        client.cookies[COOKIE] = bad
        assert (await client.get("/")).status == 303, bad


async def test_logging_out_ends_the_session(client: Client) -> None:
    csrf = await client.log_in()
    assert (await client.form("/logout", {"csrf": csrf})).status == 303
    assert (await client.get("/")).status == 303


async def test_guessing_is_slow(client: Client) -> None:
    for _ in range(FAILURES):
        assert (await client.form("/login", {"token": "wrong-but-long-enough"})).status == 401
    assert (await client.form("/login", {"token": TOKEN})).status == 429
    assert (await client.change("/api/v1/dead/replay", {"all": True})).status == 401


@pytest.fixture
def clock() -> list[float]:
    return [1_000_000.0]


def test_a_session_ends_with_its_time_and_with_its_token(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "a").write_text(TOKEN)
    references = [f"file:{tmp_path}/a"]
    operators = Operators(lambda: tuple(references), lambda: clock[0])
    cookie = operators.login(TOKEN)
    assert cookie is not None
    assert operators.of_cookie(cookie) is not None
    clock[0] += SESSION_S - 1
    assert operators.of_cookie(cookie) is not None
    clock[0] += 1
    assert operators.of_cookie(cookie) is None
    cookie = operators.login(TOKEN)
    assert cookie is not None
    (tmp_path / "a").write_text("another-token-of-some-length")
    assert operators.of_cookie(cookie) is None
    references.clear()
    assert operators.of_cookie(cookie) is None
    assert not operators.configured


def test_the_lock_is_the_guessers_own_and_opens_after_a_minute(clock: list[float]) -> None:
    guesses = Guesses(lambda: clock[0])
    for _ in range(FAILURES - 1):
        guesses.failed("a")
    assert not guesses.locked("a")
    guesses.failed("a")
    assert (guesses.locked("a"), guesses.locked("b")) == (True, False)
    clock[0] += 61
    assert not guesses.locked("a")
    guesses.failed("a")
    clock[0] -= 3600  # a clock that was set back must not lock for an hour
    assert not guesses.locked("a")
    for number in range(ADDRESSES):
        guesses.failed(str(number))
    assert len(guesses._failed) == ADDRESSES


async def test_who_guesses_locks_nobody_else_out(client: Client) -> None:
    client.peer = "203.0.113.9"
    for _ in range(FAILURES):
        assert (await client.change("/api/v1/dead/replay", {"all": True}, "wrong-but-long-enough")).status == 401
    assert (await client.form("/login", {"token": TOKEN})).status == 429
    client.peer = "198.51.100.7"
    assert (await client.change("/api/v1/dead/replay", {"all": True})).status == 200
    assert (await client.form("/login", {"token": TOKEN})).status == 303


def test_what_is_no_token_is_nobody(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "a").write_text(TOKEN)
    operators = Operators(lambda: (f"file:{tmp_path}/a",), lambda: clock[0])
    assert operators.login("\udcff") is None
    assert operators.login("") is None
    cookie = operators.login(TOKEN) or ""
    (tmp_path / "a").write_text("short")  # as a slip of a rotation might leave it
    assert operators.login("short") is None
    assert operators.of_cookie(cookie) is None
    (tmp_path / "a").write_text("")
    assert operators.login("") is None


async def test_a_copied_cookie_is_worth_nothing_after_the_logout(client: Client) -> None:
    csrf = await client.log_in()
    copied = dict(client.cookies)
    other = Client(client.gateway, cookies=copied)  # another process with the same store
    assert (await other.get("/")).status == 200
    assert (await client.form("/logout", {"csrf": csrf})).status == 303
    for held in (Client(client.gateway, cookies=copied), other):
        assert (await held.get("/")).status == 303
        assert (await held.form("/dead", {"act": "replay", "csrf": csrf})).headers["location"] == "/login"
        held.peer = "203.0.113.9"
        assert (await held.get("/api/v1/deliveries")).status == 401


async def test_a_login_makes_a_session_of_its_own(client: Client) -> None:
    """A session that somebody planted in the browser before the login is not the one that is logged in."""
    client.cookies[COOKIE] = planted = "9999999999.0.planted.00"
    await client.log_in()
    first = client.cookies[COOKIE]
    await Client(client.gateway, cookies={}).log_in()
    assert first != planted
    again = Client(client.gateway)
    await again.log_in()
    assert again.cookies[COOKIE] != first
