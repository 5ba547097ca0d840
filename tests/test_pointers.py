"""JSON Pointer as RFC 6901 has it, over whatever a body holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pointers import MISSING, parse, resolve

DOCUMENT = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


@pytest.mark.parametrize(
    ("pointer", "value"),
    # https://www.rfc-editor.org/rfc/rfc6901#section-5
    [
        ("", DOCUMENT), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/c%d", 2), ("/e^f", 3),
        ("/g|h", 4), ("/i\\j", 5), ('/k"l', 6), ("/ ", 7), ("/m~0n", 8),
    ],
)  # fmt: skip
def test_the_examples_of_the_rfc(pointer: str, value: Any) -> None:
    assert resolve(DOCUMENT, parse(pointer)) == value


@pytest.mark.parametrize(
    "pointer",
    [
        "/bar",
        "/foo/2",
        "/foo/-",
        "/foo/-1",
        "/foo/+0",
        "/foo/00",
        "/foo/01",
        "/foo/\u0660",
        "/foo/0/x",
        "/foo/9999999999",
        "/foo/",
    ],
)
def test_what_does_not_resolve_is_missing_and_not_null(pointer: str) -> None:
    assert resolve(DOCUMENT, parse(pointer)) is MISSING
    assert repr(MISSING) == "MISSING"
    assert resolve({"a": None}, parse("/a")) is None
    assert resolve({"a": None}, parse("/a/b")) is MISSING


@pytest.mark.parametrize("pointer", ["foo", "#/foo", "/~", "/a~2", "/~~", "/a/~"])
def test_bad_syntax_is_a_value_error(pointer: str) -> None:
    with pytest.raises(ValueError, match=r"starts with /|followed by 0 or 1"):
        parse(pointer)


@given(st.lists(st.text(), min_size=1))
def test_any_member_has_a_pointer(tokens: list[str]) -> None:
    pointer = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
    document: Any = "here"
    for token in reversed(tokens):
        document = {token: document}
    assert parse(pointer) == tuple(tokens)
    assert resolve(document, parse(pointer)) == "here"
