"""Declarations: what a connector's frontmatter may say, and what is refused with its line."""

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.declarations import load_connector
from gateway.errors import ConfigError
from gateway.frontmatter import load_frontmatter, load_yaml
from gateway.lowering import Bound, bind, lower_values
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


def test_a_connector_declares_something() -> None:
    for text in ("{}", "{triggers: {}, tools: {}}", "{resources: {a: [b]}}"):
        with pytest.raises(ConfigError, match="declares nothing"):
            load_connector(f"---\nconnectors:\n  example: {text}\n---\n", "example.md")
    tools = load_connector(
        "---\nconnectors:\n  example: {tools: {get-record: {tool: get_record}}}\n---\n", "example.md"
    )
    with pytest.raises(ConfigError, match="get-record is no trigger of it"):
        bind(tools, {}, ["get-record"], "c.md")


def test_a_name_is_ascii_to_the_letter() -> None:
    """What looks the same is not the same: Cyrillic letters, a soft hyphen, a full-width letter, another case."""
    for name in ("record\u2010updated", "r\u0435cord", "record\u00adx", "\uff52ecord", "Record", "a" * 64):
        assert "a name matches" in problems(EXAMPLE.replace("      record-updated:", f'      "{name}":'))
        with pytest.raises(ConfigError, match="is no trigger of it"):
            bind(load_connector(EXAMPLE, "example.md"), GOOD, [name], "c.md")
    assert "is no input of the connector" in problems(sіte="https://example.com")


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
        ("    resources:\n", "    experimental: 1\n    resources:\n", "experimental: line 4: is no boolean"),
        ("    resources:\n", "    tools: {Read: {}}\n    resources:\n", "a name matches"),
        ("    resources:\n", "    safe-outputs: []\n    resources:\n", "is no mapping"),
        ("    resources:\n", "    docs: [http://a.example]\n    resources:\n", "no list of https addresses"),
        ("    resources:\n", "    docs: [https://u:p@a.example/]\n    resources:\n", "no list of https addresses"),
        (
            "    resources:\n",
            "    docs: [https://a.example, https://a.example]\n    resources:\n",
            "list each address once",
        ),
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
        (
            "a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40 + "\n",
            "line 2: is too large or too deep",
        ),
        ("x: &x {a: 1}\nz:\n  <<: *x\n  <<: *x\n", "line 4: stands twice"),
        ("a: " + "9" * 65 + "\n", "more than 64 characters"),
        ("a: 0x" + "f" * 63 + "\n", "more than 64 characters"),
        ("a: 1." + "0" * 63 + "\n", "more than 64 characters"),
        ("a: 1e99999\n", "overflows"),
        ("a: .inf\n", "JSON does not have"),
        ("a: -.INF\n", "JSON does not have"),
        ("a: .NaN\n", "JSON does not have"),
        ('a: "\\ud800"\n', "half of a surrogate pair"),
        ('"\\udfff": 1\n', "half of a surrogate pair"),
        ("b: 1\na: x\u2028y\n", "line 2: holds U+2028"),
        ('a: "x\u2029y"\n', "holds U+2029"),
        ("a: x\x85y\n", "holds U+0085"),
        ("a: 1\n\ufeffb: 2\n", "line 2: holds U+FEFF"),
        ("a: 1 # \u202e2\n", "holds U+202E"),
        ("a: b\x0cc\n", "holds U+000C"),
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


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_an_end_of_line_and_a_first_mark_change_nothing(end: str, mark: str) -> None:
    plain = load_connector(EXAMPLE, "example.md")
    assert load_connector((mark + EXAMPLE.replace("\n", end)).encode(), "example.md").digest == plain.digest


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_what_ends_a_line_everywhere_ends_one(end: str) -> None:
    """Otherwise this file would hold one frontmatter for us and another for whoever reviewed it elsewhere."""
    with pytest.raises(ConfigError, match="holds U"):
        load_frontmatter(f"---\na: x{end}---\nb: y\n---\n", "x.md")


def test_what_is_no_utf_8_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 4: is not UTF-8"):
        load_frontmatter(b"---\na: 1\n---\ncaf\xe9\n", "x.md")


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


# ---- what a declaration's parts may be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("verificationProfile: standard-webhooks", "verificationProfile: [Standard]", "no profile's name"),
        ("match: {/type: record.updated}", "match: {/a~b: 1}", "followed by 0 or 1"),
        ("match: {/type: record.updated}", "match: [/type]", "match: is no mapping"),
        ("record: /data/id", 'record: "@Fact"', "names no fact"),
        ("record: /data/id", "record: 7", "no JSON Pointer and no @fact"),
        ("record: /data/id", 'record: ""', "names? the whole document|whole document"),
        ("record: /data/id", "record: /a~", "followed by 0 or 1"),
        ("record: /data/id", "Record: /data/id, record: /data/id", "a name must match"),
        ("state: /data/state}", "state: /data/state, url: 7}", "normalize.url: is no list"),
        ("state: /data/state}", "state: /data/state, url: [7]}", "a pointer or a list of"),
        ("state: /data/state}", "state: /data/state, url: [{}]}", "a pointer or a list of"),
        ("state: /data/state}", "state: /data/state, url: [{to: /a}]}", "a pointer or a list of"),
        ("state: /data/state}", "state: /data/state, url: [{from: a}]}", "normalize.url: a JSON Pointer"),
        ("state: /data/state}", "state: /data/state, url: [{template: 7}]}", "a template is text"),
        ("state: /data/state}", "state: /data/state, url: [{template: 'https://x.example/{no}'}]}", "no is neither"),
        ("types: {record", "extract: {from: /a}\n        types: {record", "write {from: pointer, pattern: text}"),
        ("types: {record", "extract: {from: /a, pattern: x}\n        types: {record", "names at least one part"),
        ("types: {record", "extract: {from: a, pattern: '{x}'}\n        types: {record", "extract.from"),
        ("types: {record", "variants: []\n        types: {record", "variants: is no list of at least one"),
        ("types: {record", "variants: {a: 1}\n        types: {record", "variants: is no list"),
        ("types: {record", "variants: [7]\n        types: {record", "variant: is no mapping"),
        ("types: {record", "variants: [{resources: {}}]\n        types: {record", "unknown field of a variant"),
        ("types: {record", "literals: [a]\n        types: {record", "literals: write"),
        ("types: {record", "literals: {a: 7}\n        types: {record", "literals: write"),
        ("filters: {states: state}", "filters: [states]", "filters: is no mapping"),
        ("resources: {record: records}", "resources: {record: [records]}", "a name must match"),
        ("when: {in: [", "when: {agree: [nobody], in: [", "exactly one member"),
        ("        when:", "        variants: [{when: {agree: [nobody]}}]\n        when:", "nobody is neither"),
        ("      record-updated:", "      record-updated: 7\n      other:", "trigger: is no mapping"),
        ("    triggers:\n", "    triggers: 7\n    tools:\n", "triggers.*is no mapping"),
        ("connectors:\n  example:", "connectors:\n  other: 7\n  example:", "one connector"),
        ("connectors:\n  example:\n", "connectors:\n  example: 7\nrest:\n", "is no mapping"),
        ("import-schema:", "import-schema: 7\nrest:", "is no mapping"),
        ("records: {type: array, items: {type: string}", "records: {type: array, items: {type: list}", "no primitive"),
        ("states: {type: array, default: [open]}", "states: {type: array, enum: 7}", "enum: is no list"),
        (
            "states: {type: array, default: [open]}",
            "states: {type: array, items: {enum: [a]}, default: [b]}",
            "none of",
        ),
        ("default: []}", "default: [], description: 99999999999999999999}", "no canonical form"),
    ],
)
def test_a_part_of_the_wrong_kind_is_told(old: str, new: str, words: str) -> None:
    assert old in EXAMPLE
    assert re.search(words, problems(EXAMPLE.replace(old, new, 1)))


def test_an_input_has_the_type_that_the_schema_says() -> None:
    text = EXAMPLE.replace(
        "import-schema:\n",
        "import-schema:\n  flag: {type: boolean}\n  count: {type: integer}\n  share: {type: number}\n  kind: {type: string, enum: [a, b]}\n",
    )
    assert bound(text, flag=True, count=7, share=1.5, kind="a").grants == {"records": [7]}
    for with_ in ({"flag": 1}, {"flag": "true"}, {"count": 7.0}, {"count": True}, {"share": True}, {"share": "1"}):
        assert "must be of type" in problems(text, **with_)
    assert "none of the values" in problems(text, kind="c")


def test_inputs_are_substituted_by_the_place_where_they_stand() -> None:
    text = EXAMPLE.replace('["${{ github.aw.import-inputs.site }}"]', "${{ github.aw.import-inputs.origins }}").replace(
        "import-schema:\n", "import-schema:\n  origins: {type: array, default: []}\n"
    )
    lowered = bound(text, origins=["https://example.com", "https://other.example"]).triggers["record-updated"]
    assert lowered["resourceOrigins"] == ["https://example.com", "https://other.example"]
    numbers = text.replace("origins: {type: array", "origins: {type: array, items: {type: integer}")
    assert "resourceOrigins: must be a nonempty list of distinct texts" in problems(numbers, origins=[7])
    inside = EXAMPLE.replace(
        "match: {/type: record.updated}", 'match: {/type: "x-${{ github.aw.import-inputs.records }}"}'
    )
    assert "stands inside text and is no text" in problems(inside)
    single = EXAMPLE.replace(
        "match: {/type: record.updated}", 'match: {/type: "${{ github.aw.import-inputs.site[0] }}"}'
    )
    assert "must have exactly one value" in problems(single)
    unbound = EXAMPLE.replace("site: {type: string, required: true}", "site: {type: string}")
    with pytest.raises(ConfigError, match="the input site is not bound"):
        bind(load_connector(unbound, "example.md"), {"records": ["7"]}, ["record-updated"], "c.md")


@pytest.mark.parametrize(
    "expression",
    ["${{ secrets.X }}", "${{github.aw.import-inputs.\u0455ite}}", "${{ github.event.id }}", "a ${{ vars.X }} b"],
)
def test_no_other_expression_is_left_for_a_literal(expression: str) -> None:
    spoiled = EXAMPLE.replace("match: {/type: record.updated}", f'match: {{/type: "{expression}"}}')
    assert "another expression" in problems(spoiled)
    spoiled = EXAMPLE.replace("records: ${{ github.aw.import-inputs.records }}", f'records: ["{expression}"]', 1)
    assert "another expression" in problems(spoiled)
    assert "holds an expression" in problems(records=[expression])


@pytest.mark.parametrize(
    "value",
    [
        "evil.example/",
        "evil.example?",
        "evil.example#",
        "a/b",
        "..",
        ".",
        "a%2Fb",
        "a b",
        "a@evil.example",
        "\u0430cme",
        "a:1",
    ],
)
def test_an_input_inside_a_url_is_one_piece_of_it(value: str) -> None:
    """So that no `with` leads a reviewed origin or path elsewhere: `https://evil.example/.atlassian.net`."""
    text = EXAMPLE.replace(
        '"${{ github.aw.import-inputs.site }}"', '"https://${{ github.aw.import-inputs.site }}.example.net"'
    )
    text = text.replace(
        '"${{ github.aw.import-inputs.site }}/r', '"https://${{ github.aw.import-inputs.site }}.example.net/r'
    )
    assert bound(text, site="acme-1").triggers["record-updated"]["resourceOrigins"] == ["https://acme-1.example.net"]
    assert "stands for a piece of a URL" in problems(text, site=value)


def test_an_origin_that_is_none() -> None:
    for site in ("https://[", "//example.com", "https://example.com#a", "https://example.com:99999"):
        assert (
            "resourceOrigins" in problems(site=site)
            or "canonicalUrl" in problems(site=site)
            or "IPv6" in problems(site=site)
        )
    literal = EXAMPLE.replace('["${{ github.aw.import-inputs.site }}"]', "[7]")
    assert "nonempty list of distinct texts" in problems(literal)
    assert "resourceOrigins: is no list" in problems(EXAMPLE.replace('["${{ github.aw.import-inputs.site }}"]', "x"))


def test_a_default_may_name_another_input() -> None:
    text = EXAMPLE.replace(
        "site: {type: string, required: true}",
        'site: {type: string, default: "https://${{ github.aw.import-inputs.name }}.example"}\n  name: {type: string}',
    )
    connector = load_connector(text, "example.md")
    bound_ = bind(connector, {"records": ["7"], "name": "acme"}, ["record-updated"], "c.md")
    assert bound_.triggers["record-updated"]["canonicalUrl"] == "https://acme.example/r/{record}"
    with pytest.raises(ConfigError, match="the input site is not bound"):
        bind(connector, {"records": ["7"]}, ["record-updated"], "c.md")


def test_a_shape_without_its_input_is_left_out() -> None:
    text = EXAMPLE.replace(
        "        canonicalUrl:",
        '        urlShapes: ["${{ github.aw.import-inputs.old }}/{record}", "https://example.com/{record}"]\n        canonicalUrl:',
    ).replace("import-schema:\n", "import-schema:\n  old: {type: string}\n")
    assert bound(text).triggers["record-updated"]["urlShapes"] == ["https://example.com/{record}"]
    given = bound(text, old="https://old.example").triggers["record-updated"]
    assert given["urlShapes"] == ["https://old.example/{record}", "https://example.com/{record}"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "is empty"),
        (7, "is no list"),
        ([7], "no text; quote it"),
        ([""], "no text; quote it"),
        (["x" * 1025], "more than 1024 characters"),
    ],
)
def test_values_that_cannot_be_granted(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lower_values(values, {"string"})


def test_one_value_is_a_list_of_one_and_each_type_gets_its_own() -> None:
    assert lower_values("7", {"string"}) == ["7"]
    assert lower_values(["7", "8"], {"string", "integer"}) == [7, "7", 8, "8"]


@pytest.mark.parametrize("name", ["Record", "", "a" * 64, "a\n", "1a"])
def test_a_compiled_trigger_has_a_name(name: str) -> None:
    lowered = bound().triggers["record-updated"]
    with pytest.raises(ValueError, match="name does not match"):
        compile_trigger(name, lowered)


def test_a_template_over_forms_that_have_one_is_refused() -> None:
    lowered = dict(bound().triggers["record-updated"])
    url = lowered.pop("canonicalUrl")
    trigger = compile_trigger("t", {**lowered, "variants": [{"canonicalUrl": url}, {}]})
    assert trigger.needs_url_template
    with pytest.raises(ValueError, match="its own canonicalUrl"):
        trigger.with_url_template(url)
    bare = compile_trigger("t", lowered)
    assert not bare.with_url_template(url).needs_url_template
    with pytest.raises(ValueError, match="nobody is neither"):
        bare.with_url_template("https://example.com/{nobody}")


def test_an_alias_that_is_no_yaml() -> None:
    for text in ('a: "\\UFFFFFFFF"\n', 'a: "\\U00110000"\n'):
        with pytest.raises(ConfigError, match="a character that YAML forbids"):
            load_yaml(text, "x")
