"""Progress is for people: on a terminal alone, and never beside JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operating import write
from tests.terminal import Terminal
from tests.valkey import PrivateValkey


@pytest.fixture
def config(server: PrivateValkey, tmp_path: Path) -> Path:
    return write(
        tmp_path,
        server.url,
        more=[
            "[github]",
            "app_id = 4711",
            'api_url = "http://127.0.0.1:1"',
            f'private_key = "file:{tmp_path}/app.pem"',
        ],
    )


def test_a_terminal_shows_that_the_command_works_and_keeps_the_findings(config: Path) -> None:
    with Terminal("doctor", "--config", config) as terminal:
        assert terminal.code() == 1
        assert "looking" in terminal.text
        assert "\x1b[2K" in terminal.raw  # the bar is wiped
        assert terminal.text.count("store: ") == 1
        assert "check(s)" in terminal.text


def test_json_on_a_terminal_is_json_alone(config: Path) -> None:
    with Terminal("doctor", "--json", "--config", config) as terminal:
        terminal.code()
        assert json.loads(terminal.raw)["checks"]


def test_without_a_terminal_nothing_is_shown(config: Path) -> None:
    command = [sys.executable, "-m", "gateway", "doctor", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
