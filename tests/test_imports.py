"""What is imported where: a count that no busy machine changes."""

import subprocess
import sys

import pytest

from gateway.cli import COMMANDS, main

HEAVY = (
    "aiohttp", "cryptography", "hypercorn", "jinja2", "jsonschema_rs", "jwt", "opentelemetry", "prometheus_client", "pydantic",
    "redis", "rich", "ruamel.yaml", "starlette", "tomlkit", "uvicorn",
)  # fmt: skip


def imported(code: str) -> set[str]:
    """Run code in a fresh interpreter; return which of the heavy modules it has imported."""
    asked = f"import sys\n{code}\nprint('MODULES', *[name for name in {HEAVY!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    return set(shown.rpartition("MODULES")[2].split())


def test_help_imports_nothing_heavy() -> None:
    code = "from gateway.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert imported(code) == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_says_what_each_command_says(name: str) -> None:
    assert main.commands[name].name == name
    assert main.commands[name].get_short_help_str(200) == COMMANDS[name][1]


def test_a_server_imports_what_its_role_uses() -> None:
    serving = imported("import gateway.server")
    assert serving.isdisjoint({"rich", "tomlkit", "uvicorn"})
