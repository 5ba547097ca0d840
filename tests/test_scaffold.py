"""`gateway connectors config`: refused with every reason while a binding is missing; what it prints loads and compiles."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.configuration import load_configuration
from gateway.environment import data_folder
from tests.operating import write

SUBSCRIPTIONS = data_folder("subscriptions")
BOUND = {
    "linear": {"workspace": ["acme"], "organizations": ["11111111-1111-4111-8111-111111111111"], "teams": ["t1", "t2"]},
    "jira": {"site": ["https://acme.atlassian.net"], "projects": ["OPS"]},
    "azure-devops": {"organization": ["acme"], "collections": ["c"], "projects": ["p"]},
    "slack": {
        "origin": ["https://acme.slack.com"],
        "workspaces": ["T1"],
        "apps": ["A1"],
        "channels": ["C1"],
        "threads": ["1.2"],
    },
    "teams": {"tenants": ["t"], "teams": ["g"], "channels": ["19:a@thread.tacv2"]},
    "confluence": {
        "site": ["acme"],
        "clouds": ["c"],
        "spaces": ["7"],
        "app": ["ari:cloud:ecosystem::app/1"],
        "installation": ["ari:cloud:ecosystem::installation/1"],
        "environment": ["PRODUCTION"],
    },
    "sentry": {"organization": ["acme"], "projects": ["7"], "installation": ["u"]},
    "servicenow": {"instances": ["acme.service-now.com"], "records": ["9d385017c611228701d22104cc95c371"]},
    "gitlab": {"projects": ["15"]},
    "github": {"repos": ["acme/app"]},
}
SECRETS = {"azure-devops": "user:long-password", "servicenow": "whsec_" + "A" * 43 + "="}
SECRETS["gitlab"] = SECRETS["servicenow"]
MORE = {
    "azure-devops": {"closed-states": ["Done"]},
    "github": {"names": ["fix", "ship-it"]},
}  # what some triggers need beyond


def config(name: str, bindings: dict[str, list[str]], *more: str) -> Result:
    bound = [f"--bind={key}={value}" for key, values in bindings.items() for value in values]
    return CliRunner().invoke(main, ["connectors", "config", name, *bound, *more])


def test_every_connector_is_here() -> None:
    assert BOUND.keys() == {"github"} | {file.stem for file in (SUBSCRIPTIONS / "connectors").glob("*.md")}


@pytest.mark.parametrize("name", BOUND)
def test_what_is_printed_loads_in_check(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = config(name, BOUND[name])
    assert done.exit_code == 0, done.output
    file = write(tmp_path, "redis://127.0.0.1:1/0")
    file.write_text(file.read_text().partition("[[enrollments]]")[0] + done.stdout)
    monkeypatch.setenv(f"{name.upper().replace('-', '_')}_ACME_SECRET", SECRETS.get(name, "long-enough-a-secret"))
    if name == "linear":
        file.write_text(file.read_text().replace("[sources.linear-acme]", "[sources.other]", 1))
    checked = CliRunner().invoke(main, ["check", "--config", str(file)])
    assert checked.exit_code == 0, checked.output
    assert f"{name}-acme" in load_configuration(file).sources


@pytest.mark.parametrize("name", BOUND)
def test_its_workflow_compiles_with_every_trigger(name: str, tmp_path: Path) -> None:
    triggers = ["issue-opened", "pull-request-ready-for-review", "slash-command"]
    if name != "github":
        shown = json.loads(CliRunner().invoke(main, ["connectors", "show", name, "--json"]).stdout)["connectors"][0]
        triggers = [trigger["name"] for trigger in shown["triggers"]]
    bindings = BOUND[name] | MORE.get(name, {})
    done = config(name, bindings, "--workflow", *(f"--trigger={trigger}" for trigger in triggers))
    assert done.exit_code == 0, done.output
    workflows = tmp_path / ".github" / "workflows"
    (workflows / "connectors").mkdir(parents=True)
    for file in (SUBSCRIPTIONS / "connectors").glob("*.md"):
        (workflows / "connectors" / file.name).write_bytes(file.read_bytes())
    (workflows / "aw.json").write_text('{"gateway-dispatch": true}')
    (workflows / "triage.lock.yml").write_text("on: repository_dispatch\n")
    (workflows / "triage.md").write_text(done.stdout)
    compiled = CliRunner().invoke(main, ["compile", str(workflows / "triage.md"), "--repo", "acme/app"])
    assert compiled.exit_code == 0, compiled.output
    assert set(json.loads(compiled.stdout)["triggers"]) == set(triggers)


@pytest.mark.parametrize(("name", "left_out"), [(name, key) for name, bound in BOUND.items() for key in bound])
def test_each_missing_binding_refuses_and_is_named(name: str, left_out: str) -> None:
    bindings = {key: values for key, values in BOUND[name].items() if key != left_out}
    done = config(name, bindings, "--workflow")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--bind {left_out}: is missing" in done.stderr
    assert f"--bind {left_out}=" in done.stderr


def test_all_that_is_missing_is_told_at_once() -> None:
    done = config("linear", {})
    assert {line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("--bind")} == {
        "--bind organizations",
        "--bind workspace",
        "--bind teams",
    }
    shown = CliRunner().invoke(main, ["connectors", "show", "confluence"]).stdout
    assert "installation" in shown
    listed = json.loads(CliRunner().invoke(main, ["connectors", "show", "confluence", "--json"]).stdout)["connectors"]
    assert set(listed[0]["unbound"]) == set(BOUND["confluence"])


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("linear", ["--bind=x=y"], "--bind x: is no binding of it"),
        ("linear", ["--bind=workspace=other"], "takes one value"),
        ("linear", ["--trigger=nope"], "nope is no trigger of linear"),
        ("linear", ["--bind=x"], "not NAME=VALUE"),
        ("linear", ["--secret=planted-value"], "must be a reference"),
        ("linear", ["--source=No Name"], "use a-z"),
        ("linear", ["--profile=github"], "none of linear"),
        ("confluence", ["--secret=env:X"], "takes no secrets"),
        ("github", ["--workflow", "--trigger=nope"], "nope is no trigger of github"),
        ("github", ["--workflow", "--trigger=slash-command"], "--bind names: is missing"),
        ("github", ["--workflow", "--trigger=slash-command", "--bind=names=/fix"], '"/fix" is no command'),
        ("github", ["--workflow", "--bind=names=fix"], "--bind names: is for slash commands"),
        ("jira", ["--bind=projects=x", "--bind=site=x"], "takes one value"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, more: list[str], said: str) -> None:
    done = config(name, BOUND[name], *more)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "planted-value" not in done.output


def test_a_bad_value_is_refused_as_compile_would() -> None:
    done = config("gitlab", {"projects": ["not-a-number"]})
    assert (done.exit_code, "--bind projects: " in done.stderr) == (2, True)


def test_json_has_both() -> None:
    (row,) = json.loads(config("github", BOUND["github"], "--json", "--source=gh").stdout)["connectors"]
    assert tomllib.loads(row["source"])["sources"]["gh"]["profile"] == "github"
    assert "issue: {types" in row["workflow"]
