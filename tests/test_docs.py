"""What the documents show must work: JSON and TOML blocks parse, envelopes validate, links and commands exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest

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
