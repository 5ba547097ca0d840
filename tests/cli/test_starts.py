"""Whether the enrolled workflow would start for what is dispatched, as `enroll` tells it."""

import hashlib
import json
import urllib.request

import pytest

from gateway.checkout import start_problem
from gateway.subscriptions import event_type_for
from tests.cli.desk import LINEAR, Desk
from tests.valkey import PrivateValkey

WORKFLOW = json.loads(LINEAR.read_bytes())["workflow"]


def test_a_workflow_that_would_not_start_is_told_once_it_is_compared(
    desk: Desk, github: str, server: PrivateValkey
) -> None:
    def put(path: str, text: str) -> None:
        body = json.dumps({"repo": "Acme/App", "path": path, "text": text}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{github}/_double/contents", body)) as answer:
            assert answer.status == 204

    desk.configure(github)
    desk.config.write_text(desk.config.read_text().replace('embedded = "store"', f'url = "{server.url}"'))
    path, event_type = WORKFLOW, event_type_for("Acme/App", WORKFLOW)
    wanted = f"{path} would not start: under on.repository_dispatch.types it wants {event_type}"
    put(".github/workflows/aw.json", '{"gateway-dispatch": true}')
    for types, starts in (("[another]", False), (f"[another, {event_type}]", True)):
        text = f"on:\n  repository_dispatch:\n    types: {types}\n"
        put(path, text)
        hashed = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        file = desk.document(repository_id=None, repository="Acme/App", event_type=event_type, workflow_hash=hashed)
        told = desk.enroll(file)
        assert told.exit_code == 0, told.output
        assert (f"warning: {wanted}; then compile and enroll it again" in told.stderr) is not starts
        again = json.loads(desk.enroll(file, "linear-acme", "--json").stdout)["enrollments"][0]
        assert (again["state"], bool(again["note"])) == ("active", not starts)


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("on: repository_dispatch", True),
        ("on: [push, repository_dispatch]", True),
        ("on:\n  repository_dispatch:", True),
        ("'on':\n  repository_dispatch:\n    types: gateway-x", True),
        ("on:\n  repository_dispatch:\n    types:\n      - other\n      - gateway-x", True),
        ("on: push # gateway-x", False),
        ("on: [push]", False),
        ("on:\n  push:\n", False),
        ("on:\n  repository_dispatch:\n    types: [gateway-xy] # gateway-x", False),
        ("name: x", False),
        ("on: !tag\n  gateway-x", True),  # not for us to read
        ("on: !tag\n  gateway-y", False),
        ("\xff", False),
    ],
)
def test_what_starts_a_workflow(text: str, *, starts: bool) -> None:
    problem = start_problem(text.encode("latin-1"), "w.yml", "gateway-x")
    assert problem == (
        None if starts else "w.yml would not start: under on.repository_dispatch.types it wants gateway-x"
    )
