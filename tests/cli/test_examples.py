"""Every example that `--help` shows runs as it is shown, on a machine where what it names is there."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.environment import data_folder
from tests.operating import LINEAR, write
from tests.test_reference import leaves
from tests.valkey import PrivateValkey

ELSEWHERE = {"gateway serve", "gateway demo"}  # these go on until they are ended; tests/e2e runs them
EXAMPLES = {path: str(command.epilog) for path, command in leaves(main) if path not in ELSEWHERE}
MADE_UP = re.compile(r"019a2b4c-7d00-7000-8000-000000000001|sha256:0f3c5b81")


@pytest.fixture
def desk(server: PrivateValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_SECRET", "long-enough-a-secret")
    source = ["[sources.github-acme]", 'profile = "github"', 'secrets = ["env:GITHUB_SECRET"]']
    source += ['api_url = "http://127.0.0.1:1"', 'api_token = "env:GITHUB_SECRET"']
    more = ["[server]", 'public_url = "https://hooks.invalid"']
    config = write(tmp_path, server.url, source=source, more=more)
    text = config.read_text().partition("[[enrollments]]")[0]
    text = re.sub(r'path = ".*"', 'path = "subscriptions/enrolled"', text)
    github = json.loads((data_folder("subscriptions") / "examples" / "github-issue-opened.json").read_bytes())
    enrolled = tmp_path / "subscriptions" / "enrolled"
    enrolled.mkdir(parents=True)
    (enrolled / "github.json").write_text(json.dumps(github))
    (enrolled / "triage.json").write_text(json.dumps(LINEAR))
    entry = '[[enrollments]]\nsubscription = "{}"\nsource = "{}"\ninstallation = 11\n'
    (enrolled / "github.toml").write_text(entry.format(github["digest"], "github-acme"))
    (enrolled / "triage.toml").write_text(entry.format(LINEAR["digest"], "linear-acme"))
    config.write_text(text.replace("[github]\n", '[github]\napi_url = "http://127.0.0.1:1"\n', 1))
    (tmp_path / "triage.json").write_text(json.dumps(LINEAR))
    shutil.copytree(data_folder("subscriptions") / "examples" / ".github", tmp_path / ".github")
    for suffix in (".md", ".lock.yml"):
        shutil.copy(
            tmp_path / f".github/workflows/linear-issue-created{suffix}", tmp_path / f".github/workflows/triage{suffix}"
        )
    sample = json.loads((data_folder("subscriptions") / "samples" / "linear.json").read_bytes())
    (tmp_path / "delivery.json").write_text(json.dumps(sample["body"]))
    (tmp_path / "headers.json").write_text(json.dumps(sample["headers"]))
    event = {"id": "uri:" + "0" * 64, "url": "https://linear.app/a", "types": ["issue-created"], "filters": {}}
    (tmp_path / "dispatch.json").write_text(json.dumps({"gateway": {"events": [event]}}))
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_is_a_good_call(desk: Path, path: str) -> None:
    """Exit 1 (such a dispatch is not there) and 3 (nobody listens here) are answers; 2 would be a wrong call."""
    line = EXAMPLES[path].removeprefix("Example: gateway ").partition(" >")[0]
    arguments = [word.replace("/etc/gateway/", f"{desk}/") for word in shlex.split(line)]
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 3), done.output
    if not MADE_UP.search(line) and path not in (
        "gateway deliver",
        "gateway wire",
        "gateway doctor",
        "gateway envelope check",
        "gateway reconcile",
    ):
        assert done.exit_code == 0, done.output
    if "--json" in arguments:
        json.loads(done.stdout or "{}")
