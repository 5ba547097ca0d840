"""Shells complete the names of the configuration and of what is shipped; a profile says where an identity is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.cli.desk import Desk


def test_profiles_say_where_each_identity_is_found() -> None:
    text = CliRunner().invoke(main, ["profiles", "show", "slack"]).stdout
    assert "# identity.workspace, needed: in a delivery /team_id" in text
    assert "the token's cloud" in CliRunner().invoke(main, ["profiles", "show", "forge"]).stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("wire lin", ["linear-acme", "linear-other"]),
        ("deliver g", ["github-acme"]),
        ("deliveries --source linear-o", ["linear-other"]),
        ("dead replay --source git", ["github-acme"]),
        ("enroll x.json --source ", ["linear-acme", "linear-other", "github-acme"]),
        ("profiles show gitlab-", ["gitlab-signing", "gitlab-token"]),
        ("connectors config s", ["sentry", "servicenow", "slack"]),
        ("wire [", []),
    ],
)
def test_a_shell_completes_names(desk: Desk, line: str, offered: list[str]) -> None:
    assert complete(desk.folder, line) == offered


def test_a_broken_configuration_completes_nothing(desk: Desk) -> None:
    desk.config.write_text("[")
    assert complete(desk.folder, "wire lin") == []


def complete(folder: Path, line: str) -> list[str]:
    words = ["gateway", *line.split(" ")]
    environment = {**os.environ, "_GATEWAY_COMPLETE": "bash_complete", "PYTHONPATH": str(Path.cwd())}
    environment |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "import sys; sys.argv = ['gateway']; from gateway.cli import main; main(prog_name='gateway')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [one.removeprefix("plain,") for one in done.stdout.split()]
