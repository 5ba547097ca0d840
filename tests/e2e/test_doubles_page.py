"""docs/doubles.md, typed as it stands: every command of the page works, and its dispatch arrives at the double."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("node") is None, reason="the action needs node")
def test_the_page_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs/doubles.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ports = {port: str(free_port()) for port in ("8090", "8091", "8092", "8080", "8081")}
    script = re.sub("|".join(ports), lambda found: ports[found[0]], "".join(blocks))
    (tmp_path / "bin").mkdir()
    for name, command in (("gateway", f'{sys.executable} -m gateway "$@"'), ("python", f'{sys.executable} "$@"')):
        shim = tmp_path / "bin" / name
        shim.write_text(f"#!/bin/sh\nexec {command}\n")
        shim.chmod(0o755)
    (tmp_path / "subscriptions").symlink_to(ROOT / "subscriptions")
    lines = ["set -eu", "trap 'kill $(jobs -p); wait' EXIT", script, "echo; gateway subscriptions --json"]
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    (sent,) = [json.loads(line)["dispatches"] for line in done.stdout.splitlines() if line.startswith('{"dispatches"')]
    assert [one["repo"] for one in sent] == ["acme/app"]
    assert re.search(r"^created +team/", done.stdout, re.MULTILINE)
    assert re.search(r"forwarded  > \S+ sent", done.stdout)
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"exit"')]
    ended = [(run["exit"], run["outputs"]["admitted"]) for run in runs]
    assert ended == [(0, "true"), (0, "false"), (0, "true"), (1, "false"), *[(1, "false")] * 7, (0, "true")], told
    assert runs[0]["run_id"] == runs[2]["run_id"] != runs[1]["run_id"]
    assert json.loads(runs[0]["outputs"]["events"]) == sent[0]["client_payload"]["gateway"]["events"]
    assert "the sender is not the gateway App's bot user" in done.stderr
    refusals = re.findall(r"the receiver refused this run \(HTTP (\d+), ([a-z-]+):", done.stderr)
    assert refusals == [
        ("403", "repository"),
        ("403", "workflow"),
        ("403", "ref"),
        ("403", "event"),
        ("403", "environment"),
        ("403", "sender"),
        ("401", "audience"),
    ]
    assert "add-mask" not in told
    assert "ignored (suspended)" in done.stdout
    assert "unprocessable" in done.stdout
    assert "1 queued again" in done.stdout
    rows = json.loads(done.stdout.splitlines()[-1])["subscriptions"]
    assert [(row["state"], row["reason"]) for row in rows] == [("active", None)]
