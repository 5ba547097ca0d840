"""What the documents show must work: JSON and TOML blocks parse, envelopes validate, links and commands exist."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gateway import envelope
from gateway.cli import main
from gateway.cli.connectors import load_connectors
from gateway.compile import Target, compile_documents
from gateway.declarations import connector_from
from gateway.errors import ConfigError
from gateway.frontmatter import Document, load_yaml
from gateway.lowering import bind
from gateway.predicates import _Compiler
from gateway.profiles import load_profiles
from gateway.selections import Import
from gateway.structs import replace
from gateway.triggers import TRIGGER_FIELDS, compile_trigger
from gateway.words import TESTS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGET = Target("acme/app", ".github/workflows/a.lock.yml", "sha256:" + "0" * 64)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_and_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for kind, block in BLOCK.findall(text):
        if kind == "toml":
            tomllib.loads(block)
        elif kind == "json":
            document = json.loads(block)
            if "client_payload" in document:
                envelope.validate(document)
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), target


def test_the_declarations_page_compiles() -> None:
    """Whole connectors are bound, the consumer selects of the first, and each fragment is laid over its trigger."""
    text = (ROOT / "docs/declarations.md").read_text(encoding="utf-8")
    blocks = [load_yaml(block, "page").value for kind, block in BLOCK.findall(text) if kind == "yaml"]
    whole = [connector_from(Document("page", block)) for block in blocks if "connectors" in block]
    (consumer,) = [block for block in blocks if "on" in block]
    (with_,) = [entry["with"] for entry in consumer["imports"]]
    [document] = compile_documents(Document("page", consumer), [Import(whole[0], with_)], TARGET)
    assert document["grants"] == {"sites": ["s-1"], "boards": [7, 8]}
    assert document["filters"] == {"labels": ["urgent"]}
    assert document["triggers"]["card-moved"]["canonicalUrl"] == "https://tracker.example/b/{board}/c/{card}"
    [created] = bind(whole[1], {"name": "acme", "boards": ["b1"]}, ["card-created"], "page").triggers.values()
    assert created["canonicalUrl"] == "https://acme.tracker.example/b/b1/c/{card}"
    assert created["when"] == {"in": ["/data/list", ["inbox"]]}
    with pytest.raises(ConfigError, match="one subscription each"):
        bind(whole[1], {"name": "acme", "boards": ["b1", "b2"]}, ["card-created"], "page")
    fragments = [block for block in blocks if not {"connectors", "on"} & set(block)]
    assert {key for block in fragments for key in block} >= {"when", "extract", "normalize", "variants"}
    for fragment in fragments:
        laid = replace(whole[0], triggers={"card-moved": {**whole[0].triggers["card-moved"], **fragment}})
        [lowered] = bind(laid, with_, ["card-moved"], "page").triggers.values()
        assert compile_trigger("card-moved", lowered).forms
    for name in (*TRIGGER_FIELDS, *(f"`{name}" for name in _Compiler()._tests)):
        assert name in text, name


def shown_consumers(page: str) -> list[Mapping[str, Any]]:
    """The workflows' frontmatter that a page shows, alone or as Markdown."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    texts = [
        block if kind == "yaml" else block.split("---\n")[1] for kind, block in blocks if kind in ("yaml", "markdown")
    ]
    return [value for text in texts if "on" in (value := load_yaml(text, page).value)]


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/triggers.md"])
def test_the_workflows_that_are_shown_compile(page: str) -> None:
    shown = shown_consumers(page)
    assert shown
    for consumer in shown:
        imports = [
            Import(load_connectors()[Path(entry["uses"]).stem], entry["with"]) for entry in consumer.get("imports", [])
        ]
        assert len(compile_documents(Document("page", consumer), imports, TARGET)) == 1


def test_the_triggers_page_names_every_test_that_explaining_names() -> None:
    text = (ROOT / "docs/triggers.md").read_text(encoding="utf-8")
    found = set(re.findall(r'_Nonmatch\(f?"([a-z]+)', (ROOT / "gateway/match.py").read_text(encoding="utf-8")))
    assert {"types", "url", "when", "filters"} <= found
    for test in {*found, *TESTS}:
        assert f"`{test}`" in text or f"`{test}:" in text, test


def test_the_readme_names_every_command_and_no_other() -> None:
    named = set(re.findall(r"`gateway ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named == set(main.commands)


def test_every_profile_has_a_page_with_steps_and_limits() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "providers").glob("*.md")}
    index = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    for profile in load_profiles(ROOT / "profiles").values():
        own = [
            name for name, text in pages.items() if f'profile = "{profile.name}"' in text or f"`{profile.name}`" in text
        ]
        assert own, profile.name
    for name, text in pages.items():
        assert f"providers/{name}" in index, name
        assert "## Connect" in text, name
        assert "## What is proven, and what is not" in text, name
        assert "Sources: <https://" in text, name


def test_the_sample_workflow_uses_the_action_as_it_is() -> None:
    yaml = YAML(typ="safe")
    action = yaml.load(ROOT / "deploy/actions/admit/action.yml")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/destination.md").read_text(), re.MULTILINE | re.DOTALL)
    job = yaml.load(text)["jobs"]["admit"]
    step = next(step for step in job["steps"] if step.get("id") == "gateway")
    required = {name for name, spec in action["inputs"].items() if spec["required"]}
    assert required <= set(step["with"]) <= set(action["inputs"])
    assert set(job["outputs"]) == set(action["outputs"])
    assert job["permissions"] == {"contents": "read", "id-token": "write"}


def test_the_documents_list_every_reason_of_admission() -> None:
    text = (ROOT / "docs/destination.md").read_text()
    reasons = set()
    for name in ("oidc", "admission"):
        reasons |= set(re.findall(r'Rejection\("([a-z-]+)"', (ROOT / f"gateway/{name}.py").read_text()))
    assert {reason for reason in reasons if f"`{reason}`" not in text} == set()


def test_a_plain_workflow_is_set_up_as_the_page_says(tmp_path: Path) -> None:
    """The commands of docs/destination.md, in their order, until the compiled document fits the workflow."""
    page = (ROOT / "docs/destination.md").read_text(encoding="utf-8")
    workflow = tmp_path / ".github/workflows/triage.yml"
    setup, compiled = re.findall(r"^   ```\n(.*?)^   ```", page, re.MULTILINE | re.DOTALL)
    plain = re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert plain
    gateway = f'gateway() {{ PYTHONPATH={ROOT} {sys.executable} -m gateway "$@"; }}\nset -eu\n'

    def run(script: str) -> str:
        return subprocess.run(
            ["bash", "-c", gateway + script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
        ).stderr

    run(setup.replace("=...", "=11111111-1111-4111-8111-111111111111").replace("GATEWAY", str(ROOT)))
    workflow.write_text(plain[1])
    assert "would not start" in run(compiled)
    document = json.loads((tmp_path / ".github/gateway/triage.json").read_bytes())
    workflow.write_text(plain[1].replace("gateway-triage-REPLACE", document["event_type"]))
    assert "would not start" not in run(compiled)
    assert (tmp_path / ".github/actions/admit/action.yml").is_file()
