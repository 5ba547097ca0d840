"""The pages say what the code does: every provider has one, their examples load, and no link leads nowhere."""

import re
import tomllib
from pathlib import Path

import pytest

from gateway.environment import data_folder
from gateway.profiles import JwtProof, load_profiles
from gateway.settings import SourceSettings

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "providers").glob("*.md"))
PROFILES = load_profiles(data_folder("profiles"))
ALL = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_provider_page_has_its_parts_and_its_example_loads(page: Path) -> None:
    text = page.read_text()
    for part in ("## Connect", "## What is proven, and what is not", "Sources: <https://"):
        assert part in text, part
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    for name, table in tomllib.loads(example)["sources"].items():
        source = SourceSettings.model_validate(table)
        profile = PROFILES[source.profile]
        assert source.identity.keys() <= profile.identity.keys()
        assert set(profile.identity) - set(profile.identity_optional) <= source.identity.keys()
        assert bool(source.secrets) != isinstance(profile.proof, JwtProof)
        assert f"/hooks/{name}" in text or f"gateway wire {name}" in text


def test_every_profile_has_a_page() -> None:
    named = {name for page in PAGES for name in re.findall(r"`([a-z-]+)`", page.read_text()) if name in PROFILES}
    assert named == set(PROFILES)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_inside_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_files_that_the_pages_name_exist() -> None:
    for page in ALL:
        for named in re.findall(r"`((?:deploy|docs|profiles|tests|gateway)/[\w./-]+)`", page.read_text()):
            assert (ROOT / named).exists(), f"{page.name}: {named}"
