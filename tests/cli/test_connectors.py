"""`gateway connectors` and `gateway profiles`: what they print can be used as it is, once it is filled in."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.environment import data_folder
from gateway.profiles import load_profiles
from gateway.subscriptions import facts_of

EXAMPLES = data_folder("subscriptions") / "examples/.github/workflows"
PROFILES = load_profiles(data_folder("profiles"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def checkout(folder: Path, name: str, text: str) -> Path:
    workflows = folder / ".github/workflows"
    (workflows / "connectors").mkdir(parents=True)
    (workflows / "aw.json").write_text('{"gateway-dispatch": true}')
    (workflows / "triage.lock.yml").write_text("name: triage\n")
    if name != "github":
        (workflows / f"connectors/{name}.md").write_text(run("connectors", "show", name, "--markdown").stdout)
    consumer = workflows / "triage.md"
    consumer.write_text(text)
    return consumer


def test_the_printed_declaration_is_what_a_workflow_imports(tmp_path: Path) -> None:
    consumer = checkout(tmp_path, "sentry", (EXAMPLES / "sentry-error-created.md").read_text())
    result = run("compile", consumer, "--repo", "acme/app")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["connector"] == "sentry"
    assert "slash-command" in run("connectors", "list").stdout


def test_a_connector_of_ones_own_is_shown_or_refused_with_the_place(tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    text = run("connectors", "show", "linear", "--markdown").stdout
    own.write_text(text.replace("linear:\n", "mine:\n", 1))
    assert run("connectors", "show", own).stdout.startswith("mine: for sources of the profile linear")
    assert run("connectors", "show", own, "--markdown").stdout == own.read_text()
    own.write_text(text.replace("nativeEvents", "nativeEvent", 1))
    result = run("connectors", "show", own)
    assert (result.exit_code, "nativeEvent" in result.output) == (2, True)
    assert run("connectors", "show", tmp_path / "none.md").exit_code == 2


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_says_where_its_identity_stands_and_what_it_establishes(name: str) -> None:
    text = run("profiles", "show", name).stdout
    for fact in facts_of(PROFILES[name]):
        assert f"@{fact}" in text
    for part in PROFILES[name].identity.values():
        assert f" at {part}" in text


def test_an_identity_that_was_left_to_fill_in_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAR_WEBHOOK_SECRET", "a-secret-of-some-length")
    source = run("profiles", "show", "linear").stdout.partition("\n\n")[2]
    file = tmp_path / "gateway.toml"
    key = "env:LINEAR_WEBHOOK_SECRET"
    file.write_text(f'[store]\nembedded = "store"\n[github]\napp_id = 1\nprivate_key = "{key}"\n{source}')
    result = run("check", "--config", file)
    assert result.exit_code == 2
    assert "sources.linear-acme.identity.organization: is still the placeholder ..." in result.output
