"""One delivery from its provider to its admitted run: every process real, GitHub and its issuer played by doubles."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.demo import Stage
from gateway.doubles import oidc
from gateway.environment import data_folder
from gateway.subscriptions import seal
from tests.e2e.logs import until_logged

NODE = shutil.which("node")
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(NODE is None, reason="the action needs node")]

SOURCE, COMMIT = "linear-acme", "a" * 40
EXAMPLES = data_folder("subscriptions") / "examples"
DOCUMENT = EXAMPLES / "linear-issue-created.json"
ADMIT = Path(__file__).parents[2] / "deploy" / "actions" / "admit" / "admit.mjs"


class Destination(Stage):
    """The stage with an OIDC issuer, and a repository that holds its workflow."""

    issuer: oidc.Running

    async def _start_github(self) -> None:
        await super()._start_github()
        self.issuer = await self._stack.enter_async_context(oidc.running())
        document = json.loads(DOCUMENT.read_bytes())
        self.repository, self.workflow = document["repository"], document["workflow"]

    def _configure(self) -> None:
        super()._configure()
        file = self.folder / "gateway.toml"
        admission = f'[admission]\nissuer = "{self.issuer.address}"\njwks_url = "{self.issuer.jwks_url}"\n'
        file.write_text(file.read_text() + admission)

    async def double(self, what: str, change: dict[str, Any]) -> None:
        async with self.session.post(f"{self.github}/_double/{what}", json=change) as response:
            assert response.status == 204

    async def put(self, path: str, text: str | None) -> None:
        await self.double("contents", {"repo": self.repository, "path": path, "text": text})

    async def deliver(self) -> Any:
        """Send a new delivery; return the dispatch that the double took."""
        sample = next(sample for sample in self.samples if sample["source"] == SOURCE)
        headers, body = self.signed(sample, time.time())
        async with self.session.post(f"{self.public}/hooks/{SOURCE}", data=body, headers=headers) as response:
            assert response.status == 200
        return await self._dispatch()

    async def job(self, dispatched: Any, bot: int, folder: Path) -> tuple[int, dict[str, str], str]:
        """Run the action as a job of the workflow would."""
        document = json.loads(DOCUMENT.read_bytes())
        number, bearer = self.issuer.issuer.start_run(
            oidc.run_claims(
                repository=self.repository,
                repository_id=document["repository_id"],
                workflow=self.workflow,
                workflow_sha=COMMIT,
                actor_id=bot,
            )
        )
        body = dispatched["body"]
        event = {"action": body["event_type"], "client_payload": body["client_payload"], "sender": {"id": bot}}
        (folder / "event.json").write_text(json.dumps(event))
        (folder / "output").write_text("")
        shutil.copy(DOCUMENT, folder / "subscription.json")
        env = {
            "PATH": os.environ["PATH"],
            "GITHUB_EVENT_NAME": "repository_dispatch",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_WORKSPACE": str(folder),
            "GITHUB_REPOSITORY": self.repository,
            "GITHUB_REPOSITORY_ID": str(document["repository_id"]),
            "GITHUB_WORKFLOW_REF": f"{self.repository}/{self.workflow}@refs/heads/main",
            "GITHUB_RUN_ID": number,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.issuer.address}/token?run={number}",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": bearer,
            "INPUT_RECEIVER": self.public,
            "INPUT_SUBSCRIPTION": "subscription.json",
            "INPUT_SENDER-ID": str(bot),
            "INPUT_AUDIENCE-PREFIX": "gh-aw-gateway:",
        }
        process = await asyncio.create_subprocess_exec(
            NODE or "", str(ADMIT), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        found = re.findall(r"^(\w+)<<(\S+)\n(.*?)\n\2$", (folder / "output").read_text(), re.MULTILINE | re.DOTALL)
        return process.returncode or 0, {name: value for name, _, value in found}, out.decode()

    async def command(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *arguments, "--config", str(self.folder / "gateway.toml"),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def newest(self) -> Any:
        async with self.session.get(
            f"{self.admin}/api/v1/deliveries", params={"source": SOURCE, "limit": 1}
        ) as response:
            return (await response.json())["deliveries"][0]


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Destination]:
    async with Destination() as running:
        yield running


BOT = 200_000_001


async def test_from_the_provider_to_the_admitted_run(stage: Destination, tmp_path: Path) -> None:
    dispatched = await stage.deliver()
    code, outputs, text = await stage.job(dispatched, BOT, tmp_path)
    assert (code, outputs["admitted"]) == (0, "true"), text
    assert json.loads(outputs["events"]) == dispatched["body"]["client_payload"]["gateway"]["events"]
    record = await stage.newest()
    ident = dispatched["body"]["client_payload"]["gateway"]["dispatch"]
    assert record["outcome"] == "forwarded"
    assert record["dispatches"] == [{"id": ident, "status": "sent", "admitted": True}]
    code, outputs, text = await stage.job(dispatched, BOT, tmp_path)
    assert (code, outputs) == (0, {"admitted": "false", "events": "[]"}), text
    await until_logged(stage, event="admitted")
    assert "eyJ" not in (stage.folder / "gateway.log").read_text()


async def test_reconcile_suspends_a_changed_workflow_and_deliveries_are_ignored(stage: Destination) -> None:
    digest = json.loads(DOCUMENT.read_bytes())["digest"]
    code, text = await stage.command("reconcile", digest, "--json")
    (row,) = json.loads(text)["subscriptions"]
    assert (code, row["state"], row["reason"]) == (0, "active", None)
    await stage.put(stage.workflow, "on: push\n")
    code, text = await stage.command("reconcile", digest, "--json")
    (row,) = json.loads(text)["subscriptions"]
    assert code == 1
    assert row == {
        "digest": digest,
        "source": SOURCE,
        "repository": stage.repository,
        "state": "suspended",
        "reason": "workflow-hash",
    }
    await asyncio.sleep(1.2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await stage.deliver()
    record = await stage.newest()
    assert (record["outcome"], record["reason"]) == ("ignored", "suspended")
    assert record["subscriptions"][0]["test"] == "suspended"


async def test_a_rollover_by_the_commands(stage: Destination, tmp_path: Path) -> None:
    document = json.loads(DOCUMENT.read_bytes())
    await stage.put(stage.workflow, (EXAMPLES / stage.workflow).read_text())
    enroll = ("enroll", "--source", SOURCE, "--installation", "5001", "--json")
    code, text = await stage.command(*enroll, str(DOCUMENT))
    assert (code, json.loads(text)["enrollments"][0]["resumed"]) == (0, True)
    merged = (EXAMPLES / stage.workflow).read_text() + "# changed\n"
    del document["digest"]
    document["workflow_hash"] = "sha256:" + hashlib.sha256(merged.encode()).hexdigest()
    new = seal(document)
    changed = tmp_path / DOCUMENT.name  # the same name: the old document must not be overwritten
    changed.write_text(json.dumps(new))
    code, text = await stage.command(*enroll, str(changed))
    assert (code, json.loads(text)["enrollments"][0]["replaced"]) == (0, None)

    async def states() -> dict[str, str]:
        code, text = await stage.command("subscriptions", "--json")
        assert code == 0
        rows = [row for row in json.loads(text)["subscriptions"] if row["source"] == SOURCE]
        return {row["digest"]: row["reason"] or row["state"] for row in rows}

    old = json.loads(DOCUMENT.read_bytes())["digest"]
    assert await states() == {old: "active", new["digest"]: "workflow-pending"}
    await asyncio.sleep(3)  # the running receiver has noticed
    before = await stage.deliver()
    assert before["body"]["client_payload"]["gateway"]["subscription"] == old
    await stage.put(stage.workflow, merged)
    assert (await stage.command("reconcile", "--json"))[0] == 0
    assert await states() == {old: "workflow-superseded", new["digest"]: "active"}
    await asyncio.sleep(1.5)
    after = await stage.deliver()
    assert after["body"]["client_payload"]["gateway"]["subscription"] == new["digest"]
