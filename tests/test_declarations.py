"""Declarations: what a connector's frontmatter may say, and what is refused with its line."""

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.declarations import Bound, bind, load_connector
from gateway.errors import ConfigError
from gateway.frontmatter import load_frontmatter, load_yaml
from gateway.triggers import compile_trigger

ROOT = Path(__file__).parent.parent
CONNECTORS = sorted((ROOT / "subscriptions/connectors").glob("*.md"))
EXAMPLE = """---
connectors:
  example:
    resources:
      records: ${{ github.aw.import-inputs.records }}
    triggers:
      record-updated:
        verificationProfile: standard-webhooks
        nativeEvents: [record.updated]
        match: {/type: record.updated}
        when: {in: [/data/state, "${{ github.aw.import-inputs.states }}"]}
        normalize: {record: /data/id, state: /data/state}
        types: {record: integer, state: string}
        resources: {record: records}
        filters: {states: state}
        resourceOrigins: ["${{ github.aw.import-inputs.site }}"]
        canonicalUrl: "${{ github.aw.import-inputs.site }}/r/{record}"
import-schema:
  records: {type: array, items: {type: string}, default: []}
  states: {type: array, default: [open]}
  site: {type: string, required: true}
---
"""
GOOD = {"records": ["7"], "site": "https://example.com"}


def bound(text: str = EXAMPLE, *, selected: tuple[str, ...] = ("record-updated",), **with_: Any) -> Bound:
    return bind(load_connector(text, "example.md"), GOOD | with_, selected, "c.md")


def problems(text: str = EXAMPLE, **with_: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        bound(text, **with_)
    for problem in caught.value.problems:
        assert problem.file
        assert problem.fix
    return str(caught.value)


def test_lowering_keeps_types_and_freezes_inputs() -> None:
    result = bound(states=["open", "new"])
    lowered = result.triggers["record-updated"]
    assert result.grants == {"records": [7]}
    assert lowered["when"] == {"in": ["/data/state", ["open", "new"]]}
    assert lowered["canonicalUrl"] == "https://example.com/r/{record}"
    assert lowered["verificationProfile"] == ["standard-webhooks"]
    assert compile_trigger("record-updated", lowered).origins == {"https://example.com"}


def test_an_origin_input_may_carry_a_path() -> None:
    lowered = bound(site="https://example.com/base").triggers["record-updated"]
    assert lowered["resourceOrigins"] == ["https://example.com"]
    assert lowered["canonicalUrl"] == "https://example.com/base/r/{record}"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("match: {", "matches: {", r"line 10: matches: is an unknown field"),
        ("    resources:\n      records", "    resource:\n      records", "unknown field"),
        ("  example:", "  issue:", "reserved"),
        ("  example:", "  Example:", "an id matches"),
        ("      record-updated:", "      Record:", "a name matches"),
        ("nativeEvents: [record.updated]", "nativeEvents: []", "nativeEvents: is missing or empty"),
        ("resources: {record: records}", "resources: {record: others}", "others is no collection"),
        ("resources: {record: records}", "resources: {other: records}", "other is neither normalized"),
        ("resources: {record: records}", "resources: {record: records, state: records}", "share one collection"),
        ("        resources: {record: records}\n", "", "resources: is empty"),
        ("types: {record: integer", "types: {record: uuid", "is none of string"),
        ("types: {record: integer", "types: {record: boolean", "cannot be granted"),
        ("/r/{record}", "/r/{nobody}", "nobody is neither"),
        (
            'canonicalUrl: "${{ github.aw.import-inputs.site }}',
            'canonicalUrl: "https://evil.example',
            "not among resourceOr",
        ),
        ("import-inputs.states }}", "import-inputs.nothing }}", "names the input nothing"),
        ("record: /data/id", "record: data/id", "JSON Pointer"),
        ("record: /data/id", "record: /" + "x" * 300, "longer than 256"),
        ("in: [/data/state,", "matches: [/data/state,", "when"),
        ("records: {type: array", "records: {type: list", "is none of array"),
        ("site: {type: string, required", "site: {type: string, must", "unknown field of a input"),
        ("states: {type: array, default: [open]}", "states: {type: array, default: open}", "must be a list"),
        ("filters: {states: state}", "filters: {states: nobody}", "nobody is neither"),
        ("match: {/type: record.updated}", "match: {type: record.updated}", "no JSON Pointer"),
        ("match: {/type: record.updated}", "match: {/type: a, /type: b}", "stands twice"),
    ],
)
def test_a_wrong_declaration_is_refused(old: str, new: str, words: str) -> None:
    assert old in EXAMPLE
    assert re.search(words, problems(EXAMPLE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("with_", "words"),
    [
        ({"records": []}, "imports.example.with.records: is empty"),
        ({"records": ["07"]}, "canonical decimal"),
        ({"records": ["+7"]}, "canonical decimal"),
        ({"records": ["7.0"]}, "canonical decimal"),
        ({"records": [str(2**60)]}, "canonical decimal"),
        ({"records": [7]}, "must be of type string: quote it"),
        ({"records": ["7", "7"]}, "one value twice"),
        ({"records": "7"}, "must be a list"),
        ({"records": ["*"]}, "wildcards"),
        ({"site": ""}, "empty text"),
        ({"site": "http://example.com"}, "resourceOrigins"),
        ({"site": "https://user@example.com"}, "resourceOrigins"),
        ({"site": "https://example.com/{x}"}, "brace"),
        ({"site": "https://example.com?x"}, "no https origin"),
        ({"unknown": "x"}, "is no input of the connector"),
        ({"states": []}, "when"),
    ],
)
def test_wrong_bindings_are_refused(with_: dict[str, Any], words: str) -> None:
    assert words in problems(**with_)


def test_required_inputs_and_unknown_triggers() -> None:
    connector = load_connector(EXAMPLE, "example.md")
    with pytest.raises(ConfigError, match="is required"):
        bind(connector, {"records": ["7"]}, ["record-updated"], "c.md")
    with pytest.raises(ConfigError, match="use one of record-updated"):
        bind(connector, GOOD, ["record-created"], "c.md")


def test_one_literal_one_tenant() -> None:
    linear = load_connector((ROOT / "subscriptions/connectors/linear.md").read_text(), "linear.md")
    with_ = {"workspace": "acme", "organizations": ["o1", "o2"], "teams": ["t1", "t2"]}
    with pytest.raises(ConfigError, match="one subscription each"):
        bind(linear, with_, ["issue-created"], "c.md")
    assert bind(linear, with_ | {"organizations": ["o1"]}, ["issue-created"], "c.md").grants["teams"] == ["t1", "t2"]


def test_undeclared_literals_stand_for_the_first_resource() -> None:
    text = EXAMPLE.replace("/r/{record}", "/r/{state}").replace("types: {record: integer", "types: {record: string")
    assert bound(text).triggers["record-updated"]["literals"] == {"site": "records"}
    assert "one subscription each" in problems(text, records=["a", "b"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%YAML 1.1\n---\na: 1\n", "directive"),
        ("%TAG ! tag:x,2000:\n---\na: 1\n", "directive"),
        ("a: !!set {b}\n", "tag"),
        ("a: !!binary aGk=\n", "tag"),
        ("a: 1\na: 1\n", "line 2: stands twice"),
        ("a: {null: 1, 'null': 1}\n", "stands twice"),
        ("a: &x [*x]\n", "no finished anchor"),
        ("a: *x\n", "anchor"),
        ("1: a\n", "no text"),
        ("true: a\n", "no text"),
        ("[a]: b\n", "no plain text"),
        ("- a\n", "no mapping"),
        ("a: 1\n---\nb: 1\n", "second document"),
        ("a: 1e9999\n", "overflows"),
        ("a: [\n", "line"),
        ("<<: 7\n", "merges"),
        ("a: \x00\n", "no YAML"),
        ("a: &a [" + "x, " * 50 + "]\n" + "b: &b [" + "*a, " * 50 + "]\nc: [" + "*b, " * 50 + "]\n", "too large"),
        ("a: " + "[" * 80 + "]" * 80 + "\n", "too deep"),
    ],
)
def test_yaml_that_leaves_doubt_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_yaml(text, "x.yaml")


def test_plain_scalars_follow_the_core_schema() -> None:
    text = (
        "on: yes\ndate: 2026-01-01\nscore: 1_000\nbinary: 0b11\noctal: 0o17\nhex: 0xff\nfloat: 1.5\nnone: ~\n"
        "quoted: '7'\nflag: true\nnegative: -7\nsexagesimal: 1:30\nblock: |\n  7\nnull: x\n"
    )
    assert load_yaml(text, "x").value == {
        "on": "yes",
        "date": "2026-01-01",
        "score": "1_000",
        "binary": "0b11",
        "octal": 15,
        "hex": 255,
        "float": 1.5,
        "none": None,
        "quoted": "7",
        "flag": True,
        "negative": -7,
        "sexagesimal": "1:30",
        "block": "7\n",
        "null": "x",
    }


def test_merge_keys_and_anchors() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\n"
    assert load_yaml(text, "x").value["c"] == {"x": 9, "y": 2, "z": 4}


@pytest.mark.parametrize("text", ["", "a: 1\n", "---\na: 1\n", "---\n" + "x" * 300_000 + "\n---\n"])
def test_frontmatter_needs_both_fences_and_a_bound(text: str) -> None:
    with pytest.raises(ConfigError):
        load_frontmatter(text, "x.md")


@pytest.mark.parametrize("path", CONNECTORS, ids=lambda path: path.stem)
def test_shipped_connectors_load_and_are_documented(path: Path) -> None:
    connector = load_connector(path.read_text(), path.name)
    assert connector.id == path.stem
    assert connector.triggers
    body = path.read_text().split("\n---\n", 1)[1]
    assert re.fullmatch(rf'\s*<!--\n<connector-documentation id="{path.stem}" version="1">.*-->\s*', body, re.DOTALL)
    assert "--" not in body.strip().removeprefix("<!--").removesuffix("-->")
