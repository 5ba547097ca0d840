"""What `compile --check` says: every difference by its pointer."""

import pytest

from gateway.changes import changes


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"a": 1, "digest": "x"}, {"a": 1, "digest": "y"}, []),
        ({"a": 1}, {"a": 2}, ["/a: 1 > 2"]),
        ({"a": 1}, {"a": "1"}, ['/a: 1 > "1"']),
        ({"a": 1}, {"a": True}, ["/a: 1 > true"]),
        ({"a": None}, {}, ["/a: removed null"]),
        ({}, {"a": {"b": 1}}, ['/a: added {"b":1}']),
        ({"g": {"t": ["x", "y"]}}, {"g": {"t": ["y", "z"]}}, ['/g/t: removed "x"', '/g/t: added "z"']),
        ({"t": [1]}, {"t": ["1"]}, ["/t: removed 1", '/t: added "1"']),
        ({"t": ["x", "y"]}, {"t": ["y", "x"]}, ['/t: ["x","y"] > ["y","x"]']),
        ({"t": ["x"]}, {"t": ["x", "x"]}, ['/t: ["x"] > ["x","x"]']),
        ({"t": [{"a": 1}]}, {"t": [{"a": 2}]}, ['/t: [{"a":1}] > [{"a":2}]']),
        ({"match": {"/a~b": 1}}, {"match": {"/a~b": 2}}, ["/match/~1a~0b: 1 > 2"]),
    ],
)
def test_each_difference(before: dict[str, object], after: dict[str, object], lines: list[str]) -> None:
    assert [str(change) for change in changes(before, after)] == lines


def test_a_long_value_is_cut() -> None:
    [change] = changes({"a": ""}, {"a": "x" * 1000})
    assert len(str(change)) < 300
