"""What changed between two documents: every difference once, with its pointer; equal documents have none."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canonical import canonical_json
from gateway.changes import changes


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"a": 1, "digest": "x"}, {"a": 1, "digest": "y"}, []),
        ({"a": 1}, {"a": 2}, ["/a: 1 > 2"]),
        ({"a": 1}, {"a": True}, ["/a: 1 > true"]),
        ({"a": 1}, {"a": "1"}, ['/a: 1 > "1"']),
        ({}, {"a": {"b": 1}}, ['/a: added {"b":1}']),
        ({"a": None}, {}, ["/a: removed null"]),
        ({"g": {"teams": ["t", "u"]}}, {"g": {"teams": ["t", 7]}}, ['/g/teams: removed "u"', "/g/teams: added 7"]),
        ({"g": ["a", "b"]}, {"g": ["b", "a"]}, ['/g: ["a","b"] > ["b","a"]']),
        ({"g": [{"x": 1}]}, {"g": [{"x": 2}]}, ['/g: [{"x":1}] > [{"x":2}]']),
        ({"g": [{"x": 1}]}, {"g": [{"x": 1}]}, []),
        ({"a/b~c": 1}, {"a/b~c": 2}, ["/a~1b~0c: 1 > 2"]),
        ({"a": "x" * 300}, {"a": 1}, ['/a: "' + "x" * 199 + "... > 1"]),
    ],
)
def test_every_difference_is_told_once(before: Any, after: Any, lines: list[str]) -> None:
    assert [str(change) for change in changes(before, after)] == lines


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "/"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON), st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_none_is_told_exactly_where_nothing_changed(before: Any, after: Any) -> None:
    assert changes(before, copy.deepcopy(before)) == ()
    assert bool(changes(before, after)) == (canonical_json(before) != canonical_json(after))
