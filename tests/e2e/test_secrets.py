"""No secret's value anywhere: planted ones are looked for in every output, the log, the store's files and the processes."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from gateway.demo import Stage

pytestmark = pytest.mark.e2e
CANARY = "planted-canary"
WHSEC = "whsec_" + "cGxhbnRlZC1jYW5hcnktb2YtdGhpcnR5LXR3by1ieXRlcw=="  # base64 of a planted canary


class Planted(Stage):
    """A stage with a canary for every kind of secret that its own does not make, and one broken source beside."""

    def _configure(self) -> None:
        super()._configure()
        self._private("notify", WHSEC.encode())
        self._private("api", f"{CANARY}-api-token".encode())
        self._private("oauth", f"{CANARY}-oauth-secret".encode())
        self._private("basic", f"user:{CANARY}-basic".encode())
        lines = [
            "[notifications]",
            'url = "http://127.0.0.1:1/notify"',
            f'secret = "file:{self.folder}/notify"',
            "[sources.ado]",
            'profile = "azure-devops"',
            f'secrets = ["file:{self.folder}/basic"]',
            'identity = {collection = ["c"], project = ["p"]}',
            'api_url = "http://127.0.0.1:1"',
            f'api_token = "file:{self.folder}/api"',
            "[sources.graph]",
            'profile = "microsoft-graph"',
            f'secrets = ["file:{self.folder}/basic"]',
            'identity = {tenant = ["t"]}',
            'api_url = "http://127.0.0.1:1"',
            "[sources.graph.api_oauth]",
            'token_url = "http://127.0.0.1:1/token"',
            'client_id = "c"',
            f'client_secret = "file:{self.folder}/oauth"',
            'scope = "s"',
        ]
        text = (self.folder / "gateway.toml").read_text()
        text = text.replace("[server]", '[server]\npublic_url = "https://hooks.invalid"', 1)
        (self.folder / "gateway.toml").write_text(text + "\n".join(lines) + "\n")

    def values(self) -> list[str]:
        """Each secret, and what is sent or derived from it."""
        pem = (self.folder / "app.pem").read_text().splitlines()[1:-1]
        return [CANARY, WHSEC, WHSEC[6:30], self.operator_token, *pem, *(one.decode() for one in self.secrets.values())]


COMMANDS = (
    "check", "doctor", "doctor --json", "subscriptions --json", "deliveries --json", "dead list", "asks", "audit --json",
    "wire ado", "wire graph", "wire linear-acme", "wire slack-acme", "wire slack-acme --json", "wire ado --check",
    "deliver ado", "deliver graph", "deliver linear-acme", "reconcile", "explain nothing", "replay nothing",
)  # fmt: skip


async def run(stage: Stage, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *arguments, "--config", str(stage.folder / "gateway.toml")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 90)
    return out.decode()


def command_lines(folder: Path) -> str:
    """What the process list shows of every process that is ours by its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(line for line in found if str(folder) in line)


async def test_no_secret_is_in_any_output_log_store_or_process_list() -> None:
    async with Planted() as stage:
        lines = [line async for line in stage.lines()]
        assert lines
        linear = next(sample for sample in stage.samples if sample["source"] == "linear-acme")
        headers, body = stage.signed(linear, time.time())
        for name, value in (("linear-signature", CANARY), ("authorization", f"Bearer {CANARY}"), ("x-own", CANARY)):
            given = {**headers, name: value}
            async with stage.session.post(f"{stage.public}/hooks/linear-acme", data=body, headers=given) as answer:
                assert CANARY not in await answer.text()
                assert CANARY not in str(answer.headers)
        given = {"authorization": f"Bearer {CANARY}"}
        for url in (f"{stage.public}/admission", f"{stage.admin}/api/v1/dead/replay"):
            async with stage.session.post(url, json={"dispatch": CANARY}, headers=given) as answer:
                assert answer.status in (400, 401, 403, 404, 405)
                assert CANARY not in await answer.text()
        shown = {command: await run(stage, *command.split()) for command in COMMANDS}
        assert {command for command, text in shown.items() if "Traceback" in text} == set()
        async with stage.session.get(f"{stage.admin}/metrics") as answer:
            shown["/metrics"] = await answer.text()
        for path in ("deliveries", "sources", "subscriptions", "dead", "asks"):
            async with stage.session.get(f"{stage.admin}/api/v1/{path}") as answer:
                shown[path] = await answer.text()
        shown["log"] = (stage.folder / "gateway.log").read_text()
        shown["process list"] = command_lines(stage.folder)
        assert "gateway" in shown["process list"]
        files = [file for file in (stage.folder / "store").rglob("*") if file.is_file() and not file.is_socket()]
        assert any("aof" in file.name for file in files)
        shown["store"] = "\n".join(file.read_bytes().decode(errors="replace") for file in files)
        leaks = {where: value[:24] for where, text in shown.items() for value in stage.values() if value in text}
        assert leaks == {}
        json.loads(shown["doctor --json"])
