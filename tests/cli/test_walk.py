"""`enroll --interactive` on a real terminal: each answer is checked at once, and nothing is written before the yes."""

import json
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.cli.desk import EXAMPLES, LINEAR, Desk
from tests.terminal import Terminal

REPOSITORY = "Repository that runs the workflow"
INSTALLATION = "App installation"
WORKFLOW = "Workflow in a checkout"


@pytest.fixture
def ready(desk: Desk, github: str) -> Desk:
    """A desk with GitHub's double and a checkout of the repository."""
    desk.configure(github)
    shutil.copytree(EXAMPLES / ".github", desk.folder / "checkout/.github")
    return desk


def change(github: str, what: str, **values: Any) -> None:
    request = urllib.request.Request(f"{github}/_double/{what}", json.dumps(values).encode(), method="POST")
    with urllib.request.urlopen(request) as response:
        assert response.status < 300


def begin(desk: Desk) -> Terminal:
    return Terminal("enroll", "--interactive", "--config", desk.config, cwd=desk.folder)


def answer(terminal: Terminal, *dialogue: tuple[str, str]) -> None:
    for question, line in dialogue:
        terminal.expect(question)
        terminal.type(line)


LINEAR_MD = "checkout/.github/workflows/linear-issue-created.md"
PLACE = ((REPOSITORY, "acme/app"), (INSTALLATION, "5001"))


def test_a_newcomer_is_walked_to_an_enrollment(ready: Desk) -> None:
    with begin(ready) as terminal:
        terminal.expect("Nothing is written before the last question")
        assert "linear-other" in terminal.expect("Source:")
        terminal.type("9")
        terminal.expect("answer with a number from 1 to 3, or a name")
        answer(terminal, ("Source:", "linear-acme"))
        terminal.expect("Connector: linear (issue-created")
        answer(terminal, (REPOSITORY, "acme"))
        terminal.expect("is written OWNER/NAME")
        answer(terminal, (REPOSITORY, "acme/app"), (INSTALLATION, "many"))
        terminal.expect("is a number")
        answer(terminal, (INSTALLATION, "5001"))
        terminal.expect("GitHub spells it Acme/App")
        answer(terminal, (WORKFLOW, "nowhere.md"))
        terminal.expect("is no file")
        answer(terminal, (WORKFLOW, "checkout/.github/workflows/gitlab-merge-request-opened.md"))
        terminal.expect("selects nothing of linear, but of gitlab")
        answer(terminal, (WORKFLOW, LINEAR_MD), ("Mode", "sometimes"))
        answer(terminal, ("Mode", "ask"))
        terminal.expect("This would be enrolled:")
        shown = terminal.expect("Enroll it?")
        assert "linear: issue-created" in shown
        assert "5001 (" in shown
        assert not ready.enrolled.exists()
        terminal.type("y")
        assert terminal.code() == 0, terminal.text
        assert "next: gateway wire linear-acme" in terminal.text
    (row,) = ready.rows()
    assert (row["source"], row["repository"], row["installation"]) == ("linear-acme", "Acme/App", 5001)
    written = {file.name: file.read_bytes() for file in ready.files()}
    assert tomllib.loads(written["linear-issue-created.toml"].decode())["enrollments"][0]["mode"] == "ask"
    # the commands that were shown do the same
    shutil.rmtree(ready.enrolled)
    compiling, enrolling = [line.strip() for line in shown.splitlines() if line.startswith("  gateway ")]
    for command in (compiling, enrolling):
        arguments = [sys.executable, "-m", *shlex.split(command)]
        subprocess.run(
            arguments, cwd=ready.folder, check=True, capture_output=True, env={"PYTHONPATH": str(Path.cwd())}
        )
    assert {file.name: file.read_bytes() for file in ready.files()} == written


def test_no_and_ctrl_c_write_nothing(ready: Desk) -> None:
    with begin(ready) as terminal:
        answer(terminal, ("Source:", "1"), *PLACE, (WORKFLOW, LINEAR_MD), ("Mode", ""), ("Enroll it?", ""))
        assert terminal.code() == 1
        assert "nothing was written" in terminal.text
    with begin(ready) as terminal:
        answer(terminal, ("Source:", "1"), (REPOSITORY, "\x03"))
        assert terminal.code() == 1
        assert "Aborted!" in terminal.text
    assert not ready.enrolled.exists()


def test_what_github_does_not_allow_is_asked_again(ready: Desk, github: str) -> None:
    with begin(ready) as terminal:
        answer(terminal, ("Source:", "linear-acme"), (REPOSITORY, "acme/app"), (INSTALLATION, "6"))
        terminal.expect("the App has no installation 6")
        answer(terminal, (REPOSITORY, "acme/elsewhere"), (INSTALLATION, "5001"))
        terminal.expect("does not show acme/elsewhere")
        change(github, "installation", id=5001, permissions={"metadata": "read"})
        answer(terminal, *PLACE)
        terminal.expect("lacks the permission contents: write")
        change(github, "installation", id=5001, permissions={"metadata": "read", "contents": "write"}, suspended=True)
        answer(terminal, (REPOSITORY, ""), (INSTALLATION, ""))
        terminal.expect("is suspended on GitHub")
        change(github, "installation", id=5001, suspended=False)
        answer(terminal, (REPOSITORY, ""), (INSTALLATION, ""))
        terminal.expect(WORKFLOW)


def test_a_document_that_cannot_be_enrolled_is_asked_for_again(ready: Desk) -> None:
    assert (
        ready.run("compile", ready.folder / LINEAR_MD, "--repo", "Acme/App", "-o", ready.folder / "a.json").exit_code
        == 0
    )
    assert ready.enroll(ready.folder / "a.json").exit_code == 0
    with begin(ready) as terminal:
        answer(terminal, ("Source:", "linear-other"), *PLACE, (WORKFLOW, LINEAR_MD))
        terminal.expect("Not possible: sha256:")
        answer(terminal, (WORKFLOW, str(LINEAR)))
        terminal.expect("is acme/app, not Acme/App")
        broken = ready.folder / "checkout/.github/workflows/broken.md"
        broken.write_text(Path(ready.folder / LINEAR_MD).read_text().replace("issue-created", "issue-eaten"))
        answer(terminal, (WORKFLOW, str(broken)))
        terminal.expect("broken.lock.yml does not stand beside it")
        answer(terminal, ("Workflow file that runs", ".github/workflows/linear-issue-created.lock.yml"))
        terminal.expect("issue-eaten")
        terminal.expect("fix: ")
        terminal.expect(WORKFLOW)


def test_a_key_that_github_refuses_ends_it_before_any_question(ready: Desk, github: str) -> None:
    ready.config.write_text(ready.config.read_text().replace("app_id = 1001", "app_id = 1002"))
    with begin(ready) as terminal:
        assert terminal.code() == 2
        assert "GitHub does not accept the App's key" in terminal.text
        assert "Source" not in terminal.text
    ready.configure(f"{github}/elsewhere")
    with begin(ready) as terminal:
        assert terminal.code() == 2
        assert "github.api_url: answers not-found to the App" in terminal.text


def test_without_a_terminal_the_commands_are_named(desk: Desk) -> None:
    result = desk.run("enroll", "--interactive")
    assert result.exit_code == 2
    assert "needs a terminal" in result.stderr
    assert "gateway enroll DOCUMENT.json --source SOURCE --installation N" in result.stderr
    assert not desk.enrolled.exists()


@pytest.mark.parametrize("more", [(str(LINEAR),), ("--source", "linear-acme"), ("--mode", "ask"), ("--json",)])
def test_it_takes_no_answers_beside_the_questions(desk: Desk, more: tuple[str, ...]) -> None:
    result = desk.run("enroll", "--interactive", *more)
    assert result.exit_code == 2
    assert "asks for everything" in result.stderr


def test_what_is_missing_is_named_at_once(desk: Desk) -> None:
    result = CliRunner().invoke(main, ["enroll", "--config", str(desk.config)])
    assert result.exit_code == 2
    assert "missing FILE, --source, --installation" in result.stderr
    assert "--interactive" in result.stderr
