import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.evidence import Evidence, exactly, usable_text
from gateway.pointers import MISSING
from gateway.predicates import MAX_DEPTH, MAX_LITERAL_BYTES, MAX_NODES, compile_predicate, evaluate, explain
from tests.reference_predicates import reference

LONE = "a\ud800"
P = "/v"


def ask(
    spec: Any, document: Any, facts: dict[str, str] | None = None, names: dict[str, Any] | None = None
) -> bool | None:
    """Evaluate, and hold the reference and the explanation to the answer."""
    predicate = compile_predicate(spec)
    evidence = Evidence(document, facts or {}, names or {})
    answer = evaluate(predicate, evidence)
    plain = {"null" if key is None else key: value for key, value in spec.items()}
    assert reference(plain, document, facts or {}, names or {}) is answer
    assert (explain(predicate, evidence) is None) is (answer is True)
    return answer


def why(spec: Any, document: Any, **more: Any) -> Any:
    return explain(compile_predicate(spec), Evidence(document, **more))


@pytest.mark.parametrize(
    ("literal", "value", "expected"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, "1", None),
        (1, True, None),
        (1, 1.0, None),
        (True, True, True),
        (True, False, False),
        (True, 1, None),
        ("1", "1", True),
        ("a", "A", False),
        ("a", " a", False),
        ("1", 1, None),
        (1.5, 1.5, True),
        (1.5, 2.5, False),
        (1.5, 2, None),
        (0.5, float("nan"), None),
        ("a", None, None),
        ("a", ["a"], None),
        ("a", {"a": 1}, None),
        ("a", LONE, None),
        ("é", "é", True),
    ],
)
def test_equals_is_exact_and_unknown_on_another_kind(literal: Any, value: Any, expected: Any) -> None:
    assert evaluate(compile_predicate({"equals": [P, literal]}), Evidence({"v": value})) is expected


def test_a_missing_place_is_unknown_for_every_value_test() -> None:
    for test in (
        {"equals": [P, 1]},
        {"in": [P, [1]]},
        {"null": P},
        {"first-token": [P, "x"]},
        {"contains": [P, 1]},
        {"agree": [P, "/w"]},
        {"differ": [P, "/w"]},
        {"changed": {"before": P, "after": "/w"}},
        {"added": {"before": P, "after": "/w"}},
        {"removed": {"before": P, "after": "/w", "separator": ";"}},
        {"one": {"in": P, "where": {"null": ""}, "then": {"null": ""}}},
    ):
        assert ask(test, {}) is None
        assert ask({"not": test}, {}) is None


def test_in_is_false_only_for_a_value_of_a_listed_kind() -> None:
    assert ask({"in": [P, ["a", 2]]}, {"v": 2}) is True
    assert ask({"in": [P, ["a", 2]]}, {"v": 3}) is False
    assert ask({"in": [P, ["a", 2]]}, {"v": 2.0}) is None
    assert ask({"in": [P, ["a", 2]]}, {"v": None}) is None


def test_present_and_null_test_structure() -> None:
    for value, present, null in ((1, True, False), (None, None, True), ({}, True, False), (LONE, None, None)):
        assert ask({"present": P}, {"v": value}) is present
        assert ask({"null": P}, {"v": value}) is null
    assert ask({"present": P}, {}) is False
    assert ask({"present": "/v/w"}, {}) is None
    assert ask({"present": "/v/w"}, {"v": []}) is None
    assert ask({"present": "/v/0"}, {"v": []}) is None
    assert ask({"present": "/v/w"}, {"v": {}}) is False
    assert ask({"present": ""}, {}) is True
    assert ask({"present": ""}, None) is None
    assert ask({"present": "@cloud"}, {}) is None
    assert ask({"present": "@cloud"}, {}, {"cloud": "c"}) is True


def test_yaml_reads_the_plain_key_null_as_its_null_value() -> None:
    assert ask({None: P}, {"v": None}) is True


def test_an_optional_member_is_excluded_as_documented() -> None:
    spec = {"any": [{"not": {"present": "/bot_id"}}, {"not": {"equals": ["/bot_id", "B1"]}}]}
    assert ask(spec, {}) is True
    assert ask(spec, {"bot_id": "B2"}) is True
    assert ask(spec, {"bot_id": "B1"}) is False
    assert ask(spec, {"bot_id": None}) is None
    assert ask({"not": {"equals": ["/bot_id", "B1"]}}, {}) is None


def test_agree() -> None:
    spec = {"agree": ["/a", "/b", "@tenant", "team"]}
    assert ask(spec, {}) is None
    assert ask(spec, {"a": None}) is None
    assert ask(spec, {"a": "x"}) is True
    assert ask(spec, {"a": "x", "b": None}, {"tenant": "x"}, {"team": "x"}) is True
    assert ask(spec, {"a": "x"}, {}, {"team": "y"}) is False
    assert ask(spec, {"a": 7, "b": "7"}) is False
    assert ask(spec, {"a": 7, "b": 7.0}) is False
    assert ask(spec, {"a": True, "b": 1}) is False
    assert ask(spec, {"a": "x", "b": {}}) is None
    assert ask(spec, {"a": "x", "b": LONE}) is None
    assert ask(spec, {"a": "x"}, {"tenant": LONE}) is None
    assert ask(spec, {"a": "x", "b": []}, {}, {"team": "y"}) is False
    assert ask(spec, {"a": {}, "b": {}}) is None


def test_differ() -> None:
    spec = {"differ": ["/a", "thread"]}
    assert ask(spec, {"a": "x"}, {}, {"thread": "y"}) is True
    assert ask(spec, {"a": "x"}, {}, {"thread": "x"}) is False
    assert ask(spec, {"a": "1"}, {}, {"thread": 1}) is True
    for document, names in (
        ({}, {"thread": "x"}),
        ({"a": "x"}, {}),
        ({"a": None}, {"thread": "x"}),
        ({"a": {}}, {"thread": 1}),
    ):
        assert ask(spec, document, {}, names) is None
    assert ask(spec, {"a": "x"}, {}, {"thread": LONE}) is None


def test_first_token() -> None:
    spec = {"first-token": [P, "/triage"]}
    for text in ("/triage", "  /triage now", "/triage\nrest", "\t/triage\t", "\r\n/triage\v"):
        assert ask(spec, {"v": text}) is True
    for text in ("", "   ", "/triaged", "x /triage", "\u00a0/triage", "/triage\u00a0x", "/Triage", "/tri"):
        assert ask(spec, {"v": text}) is False
    for value in (1, None, ["/triage"], "/triage " + LONE):
        assert ask(spec, {"v": value}) is None


def test_contains_takes_one_wildcard() -> None:
    spec = {"contains": ["/users/*/id", "U1"]}
    assert ask(spec, {"users": [{"id": "U0"}, {"id": "U1"}]}) is True
    assert ask(spec, {"users": [{}, {"id": "U1"}]}) is True
    assert ask(spec, {"users": [{"id": "U0"}]}) is False
    assert ask(spec, {"users": []}) is False
    assert ask(spec, {"users": [{"id": "U0"}, {}]}) is None
    assert ask(spec, {"users": [{"id": "U0"}, {"id": 1}]}) is None
    assert ask(spec, {"users": {"0": {"id": "U1"}}}) is None
    assert ask({"contains": ["/tags", "a"]}, {"tags": ["b", "a"]}) is True
    assert ask({"contains": ["/tags", "a"]}, {"tags": "a"}) is None
    assert ask({"contains": ["", "a"]}, ["b"]) is False


def test_changed() -> None:
    spec: dict[str, Any] = {"changed": {"before": "/a", "after": "/b"}}
    assert ask(spec, {"a": "x", "b": "y"}) is True
    assert ask(spec, {"a": "x", "b": "x"}) is False
    assert ask(spec, {"a": 1, "b": 1.5}) is True
    assert ask(spec, {"a": 1, "b": 1.0}) is None
    for document in (
        {"a": None, "b": "y"},
        {"a": "x", "b": None},
        {"b": "y"},
        {"a": "1", "b": 1},
        {"a": True, "b": 1},
        {"a": [], "b": [1]},
    ):
        assert ask(spec, document) is None
    spec = {"changed": {"before": "/a", "after": "/b", "from": ["open"], "to": ["closed", "done"]}}
    assert ask(spec, {"a": "open", "b": "done"}) is True
    assert ask(spec, {"a": "done", "b": "closed"}) is False
    assert ask(spec, {"a": "open", "b": "new"}) is False
    assert ask(spec, {"a": 1, "b": 2}) is None
    assert ask({"changed": {"before": "/a", "after": "/b", "to": [1]}}, {"a": 1, "b": 1}) is False


@pytest.mark.parametrize(
    ("before", "after", "added", "removed"),
    [
        ([], ["a"], True, False),
        (["a"], [], False, True),
        (["a"], ["a"], False, False),
        (["a", "b"], ["b", "a", "c"], True, False),
        (["a"], ["b"], None, None),
        ([], ["a", "b"], None, None),
        (["a", "a"], ["a"], None, None),
        ([], ["a", "a"], None, None),
        (None, ["a"], True, False),
        (["a"], None, False, True),
        (None, None, False, False),
        ([], [None], None, None),
        ([], [{}], None, None),
        ([], [LONE], None, None),
        ([1], [1, 1.0], True, False),
        ([1], [1.0], None, None),
        ([True], [True, 1], True, False),
        ([], [0.0, -0.0], None, None),
        ("a", "a;b", None, None),
        ({}, ["a"], None, None),
    ],
)
def test_added_and_removed_need_exactly_one_difference(before: Any, after: Any, added: Any, removed: Any) -> None:
    document = {"a": before, "b": after}
    assert ask({"added": {"before": "/a", "after": "/b"}}, document) is added
    assert ask({"removed": {"before": "/a", "after": "/b"}}, document) is removed


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        ("a; b", "b;a ;c", True),
        ("", "a", True),
        (None, " a ", True),
        ("a;;", "a", False),
        ("a;\t", "a", False),
        ("a", "A", None),
        ("a;a", "a", None),
        ("a; a", "a;b", None),
        (["a"], "a;b", None),
        (1, "a", None),
        (LONE, "a", None),
    ],
)
def test_separated_text_is_a_list_of_stripped_elements(before: Any, after: Any, added: Any) -> None:
    spec = {"added": {"before": "/a", "after": "/b", "separator": ";"}}
    assert ask(spec, {"a": before, "b": after}) is added


def test_a_missing_side_is_unknown() -> None:
    for spec in ({"added": {"before": "/a", "after": "/b"}}, {"removed": {"before": "/b", "after": "/a"}}):
        assert ask(spec, {"b": ["x"]}) is None


ONE = {
    "one": {
        "in": "/items",
        "where": {"all": [{"equals": ["/field", "labels"]}, {"equals": ["/type", "jira"]}]},
        "then": {"added": {"before": "/from", "after": "/to", "separator": " "}},
    }
}


def test_one_chooses_by_relative_pointers() -> None:
    item = {"field": "labels", "type": "jira", "from": "a", "to": "a b"}
    other = {"field": "status"}
    assert ask(ONE, {"items": [other, item]}) is True
    assert ask(ONE, {"items": [{**item, "to": "a"}]}) is False
    assert ask(ONE, {"items": [other]}) is False
    assert ask(ONE, {"items": []}) is False
    assert ask(ONE, {"items": [item, item]}) is None
    assert ask(ONE, {"items": [item, {"field": "labels"}]}) is None
    assert ask(ONE, {"items": [item, "junk"]}) is None
    assert ask(ONE, {"items": {"0": item}}) is None


def test_facts_and_names_are_read_inside_one() -> None:
    spec = {"one": {"in": "", "where": {"agree": ["/id", "who"]}, "then": {"equals": ["@cloud", "c"]}}}
    assert ask(spec, [{"id": 1}, {"id": 2}], {"cloud": "c"}, {"who": 2}) is True
    assert why(spec, [{"id": 2}], facts={"cloud": "d"}, names={"who": 2}) == ("equals", "@cloud")


def test_combinators_are_three_valued() -> None:
    true, false, unknown = {"equals": ["/t", 1]}, {"equals": ["/f", 1]}, {"equals": ["/u", 1]}
    document = {"t": 1, "f": 0}
    assert ask({"all": [true, true]}, document) is True
    assert ask({"all": [true, unknown]}, document) is None
    assert ask({"all": [unknown, false]}, document) is False
    assert ask({"any": [false, unknown]}, document) is None
    assert ask({"any": [unknown, true]}, document) is True
    assert ask({"any": [false, false]}, document) is False
    assert ask({"not": true}, document) is False
    assert ask({"not": false}, document) is True
    assert ask({"not": unknown}, document) is None


def test_explain_names_the_first_test_that_was_not_true() -> None:
    true, false = {"equals": ["/t", 1]}, {"equals": ["/f", 1]}
    document = {
        "t": 1,
        "f": 0,
        "items": [{"field": "labels", "type": "jira", "from": "a", "to": None}],
        "x": "1",
        "y": "2",
    }
    assert why(true, document) is None
    assert why({"all": [true, {"any": [false, {"in": ["/u", [1]]}]}]}, document) == ("equals", "/f")
    assert why({"not": {"all": [true, true]}}, document) == ("not-equals", "/t")
    assert why({"not": {"not": {"any": [false]}}}, document) == ("not-not-equals", "/f")
    assert why({"not": {"contains": ["/u", 1]}}, document) == ("contains", "/u")
    assert why({"not": {"one": {"in": "/items", "where": {"present": ""}, "then": {"null": "/to"}}}}, document) == (
        "not-one",
        "/items",
    )
    assert why(ONE, document) == ("added", "/items/*/from, /items/*/to")
    assert why(ONE, {"items": []}) == ("one", "/items")
    assert why({"agree": ["/t", "/u", "/f"]}, document) == ("agree", "/t, /f")
    assert why({"agree": ["/u", "/items"]}, document) == ("agree", "/items")
    assert why({"agree": ["/u", "/w"]}, document) == ("agree", "/u")
    assert why({"differ": ["/t", "/t"]}, document) == ("differ", "/t, /t")
    assert why({"differ": ["/u", "/t"]}, document) == ("differ", "/u")
    assert why({"changed": {"before": "/x", "after": "/u"}}, document) == ("changed", "/u")
    assert why({"present": "/u"}, document) == ("present", "/u")
    assert why({"not": {"agree": ["/t"]}}, document) == ("not-agree", "/t")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("x", "exactly one member"),
        ({}, "exactly one member"),
        ({"equals": [P, 1], "in": [P, [1]]}, "exactly one member"),
        ({"matches": [P, ".*"]}, "unknown test"),
        ({7: P}, "unknown test"),
        ({"all": []}, "at least one test"),
        ({"any": {"equals": [P, 1]}}, "at least one test"),
        ({"all": [{"x": 1}, {"equals": ["v", 1]}]}, r"all\[0\].*; .*all\[1\]"),
        ({"equals": P}, "a list of two"),
        ({"equals": [P]}, "a list of two"),
        ({"equals": ["v", 1]}, "is no pointer"),
        ({"equals": [1, 1]}, "a pointer is text"),
        ({"equals": ["/" + LONE, 1]}, "a pointer is text"),
        ({"equals": ["/~2", 1]}, "must be followed"),
        ({"equals": ["/" + "x" * 256, 1]}, "256 bytes"),
        ({"equals": ["/a/*", 1]}, "wildcard"),
        ({"equals": ["@", 1]}, "names no fact"),
        ({"equals": [P, None]}, "a literal is"),
        ({"equals": [P, [1]]}, "a literal is"),
        ({"equals": [P, LONE]}, "a literal is"),
        ({"equals": [P, float("inf")]}, "a literal is"),
        ({"equals": [P, 7.0]}, "written as an integer"),
        ({"equals": [P, "x" * MAX_LITERAL_BYTES]}, "4096 bytes"),
        ({"equals": [P, 10**5000]}, "is not JSON"),
        ({"in": [P, "ab"]}, "at least one literal"),
        ({"in": [P, []]}, "at least one literal"),
        ({"in": [P, ["x" * 2000, "y" * 2100]]}, "4096 bytes"),
        ({"in": [P, [{1, 2}]]}, "is not JSON"),
        ({"first-token": [P, ""]}, "without white space"),
        ({"first-token": [P, "a b"]}, "without white space"),
        ({"first-token": [P, 1]}, "without white space"),
        ({"agree": []}, "at least one reference"),
        ({"agree": "/a"}, "at least one reference"),
        ({"agree": ["/a"] * 65}, "64 references"),
        ({"agree": ["-a"]}, "is no pointer"),
        ({"differ": ["/a"]}, "a list of two"),
        ({"contains": ["/*/*", 1]}, "at most one wildcard"),
        ({"contains": ["@cloud", 1]}, "takes a pointer"),
        ({"changed": ["/a", "/b"]}, "takes an object"),
        ({"changed": {"before": "/a"}}, "takes before, after, optionally from, optionally to"),
        ({"changed": {"before": "/a", "after": "/b", "by": 1}}, "takes before"),
        ({"changed": {"before": "/a", "after": "/b", "to": [None]}}, "a literal is"),
        ({"added": {"before": "/a", "after": "/b", "separator": ""}}, "at least one character"),
        ({"added": {"before": "/a", "after": "/b", "separator": 1}}, "at least one character"),
        ({"added": {"before": "/a", "after": "/b", "separator": None}}, "a literal is"),
        ({"one": {"in": P, "where": {"null": ""}}}, "takes in, where, then"),
    ],
)
def test_a_bad_declaration_says_what_and_where(spec: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compile_predicate(spec)


def nested(levels: int) -> Any:
    spec: Any = {"null": P}
    for _ in range(levels - 1):
        spec = {"not": spec}
    return spec


def test_bounds_are_exact() -> None:
    assert compile_predicate(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="deeper than 8"):
        compile_predicate(nested(MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="deeper than 8"):
        compile_predicate({"all": [nested(2000)]})
    assert compile_predicate({"all": [{"null": P}] * (MAX_NODES - 1)})
    with pytest.raises(ValueError, match="more than 64 nodes"):
        compile_predicate({"all": [{"null": P}] * MAX_NODES})
    assert compile_predicate({"equals": ["/" + "x" * 255, "x" * (MAX_LITERAL_BYTES - 2)]})


def test_a_predicate_says_what_it_reads() -> None:
    predicate = compile_predicate({"all": [{"agree": ["/a", "@cloud", "team"]}, {"equals": ["@tenant", "t"]}]})
    assert predicate.facts == frozenset({"cloud", "tenant"})
    assert predicate.names == frozenset({"team"})


def test_evidence_reads_pointers_facts_and_names() -> None:
    evidence = Evidence({"a": {"b~/": None}, "s": LONE}, {"event": "Issue.update"}, {"team": 7})
    assert evidence.get("/a/b~0~1") is None
    assert evidence.get("") == evidence.document
    assert evidence.get("@event") == "Issue.update"
    assert evidence.get("team") == 7
    for nothing in ("/x", "@x", "x", "/s"):
        assert evidence.get(nothing) is MISSING
    assert evidence.with_names({"x": 1}).get("x") == 1
    with pytest.raises(ValueError, match="followed by"):
        evidence.get("/~")


def test_exactly_compares_json_by_kind_throughout() -> None:
    value: Any = {"a": [1, "x", None, {"b": True}]}
    other: Any
    assert exactly(value, {"a": [1, "x", None, {"b": True}]})
    for other in (
        {"a": [1.0, "x", None, {"b": True}]},
        {"a": [1, "x", None, {"b": 1}]},
        {"a": [1]},
        {"b": 1},
        {"a": {}},
        [],
        None,
        "a",
    ):
        assert not exactly(value, other)
        assert not exactly(other, value)
    assert exactly(None, None)
    assert not exactly(MISSING, None)
    assert not exactly(MISSING, MISSING)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert exactly(deep, deep)


def test_usable_text() -> None:
    assert usable_text("a")
    assert usable_text("é😀")
    assert not usable_text(LONE)


def test_colliding_integers_cost_no_more_than_others() -> None:
    # a quadratic evaluator would not end within the run's time; nothing is timed
    # multiples of 2^61-1 all hash to 0 in CPython: as elements of a set they would take quadratic time
    many = [n * (2**61 - 1) for n in range(1, 60_000)]
    assert (
        evaluate(compile_predicate({"added": {"before": "/a", "after": "/b"}}), Evidence({"a": many[1:], "b": many}))
        is True
    )


def test_long_names_are_not_scanned_once_an_element() -> None:
    predicate = compile_predicate({"one": {"in": "", "where": {"agree": ["/id", "long"]}, "then": {"null": ""}}})
    evidence = Evidence([{"id": "x"}] * 20_000, {}, {"long": "é" * 1_000_000})
    assert evaluate(predicate, evidence) is False


# --- generated cases ------------------------------------------------------------------------------------------------

SCALARS = st.sampled_from(["a", "b", "1", "a;b", "b; a", "", LONE, "é", 0, 1, 2, -1, 1.0, 1.5, 0.0, -0.0, True, False])
VALUES = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
LITERALS = st.sampled_from(["a", "b", "1", "", "é", 0, 1, 2, -1, 1.5, True, False])
POINTERS = st.sampled_from(["", "/a", "/b", "/c", "/a/a", "/a/b", "/a/0", "/b/1", "/c/a/b", "@fact", "@none"])
REFERENCES = POINTERS | st.sampled_from(["name", "other", "nope"])
FACTS = st.fixed_dictionaries({"fact": st.sampled_from(["a", "b", "", LONE])})
NAMES = st.fixed_dictionaries({"name": SCALARS, "other": VALUES})
SIDES = {"before": POINTERS, "after": POINTERS}
LEAVES = st.one_of(
    st.tuples(POINTERS, LITERALS).map(lambda two: {"equals": list(two)}),
    st.tuples(POINTERS, st.lists(LITERALS, min_size=1, max_size=3)).map(lambda two: {"in": list(two)}),
    POINTERS.map(lambda pointer: {"present": pointer}),
    POINTERS.map(lambda pointer: {"null": pointer}),
    st.tuples(POINTERS, st.sampled_from(["a", "b"])).map(lambda two: {"first-token": list(two)}),
    st.lists(REFERENCES, min_size=1, max_size=3).map(lambda refs: {"agree": refs}),
    st.tuples(REFERENCES, REFERENCES).map(lambda two: {"differ": list(two)}),
    st.tuples(st.sampled_from(["/a", "/a/*", "/*/a", "/*", ""]), LITERALS).map(lambda two: {"contains": list(two)}),
    st.fixed_dictionaries(
        SIDES,
        optional={"from": st.lists(LITERALS, min_size=1, max_size=2), "to": st.lists(LITERALS, min_size=1, max_size=2)},
    ).map(lambda members: {"changed": members}),
    st.tuples(
        st.sampled_from(["added", "removed"]), st.fixed_dictionaries(SIDES, optional={"separator": st.just(";")})
    ).map(lambda two: {two[0]: two[1]}),
)
SPECS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda specs: {"all": specs}),
        st.lists(inner, min_size=1, max_size=3).map(lambda specs: {"any": specs}),
        inner.map(lambda spec: {"not": spec}),
        st.tuples(POINTERS, inner, inner).map(
            lambda three: {"one": {"in": three[0], "where": three[1], "then": three[2]}}
        ),
    ),
    max_leaves=6,
)


def accepted(spec: Any) -> bool:
    try:
        compile_predicate(spec)
    except ValueError as error:
        assert "deeper" in str(error)  # noqa: PT017
        return False
    return True


BOUNDED = SPECS.filter(accepted)


@settings(max_examples=4000)
@given(BOUNDED, VALUES, FACTS, NAMES)
def test_the_reference_agrees(spec: Any, document: Any, facts: dict[str, str], names: dict[str, Any]) -> None:
    ask(spec, document, facts, names)


@settings(max_examples=500)
@given(st.lists(BOUNDED, min_size=1, max_size=4), VALUES, FACTS, NAMES)
def test_de_morgan_in_three_values(
    specs: list[Any], document: Any, facts: dict[str, str], names: dict[str, Any]
) -> None:
    evidence = Evidence(document, facts, names)
    negated = [{"not": spec} for spec in specs]
    for left, right in (({"not": {"all": specs}}, {"any": negated}), ({"not": {"any": specs}}, {"all": negated})):
        if accepted(left) and accepted(right):
            assert evaluate(compile_predicate(left), evidence) is evaluate(compile_predicate(right), evidence)


VALUE_TESTS = ("equals", "in", "first-token", "contains", "changed", "added", "removed")


@settings(max_examples=1000)
@given(LEAVES, st.sampled_from([MISSING, LONE, {}, 7]), st.booleans())
def test_a_value_test_decides_nothing_on_missing_or_mistyped_evidence(spec: Any, hole: Any, negated: bool) -> None:
    ((name, argument),) = spec.items()
    if name not in VALUE_TESTS:
        return
    keyed = (
        {key: "/v" if key in {"before", "after"} else value for key, value in argument.items()}
        if isinstance(argument, dict)
        else ["/v", *argument[1:]]
    )
    if hole == 7 and name not in {"first-token", "contains", "added", "removed"}:
        return
    document = {} if hole is MISSING else {"v": hole}
    test = {name: keyed}
    assert ask({"not": test} if negated else test, document) is None


CANARY = st.text(st.characters(), max_size=3).map(lambda text: f"CANARY{text}")
SECRETS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CANARY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc") | CANARY, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=500)
@given(BOUNDED, SECRETS)
def test_nothing_raises_and_nothing_leaks(spec: Any, document: Any) -> None:
    predicate = compile_predicate(spec)
    evidence = Evidence(document, {"fact": "CANARY"}, {"name": document})
    assert evaluate(predicate, evidence) in (True, False, None)
    assert "CANARY" not in str(explain(predicate, evidence))
    assert "CANARY" not in repr(predicate)


def test_evaluation_is_linear_in_the_document() -> None:
    predicate = compile_predicate({"all": [{"not": {"contains": ["/a/*/b", 1]}}] * 30})
    items = [{"b": random.randrange(2, 9)} for _ in range(20_000)]
    assert evaluate(predicate, Evidence({"a": items})) is True
