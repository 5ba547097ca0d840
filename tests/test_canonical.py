import hashlib
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.canonical import (
    MAX_URL_BYTES,
    agrees,
    canonical_json,
    digest,
    event_id,
    parse_extract,
    parse_origin,
    parse_template,
)
from gateway.pointers import MISSING

LONE = "a\ud800"


# --- canonical JSON -------------------------------------------------------------------------------------------------


def test_canonical_json_is_rfc_8785() -> None:
    # the sample of https://www.rfc-editor.org/rfc/rfc8785#section-3.2.2
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(value).decode() == expected
    assert digest(value) == "sha256:" + hashlib.sha256(expected.encode()).hexdigest()


def test_an_integer_too_long_to_print_builds_none() -> None:
    assert parse_template("https://x.example/{v}").fill({"v": 10**5000}) is None


def test_what_has_no_canonical_form_is_a_value_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (float("nan"), 2**53, {1: 2}, LONE, {LONE: 1}, object(), deep):
        with pytest.raises(ValueError):  # noqa: PT011 (the texts are rfc8785's)
            canonical_json(value)


def test_event_id_follows_from_the_url_alone() -> None:
    url = "https://linear.app/acme/issue/ENG-1"
    assert event_id(url) == "uri:" + hashlib.sha256(url.encode()).hexdigest()


# --- origins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://linear.app", "https://linear.app"),
        ("https://GitHub.Example:443", "https://github.example"),
        ("https://ghes.example:8443", "https://ghes.example:8443"),
        ("https://10.0.0.1", "https://10.0.0.1"),
    ],
)
def test_an_origin_has_one_form(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("http://linear.app", "https"),
        ("HTTPS://linear.app", "https"),
        ("linear.app", "https"),
        (7, "https"),
        ("https://linear.app/", "no path"),
        ("https://linear.app?x", "no path"),
        ("https://a@linear.app", "user information"),
        ("https://{x}.app", "without placeholders"),
        ("https://", "host"),
        ("https://linear.app.", "host"),
        ("https://-a.app", "host"),
        ("https://a..b", "host"),
        ("https://exämple.app", "host"),
        ("https://a b", "host"),
        ("https://a\\b", "host"),
        ("https://[::1]", "host"),
        ("https://a:0", "host"),
        ("https://a:65536", "host"),
        ("https://a:", "host"),
        ("https://a:1x", "host"),
        ("https://" + "a." * 127 + "aa", "host"),
        ("https://a\n", "host"),
    ],
)
def test_what_is_no_origin_is_told(text: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_origin(text)


# --- templates ------------------------------------------------------------------------------------------------------

SLACK = "https://acme.slack.com/archives/{channel}/p{message|digits}?thread_ts={thread}&cid={channel}"


def test_a_template_says_what_it_needs() -> None:
    template = parse_template(SLACK)
    assert template.names == ("channel", "message", "thread")
    assert template.literals == ("/archives/", "/p", "?", "thread_ts=", "&cid=")
    assert template.origin == "https://acme.slack.com"


@pytest.mark.parametrize(
    ("template", "names", "url"),
    [
        (
            SLACK,
            {"channel": "C1", "message": "1712.000100", "thread": "1712.000001"},
            "https://acme.slack.com/archives/C1/p1712000100?thread_ts=1712.000001&cid=C1",
        ),
        (
            "https://linear.app/acme/issue/{team-key}-{number}",
            {"team-key": "ENG", "number": 7},
            "https://linear.app/acme/issue/ENG-7",
        ),
        (
            "https://gl.example/{+path}/-/pipelines/{id}",
            {"path": "a/b c", "id": 1},
            "https://gl.example/a/b%20c/-/pipelines/1",
        ),
        (
            "https://t.example/l/{channel}",
            {"channel": "19:a@thread.tacv2"},
            "https://t.example/l/19%3Aa%40thread.tacv2",
        ),
        ("https://x.example/{v|lower}", {"v": "ÀBC/d"}, "https://x.example/%C3%80bc%2Fd"),
        ("https://X.example:443/{v}", {"v": "é€😀~-._"}, "https://x.example/%C3%A9%E2%82%AC%F0%9F%98%80~-._"),
        ("https://x.example/%7ea%3b/{v}#c-{v}", {"v": -5}, "https://x.example/~a%3B/-5#c--5"),
        (
            "https://x.example/{table}.do?sys_id={record}",
            {"table": "incident", "record": "ab"},
            "https://x.example/incident.do?sys_id=ab",
        ),
        ("https://x.example/{v|digits}", {"v": 12}, "https://x.example/12"),
        ("https://x.example/{v|digits}", {"v": ".5"}, "https://x.example/5"),
        ("https://x.example/projects/7?pane=issue&flag", {}, "https://x.example/projects/7?pane=issue&flag"),
    ],
)
def test_fill(template: str, names: dict[str, Any], url: str) -> None:
    parsed = parse_template(template)
    assert parsed.fill(names) == url
    assert parsed.first_unfit(names) is None


@pytest.mark.parametrize(
    "value", ["", ".", "..", LONE, None, MISSING, True, 1.5, [], {}, 10**64, -(10**64), "x" * 3000]
)
def test_a_value_that_cannot_stand_in_a_url_builds_none(value: Any) -> None:
    template = parse_template("https://x.example/{a}/{v}")
    assert template.fill({"a": "1", "v": value}) is None
    assert template.first_unfit({"a": "1", "v": value}) == "v"
    assert template.first_unfit({}) == "a"


@pytest.mark.parametrize("value", ["a//b", "/a", "a/", "a/../b", "./a", "a/.", ""])
def test_no_segment_of_a_path_is_empty_or_dots(value: str) -> None:
    assert parse_template("https://x.example/{+v}/c").fill({"v": value}) is None


@pytest.mark.parametrize("value", ["1.2.3", "1,2", "-1", "\u0661", "a", ".", "1e3", " 1", -1])
def test_digits_accepts_digits_and_one_dot(value: Any) -> None:
    assert parse_template("https://x.example/{v|digits}").fill({"v": value}) is None


def test_a_url_has_at_most_2048_bytes() -> None:
    template = parse_template("https://x.example/{v}")
    room = MAX_URL_BYTES - len("https://x.example/")
    assert len(template.fill({"v": "a" * room}) or "") == MAX_URL_BYTES
    assert template.fill({"v": "a" * (room + 1)}) is None
    assert template.fill({"v": "é" * 400}) is None
    with pytest.raises(ValueError, match="2048"):
        parse_template("https://x.example/" + "a" * 2048)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("http://x.example/{a}", "https"),
        ("//x.example/{a}", "https"),
        (None, "https"),
        ("https://u:p@x.example/{a}", "user information"),
        ("https://{host}/a", "without placeholders"),
        ("https://x.example", "needs a path"),
        ("https://x.example?a={a}", "needs a path"),
        ("https://x.example/", "empty segment"),
        ("https://x.example//", "empty segment"),
        ("https://x.example/a//", "empty segment"),
        ("https://x.example/{a}//", "empty segment"),
        ("https://x.example//{a}/", "empty segment"),
        ("https://x.example/./", "empty segment or one of dots"),
        ("https://x.example//a", "empty segment"),
        ("https://x.example/../a", "empty segment or one of dots"),
        ("https://x.example/%2e%2E/a", "one of dots"),
        ("https://x.example/a%2fb", "encoded slash"),
        ("https://x.example/a%5Cb", "encoded slash"),
        ("https://x.example/{a", "a placeholder is"),
        ("https://x.example/a}", "a placeholder is"),
        ("https://x.example/{}", "a placeholder is"),
        ("https://x.example/{a|upper}", "a placeholder is"),
        ("https://x.example/{1a}", "a placeholder is"),
        ("https://x.example/${{ github.aw.import-inputs.x }}", "a placeholder is"),
        ("https://x.example/{+a|digits}", "without a filter"),
        ("https://x.example/a?b={+a}", "in the path"),
        ("https://x.example/a#{+a}", "in the path"),
        ("https://x.example/{a}{b}", "run together"),
        ("https://x.example/a b", "must be written"),
        ("https://x.example/a\\b", "must be written"),
        ("https://x.example/é", "must be written"),
        ("https://x.example/a%2", "must be written"),
        ("https://x.example/a\n", "must be written"),
        ("https://x.example/a?b=<", "must be written"),
        ("https://x.example/a?", "query is empty"),
        ("https://x.example/a#", "fragment is empty"),
        ("https://x.example/a#b#c", "must be written"),
        ("https://x.example/a?{k}=v", "after the ="),
        ("https://x.example/a?b=1&{k}", "after the ="),
    ],
)
def test_a_bad_template_says_why(text: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_template(text)


# --- agreement ------------------------------------------------------------------------------------------------------

BUILT = "https://linear.app/acme/issue/ENG-1"
SHAPE = "https://acme.example:8443/issues/1"


@pytest.mark.parametrize(
    "sent",
    [
        None,
        MISSING,
        BUILT,
        BUILT + "/",
        BUILT + "/some-title",
        BUILT + "/some-title/",
        BUILT + "/tïtle/more/行",
        BUILT + "?utm_source=x&next=%2Fa",
        BUILT + "#comment",
        BUILT + "/s?q=ü#ü",
        BUILT + "/100%",
        "HTTPS://LINEAR.app:443/acme/issue/ENG-1",
        "https://linear.app:/acme/issue/ENG-1",
        "https://linear.app/%61cme/issue/ENG%2d1",
        SHAPE,
        "https://ACME.example:8443/issues/1/events/9",
    ],
)
def test_urls_that_agree(sent: Any) -> None:
    assert agrees(sent, BUILT, [SHAPE]) is None


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (7, "url-type"),
        ([BUILT], "url-type"),
        ("", "url-scheme"),
        (BUILT + "/" + LONE, "url-surrogate"),
        (BUILT + "\n", "url-control"),
        (BUILT + "/a\x7f", "url-control"),
        (BUILT + "/a\x85", "url-control"),
        (" " + BUILT, "url-white-space"),
        (BUILT + "/a b", "url-white-space"),
        (BUILT + "/a\u3000b", "url-white-space"),
        (BUILT + "?a\\b", "url-backslash"),
        ("http://linear.app/acme/issue/ENG-1", "url-scheme"),
        ("//linear.app/acme/issue/ENG-1", "url-scheme"),
        ("https:/linear.app/acme/issue/ENG-1", "url-scheme"),
        ("https://u@linear.app/acme/issue/ENG-1", "url-userinfo"),
        ("https://linear.app@evil.example/acme/issue/ENG-1", "url-userinfo"),
        ("https://line\u0430r.app/acme/issue/ENG-1", "url-host"),
        ("https://evil.example/acme/issue/ENG-1", "url-origin"),
        ("https://linear.app./acme/issue/ENG-1", "url-origin"),
        ("https://linear.app:444/acme/issue/ENG-1", "url-origin"),
        ("https://linear.app:0443/acme/issue/ENG-1", "url-origin"),
        ("https://linear%2Eapp/acme/issue/ENG-1", "url-origin"),
        ("https://acme.example/issues/1", "url-origin"),
        ("https:///acme/issue/ENG-1", "url-origin"),
        ("https://linear.app", "url-path"),
        ("https://linear.app/", "url-path"),
        ("https://linear.app/acme/issue/ENG-10", "url-path"),
        ("https://linear.app/acme/issue/ENG-2/ENG-1", "url-path"),
        ("https://linear.app/acme/issue/eng-1", "url-path"),
        ("https://linear.app/acme/issue", "url-path"),
        ("https://linear.app//acme/issue/ENG-1", "url-path"),
        (BUILT + "//a", "url-path"),
        (BUILT + "%2Fa", "url-encoded-slash"),
        (BUILT + "/a%2fb", "url-encoded-slash"),
        (BUILT + "/..", "url-dot-segment"),
        (BUILT + "/%2E/a", "url-dot-segment"),
        (BUILT + "/.%2e", "url-dot-segment"),
        ("https://linear.app/acme/x/../issue/ENG-1", "url-dot-segment"),
        ("https://linear.app/acme/issue/ENG-1é", "url-non-ascii"),
        ("https://linear.app/acmé/issue/ENG-1", "url-non-ascii"),
    ],
)
def test_urls_that_disagree_say_which_rule(sent: Any, reason: str) -> None:
    assert agrees(sent, BUILT, [SHAPE]) == reason


def test_a_slash_at_the_end_of_the_template_is_built_and_never_asked_for() -> None:
    built = parse_template("https://acme.sentry.io/issues/{issue}/").fill({"issue": "12"})
    assert built == "https://acme.sentry.io/issues/12/"
    for sent in ("", "/", "/events/ab/", "/?referrer=x"):
        assert agrees(f"https://acme.sentry.io/issues/12{sent}", built) is None
        assert agrees(f"https://acme.sentry.io/issues/12{sent}", "https://x.example/", [built]) is None
    for sent in ("//", "//a", "3/", "/a//"):
        assert agrees(f"https://acme.sentry.io/issues/12{sent}", built) == "url-path"
    assert parse_template("https://x.example/{+a}/?b=1").fill({"a": "c/"}) is None


def test_a_query_or_fragment_of_the_template_must_match() -> None:
    built = "https://x.example/a?b=1%3A2&c=3#d-4"
    for sent in (built, "https://x.example/a/?b=1%3a2&c=%33#d-4", "https://x.example/a/s?b=1%3A2&c=3#d%2d4"):
        assert agrees(sent, built) is None
    for sent in (
        "https://x.example/a#d-4",
        "https://x.example/a?b=1%3A2&c=3&e=5#d-4",
        "https://x.example/a?c=3&b=1%3A2#d-4",
    ):
        assert agrees(sent, built) == "url-query"
    for sent in ("https://x.example/a?b=1%3A2&c=3", "https://x.example/a?b=1%3A2&c=3#d-5"):
        assert agrees(sent, built) == "url-fragment"


def test_the_nearest_shape_explains() -> None:
    assert agrees("https://linear.app/acme/issue/ENG-2", SHAPE, [BUILT]) == "url-path"
    assert agrees("https://linear.app/acme/issue/ENG-1", SHAPE, [BUILT + "?a=1"]) == "url-query"


# --- extraction -----------------------------------------------------------------------------------------------------

TEAMS = "teams('{team}')/channels('{channel}')/messages('{message}')"


def test_extract_names_the_parts_of_a_structured_string() -> None:
    extraction = parse_extract(TEAMS)
    assert extraction.names == ("team", "channel", "message")
    found = extraction.apply("teams('t-1')/channels('19:x@thread.tacv2')/messages('17')")
    assert found == {"team": "t-1", "channel": "19:x@thread.tacv2", "message": "17"}


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "teams('a')/channels('b')/messages('c')/replies('d')",
        "teams('a')/channels('b')/messages('c",
        "teams('')/channels('b')/messages('c')",
        "teams('a/b')/channels('b')/messages('c')",
        "teams('a b')/channels('b')/messages('c')",
        "teams('a\u2003b')/channels('b')/messages('c')",
        "teams('a')/channels('b')/messages('c') ",
        "teams('a')/channels('b')/messages('c')\n",
        "Teams('a')/channels('b')/messages('c')",
        "teams('a\ud800')/channels('b')/messages('c')",
    ],
)
def test_extract_matches_the_whole_text_or_nothing(text: Any) -> None:
    assert parse_extract(TEAMS).apply(text) is None


def test_a_hole_ends_at_the_first_occurrence_of_what_follows() -> None:
    assert parse_extract("{key}-{number}").apply("A-B-1") == {"key": "A", "number": "B-1"}
    assert parse_extract("{key}-{number}").apply("-B-1") is None
    assert parse_extract("{file}.md").apply("x.md.md") is None
    assert parse_extract("a{x}").apply("a\n") is None


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (None, "is text"),
        (LONE + "{a}", "is text"),
        ("abc", "at least one"),
        ("", "at least one"),
        ("{a}{b}", "literal between"),
        ("{a}-{a}", "once"),
        ("{a", "braces"),
        ("{a}-}", "braces"),
        ("{{a}}", "braces"),
        ("{+a}", "braces"),
    ],
)
def test_a_bad_pattern_says_why(pattern: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_extract(pattern)


# --- generated cases ------------------------------------------------------------------------------------------------

TEMPLATES = [
    "https://x.example/a/{a}/b-{b}",
    "https://x.example/{+a}/-/{b}",
    "https://x.example/{a|lower}?k={b}&l={a}",
    "https://x.example:8443/p/{a}#c-{b}",
    "https://x.example/{a}.do?k={b|digits}",
    "https://x.example/{a}/{b}/",
]
VALUES = (
    st.text(st.characters(codec=None), max_size=12)
    | st.integers()
    | st.sampled_from(["a/b", "a.b", "...", "1.2", "%2e", "a b", "é", "?#&=", LONE])
)
BUILT_FORM = re.compile(
    r"https://x\.example(:8443)?/[A-Za-z0-9\-._~/%]+(\?[kl]=[A-Za-z0-9\-._~%]+(&l=[A-Za-z0-9\-._~%]+)?)?(#c-[A-Za-z0-9\-._~%]+)?"
)


@settings(max_examples=2000)
@given(st.sampled_from(TEMPLATES), VALUES, VALUES)
def test_no_value_escapes_its_place(text: str, a: Any, b: Any) -> None:
    template = parse_template(text)
    url = template.fill({"a": a, "b": b})
    if url is None:
        return
    assert BUILT_FORM.fullmatch(url)
    assert re.fullmatch(r"(?:[^%]|%[0-9A-F]{2})*", url)
    parts = urlsplit(url)
    assert not {"", ".", ".."} & set(map(unquote, parts.path.removesuffix("/").split("/")[1:]))
    if "{+" not in text:
        assert parts.path.count("/") == urlsplit(text).path.count("/")


@settings(max_examples=2000)
@given(st.sampled_from(TEMPLATES), VALUES, VALUES)
def test_a_built_url_agrees_with_itself(text: str, a: Any, b: Any) -> None:
    url = parse_template(text).fill({"a": a, "b": b})
    assume(url is not None)
    assert url is not None
    # a value with a slash in the path is encoded, and an encoded slash sent is always refused
    expected = "url-encoded-slash" if "%2F" in urlsplit(url).path else None
    assert agrees(url, url) == expected
    assert agrees(url, "https://other.example/x", [url]) == expected


@settings(max_examples=1000)
@given(st.sampled_from([TEMPLATES[0], TEMPLATES[3]]), st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_two_values_never_build_one_url(text: str, a: str, b: str, other: str) -> None:
    assume(other != b)
    template = parse_template(text)
    left, right = template.fill({"a": a, "b": b}), template.fill({"a": a, "b": other})
    assert left is None or left != right


@settings(max_examples=2000)
@given(st.text(st.characters(codec=None)) | st.text("ht ps:/.@\\%2fFeE?#linear.app\u00e9\ud800\n", max_size=40))
def test_agrees_never_raises_and_agrees_with_nothing_else(tail: str) -> None:
    for sent in (tail, "https://" + tail, BUILT + tail):
        reason = agrees(sent, BUILT)
        assert reason is None or reason.startswith("url-")
        if reason is None:
            assert urlsplit(sent.lower()).hostname == "linear.app"
            assert unquote(urlsplit(sent).path).startswith("/acme/issue/ENG-1")


@given(st.lists(st.text("abé:@.-", min_size=1), min_size=3, max_size=3))
def test_extract_finds_what_was_put_in(parts: list[str]) -> None:
    text = TEAMS.format(team=parts[0], channel=parts[1], message=parts[2])
    assert list((parse_extract(TEAMS).apply(text) or {}).values()) == parts


@given(st.text(st.characters(codec=None)))
def test_extract_never_raises(text: str) -> None:
    found = parse_extract("{a}-{b}").apply(text)
    assert found is None or f"{found['a']}-{found['b']}" == text
