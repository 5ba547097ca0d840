"""What the documents show must work: JSON and TOML blocks parse, envelopes validate, links and commands exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gateway import envelope
from gateway.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
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


def test_the_readme_names_every_command_and_no_other() -> None:
    named = set(re.findall(r"`gateway ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named == set(main.commands)


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
