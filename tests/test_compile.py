"""The compiler: the same input gives the same bytes, and whatever it is given ends in documents or in ConfigError."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import families
from gateway.compile import Target, compile_documents, compile_file, encode
from gateway.declarations import Connector, connector_from, load_connector
from gateway.errors import ConfigError
from gateway.frontmatter import Document, load_frontmatter, load_yaml
from gateway.selections import Import
from gateway.structs import replace
from gateway.subscriptions import load_subscription

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "subscriptions/examples"
WORKFLOWS = sorted((EXAMPLES / ".github/workflows").glob("*.md"))
TARGET = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64, 1)
CONNECTORS = {
    path.stem: load_connector(path.read_text(), path.name) for path in ROOT.glob("subscriptions/connectors/*")
}
WITH: dict[str, dict[str, Any]] = {
    "linear": {"workspace": "acme", "organizations": ["o"], "teams": ["t", "u"]},
    "gitlab": {"projects": ["7", "15"]},
    "sentry": {"organization": "acme", "projects": ["7"]},
    "jira": {"site": "https://acme.atlassian.net", "projects": ["APP"]},
}


def compiled(on: Any, bindings: Any = None, target: Target = TARGET) -> tuple[dict[str, Any], ...]:
    imports = [Import(CONNECTORS[name], with_) for name, with_ in (bindings or WITH).items()]
    return compile_documents(Document("c.md", {"on": on}), imports, target)


# ---- the same input, the same bytes -----------------------------------------------------------------------------------


def shuffled(data: st.DataObject, mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: mapping[key] for key in data.draw(st.permutations(list(mapping)))}


@st.composite
def selections(draw: st.DrawFn) -> dict[str, Any]:
    """What a consumer may select: some triggers of some connectors, and some families."""
    on: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(WITH)), unique=True)):
        on[name] = draw(st.lists(st.sampled_from(sorted(CONNECTORS[name].triggers)), min_size=1, unique=True))
    for family in draw(st.lists(st.sampled_from(sorted(set(families.FAMILIES) - {"projects-items"})), max_size=2)):
        on[family] = {
            "types": draw(st.lists(st.sampled_from(families.FAMILIES[family].activities), min_size=1, unique=True))
        }
    if set(on) & set(families.FAMILIES):
        on["repos"] = ["a/b", "a/c"]
    return on or {"linear": ["issue-created"]}


@settings(max_examples=150)
@given(selections(), st.data())
def test_the_order_of_members_changes_no_byte(on: dict[str, Any], data: st.DataObject) -> None:
    first = [encode(one) for one in compiled({"gateway-dispatch": on})]
    bindings = {name: shuffled(data, dict(with_)) for name, with_ in shuffled(data, WITH).items()}
    again = [encode(one) for one in compiled({"gateway-dispatch": shuffled(data, on)}, bindings)]
    assert first == again
    for one in first:
        assert encode(dict(load_subscription(one, "d").document)) == one


def test_no_hash_seed_changes_a_byte() -> None:
    script = (
        "import sys, pathlib; from gateway.compile import compile_file, encode\n"
        "for path in sys.argv[1:]:\n"
        "    for one in compile_file(pathlib.Path(path), 'acme/app', repository_id=1296269):\n"
        "        sys.stdout.buffer.write(encode(one))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script, *map(str, WORKFLOWS)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {b"".join((EXAMPLES / f"{path.stem}.json").read_bytes() for path in WORKFLOWS)}


# ---- whatever it is given ---------------------------------------------------------------------------------------------

LEAVES = st.sampled_from(
    [None, True, 0, 7, 2**70, 1.5, "", "a", "/a", "{a}", "*", "@x", "\x00", "\ud800", "https://x.example", "${{ github.aw.import-inputs.site }}",
     "${{ github.aw.import-inputs.records }}", "https://[", "<<", "a/b", "${{ github.aw.import-inputs.states }}/{record}"]
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "from", "pattern", "/a", "url", "equals", "types", "type"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
CONNECTOR = load_yaml(
    """
connectors:
  example:
    resources: {records: "${{ github.aw.import-inputs.records }}", states: ["open"]}
    triggers:
      record-updated:
        verificationProfile: [standard-webhooks]
        nativeEvents: [record.updated]
        match: {/type: record.updated}
        when: {in: [/data/state, "${{ github.aw.import-inputs.states }}"]}
        extract: {from: /data/name, pattern: "{left}-{right}"}
        normalize: {record: /data/id, state: /data/state, url: [{from: /url}, {template: "https://x.example/r/{record}"}]}
        types: {record: integer, state: string}
        resources: {record: records}
        filters: {states: state}
        literals: {site: null}
        resourceOrigins: ["${{ github.aw.import-inputs.site }}"]
        canonicalUrl: "${{ github.aw.import-inputs.site }}/r/{record}"
        urlShapes: ["${{ github.aw.import-inputs.site }}/records/{record}"]
        variants: [{when: {present: /a}}, {when: {not: {present: /a}}, match: {/b: 1}, types: {left: string}}]
import-schema:
  records: {type: array, items: {type: string}, default: ["7"]}
  states: {type: array, default: [open], items: {enum: [open, closed]}}
  site: {type: string, required: true}
""",
    "example.md",
).value
CONSUMER: dict[str, Any] = {
    "on": {
        "gateway-dispatch": {
            "example": {"triggers": ["record-updated"], "filters": {"states": ["open"]}},
            "issue": {"types": ["opened"]},
            "slash-command": {"names": ["triage"]},
            "projects-items": {"types": ["edited"], "projects": ["PVT_a"]},
            "repos": ["a/b"],
            "orgs": ["a"],
        },
        "roles": "all",
    },
    "imports": [{"uses": ".github/example.md", "with": {"records": ["7"], "site": "https://x.example"}}],
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in members:
        yield (*at, key)
        yield from places(item, (*at, key))


def spoiled(data: st.DataObject, value: Any) -> Any:
    """Replace, remove, add or rename something somewhere."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, key = data.draw(st.sampled_from(list(places(value))))
        parent = value
        for step in path:
            parent = parent[step]
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace":
            parent[key] = data.draw(JSON)
        elif what == "remove" and len(parent) > 1:
            del parent[key]
        elif isinstance(parent, dict):
            parent[data.draw(st.sampled_from(["a", "url", "variants", "<<", "/x", "default", "enum", "A"]))] = (
                data.draw(JSON)
            )
        else:
            parent.append(data.draw(JSON))
    return value


@settings(max_examples=2500)
@given(st.data())
def test_a_spoiled_declaration_compiles_or_is_refused(data: st.DataObject) -> None:
    declaration, consumer = spoiled(data, CONNECTOR), CONSUMER
    if data.draw(st.booleans()):
        consumer = spoiled(data, CONSUMER)
    try:
        connector = connector_from(Document("example.md", declaration))
        with_ = {
            "records": data.draw(JSON),
            "site": data.draw(st.sampled_from(["https://x.example", "https://x.example/b"])),
        }
        imports = [Import(connector, with_ if data.draw(st.booleans()) else WITH_EXAMPLE)]
        documents = compile_documents(Document("c.md", consumer), imports, TARGET)
    except ConfigError as error:
        assert all(problem.problem and problem.fix for problem in error.problems)  # noqa: PT017 (either end is good)
        return
    for document in documents:
        assert load_subscription(encode(document), "d").document == document


WITH_EXAMPLE = {"records": ["7"], "site": "https://x.example"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    (root / ".github/workflows").mkdir(parents=True)
    (root / ".github/workflows/aw.json").write_text('{"gateway-dispatch": true}')
    (root / ".github/workflows/c.lock.yml").write_text("name: c\n")
    (root / ".github/example.md").write_text(f"---\n{json.dumps(CONNECTOR)}\n---\n")
    return root


@settings(max_examples=600)
@given(st.data())
def test_any_text_as_a_consumer_compiles_or_is_refused(checkout: Path, data: st.DataObject) -> None:
    text = json.dumps(spoiled(data, CONSUMER)) if data.draw(st.booleans()) else data.draw(st.text())
    at = data.draw(st.integers(0, len(text)))
    cut = (
        text[:at]
        + data.draw(st.sampled_from(["", "", "\\", "*", "&a ", "%", ": ", "\t", "\x00", "\U0001f600"]))
        + text[at:]
    )
    consumer = checkout / ".github/workflows/c.md"
    consumer.write_bytes(f"---\n{cut}\n---\n".encode("utf-8", "surrogatepass"))
    try:
        assert compile_file(consumer, "acme/app")
    except ConfigError as error:
        assert error.problems  # noqa: PT017 (either end is good)


@settings(max_examples=1500)
@given(st.text() | st.text("ab:-[]{}#&*!|>'\"%@`,?\\x0uU~ \t\n<=.1eE+\u2028\ufeff\ud800", max_size=40))
def test_any_text_is_yaml_or_is_refused(text: str) -> None:
    for whole in (text, f"a: {text}", f'a: "{text}"', f"---\n{text}\n---\n"):
        for load in (load_yaml, load_frontmatter):
            try:
                assert isinstance(load(whole, "x").value, dict)
            except ConfigError as error:
                assert error.problems  # noqa: PT017


# ---- what a consumer may not say --------------------------------------------------------------------------------------


def refused(on: Any, imports: list[Import] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        compile_documents(Document("c.md", {"on": on}), [] if imports is None else imports, TARGET)
    return str(caught.value)


def made(name: str, trigger: str) -> Connector:
    declaration = copy.deepcopy(dict(CONNECTOR))
    [declared] = declaration["connectors"].pop("example")["triggers"].values()
    resources = CONNECTOR["connectors"]["example"]["resources"]
    declaration["connectors"][name] = {"resources": resources, "triggers": {trigger: declared}}
    return connector_from(Document(f"{name}.md", declaration))


def test_a_qualified_name_that_two_connectors_share_is_ambiguous() -> None:
    imports = [Import(made("a", "b-c"), WITH_EXAMPLE), Import(made("a-b", "c"), WITH_EXAMPLE)]
    assert "ambiguous between two connectors" in refused({"a-b-c": None}, imports)


def test_a_qualified_name_beside_the_route_selects_once() -> None:
    on = {"gateway-dispatch": {"linear": ["issue-created"]}, "linear-issue-created": {}}
    assert compiled(on) == compiled({"gateway-dispatch": {"linear": ["issue-created"]}})


def test_a_filter_on_a_granted_collection_only_narrows() -> None:
    connector = made("x", "t")
    raw = {**connector.triggers["t"], "filters": {"records": "record"}}
    one = Import(replace(connector, triggers={"t": raw}), {"records": ["7", "8"], "site": "https://x.example"})
    on: Any = {"gateway-dispatch": {"x": {"triggers": ["t"], "filters": {"records": ["8"]}}}}
    [document] = compile_documents(Document("c.md", {"on": on}), [one], TARGET)
    assert (document["grants"]["records"], document["filters"]) == ([7, 8], {"records": [8]})
    on["gateway-dispatch"]["x"]["filters"]["records"] = ["9"]
    assert "a value outside the grant, and filters only narrow" in refused(on, [one])


def test_a_filter_is_a_mapping_of_lists() -> None:
    one = [Import(CONNECTORS["linear"], WITH["linear"])]
    assert "is no mapping" in refused(
        {"gateway-dispatch": {"linear": {"triggers": ["issue-created"], "filters": []}}}, one
    )


def test_a_value_without_a_canonical_form_is_refused() -> None:
    one = [Import(CONNECTORS["linear"], {**WITH["linear"], "teams": ["\ud800"]})]
    assert "has no canonical form" in refused({"gateway-dispatch": {"linear": ["issue-created"]}}, one)


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        ("imports: x", "is no list"),
        ("imports: [7]", "has no uses"),
        ("imports: [{use: x}]", "has no uses"),
        ("imports: [{uses: .github/example.md, with: []}]", "is no {uses, with}"),
        ("imports: [{uses: .github/example.md, as: x}]", "is no {uses, with}"),
        ('imports: [".github/\\0.md"]', "not inside .github/"),
        ("imports: [.github]", "not inside .github/"),
        ("imports: [.github/workflows]", "cannot be read"),
        ("imports: [{uses: .github/example.md, with: null}]", "with.site: line 2: is required"),
    ],
)
def test_imports_that_are_none(checkout: Path, imports: str, words: str) -> None:
    consumer = checkout / ".github/workflows/c.md"
    consumer.write_text(f"---\n{imports}\non: {{gateway-dispatch: {{example: [record-updated]}}}}\n---\n")
    with pytest.raises(ConfigError) as caught:
        compile_file(consumer, "acme/app")
    assert words in str(caught.value)


def test_an_import_without_connectors_is_none_of_ours(checkout: Path) -> None:
    (checkout / ".github/tools.md").write_text("---\ntools: {}\n---\n")
    consumer = checkout / ".github/workflows/c.md"
    consumer.write_text(
        "---\nimports: [.github/tools.md]\non: {gateway-dispatch: {issue: {types: [opened]}, repos: [a/b]}}\n---\n"
    )
    [document] = compile_file(consumer, "acme/app", workflow_hash="sha256:" + "1" * 64)
    assert document["workflow_hash"] == "sha256:" + "1" * 64


def test_a_consumer_stands_in_a_repository(tmp_path: Path) -> None:
    consumer = tmp_path / "c.md"
    consumer.write_text("---\non: push\n---\n")
    with pytest.raises(ConfigError, match="stands in no repository"):
        compile_file(consumer, "acme/app")
