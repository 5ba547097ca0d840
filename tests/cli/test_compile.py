"""`gateway compile`: where the documents are written, and what is said beside them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.environment import data_folder

EXAMPLES = data_folder("subscriptions") / "examples"
TWO = """---
on:
  gateway-dispatch:
    linear: [issue-created]
    projects-items: {types: [edited]}
    projects: [PVT_a]
imports:
  - uses: .github/workflows/connectors/linear.md
    with: {workspace: acme, organizations: [o], teams: [t]}
---
"""


@pytest.fixture
def workflows(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / ".github", tmp_path / "app/.github")
    folder = tmp_path / "app/.github/workflows"
    (folder / "two.md").write_text(TWO)
    (folder / "two.lock.yml").write_text("name: two\n")
    return folder


def compiled(consumer: Path, *more: str | Path) -> Result:
    return CliRunner().invoke(main, ["compile", str(consumer), "--repo", "acme/app", *map(str, more)])


def test_several_documents_need_a_folder(workflows: Path, tmp_path: Path) -> None:
    result = compiled(workflows / "two.md", "-o", tmp_path / "two.json")
    assert result.exit_code == 2
    assert "several connectors (linear, github) make a file each: name a folder" in result.output
    assert not (tmp_path / "two.json").exists()
    assert compiled(workflows / "two.md", "-o", tmp_path / "two").exit_code == 0
    assert {json.loads(file.read_bytes())["connector"] for file in (tmp_path / "two").iterdir()} == {"linear", "github"}


def test_what_would_keep_it_from_starting_is_noted(workflows: Path) -> None:
    result = compiled(workflows / "linear-issue-created.md")
    assert (result.exit_code, "note:" in result.stderr) == (0, False)
    event_type = json.loads(result.stdout)["event_type"]
    (workflows / "linear-issue-created.lock.yml").write_text("name: other\n")
    result = compiled(workflows / "linear-issue-created.md")
    assert (result.exit_code, event_type in result.stderr) == (0, True)
    connector = workflows / "connectors/linear.md"
    connector.write_text(connector.read_text().replace("verificationProfile: linear", "verificationProfile: lineer"))
    result = compiled(workflows / "linear-issue-created.md")
    assert "issue-created wants the profile lineer, and none has that name" in result.stderr
    assert (
        "projects-items-edited has no URL of its own: enroll it with --url-template"
        in compiled(workflows / "two.md").stderr
    )
