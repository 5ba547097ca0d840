"""One delivery from its provider to its admitted run: every process real, GitHub and its issuer played by doubles."""

import asyncio
import contextlib
import hashlib
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.demo import Stage
from gateway.doubles import oidc, runner
from gateway.environment import data_folder
from gateway.subscriptions import seal
from tests.e2e.logs import until_logged

NODE = shutil.which("node")
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(NODE is None, reason="the action needs node")]

SOURCE, BOT = "linear-acme", 200_000_001
EXAMPLES = data_folder("subscriptions") / "examples"
DOCUMENT = EXAMPLES / "linear-issue-created.json"


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

    async def job(self, dispatched: Any, folder: Path) -> runner.Step:
        """Run the action as a job of the workflow would."""
        document = json.loads(DOCUMENT.read_bytes())
        number = document["repository_id"]
        query = {"dispatch": dispatched["body"]["client_payload"]["gateway"]["dispatch"]}
        async with self.session.get(f"{self.github}/_double/event", params=query) as response:
            event = await response.json()
        async with self.session.get(f"{self.github}/_double/state") as response:
            state = await response.json()
        claims = oidc.run_claims(
            repository=self.repository,
            repository_id=number,
            workflow=self.workflow,
            workflow_sha=state["heads"][self.repository],
            actor_id=event["sender"]["id"],
        )
        run, bearer = self.issuer.issuer.start_run(claims)
        token_url = f"{self.issuer.address}/token?run={run}"
        return await runner.step(
            runner.Run(self.repository, number, self.workflow, run, token_url, bearer),
            json.dumps(event),
            {"receiver": self.public, "subscription": str(DOCUMENT), "sender-id": str(BOT)},
            workspace=folder,
        )

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


async def test_from_the_provider_to_the_admitted_run(stage: Destination, tmp_path: Path) -> None:
    dispatched = await stage.deliver()
    step = await stage.job(dispatched, tmp_path)
    assert (step.code, step.outputs["admitted"]) == (0, "true"), step.log
    assert json.loads(step.outputs["events"]) == dispatched["body"]["client_payload"]["gateway"]["events"]
    record = await stage.newest()
    ident = dispatched["body"]["client_payload"]["gateway"]["dispatch"]
    assert record["outcome"] == "forwarded"
    (shown,) = record["dispatches"]
    assert (shown["id"], shown["status"], shown["admitted"]) == (ident, "sent", True)
    code, text = await stage.command("deliveries", "--limit", "1")
    assert (code, f"> {ident} sent, admitted (run {shown['run']})" in text) == (0, True), text
    step = await stage.job(dispatched, tmp_path)
    assert (step.code, step.outputs) == (0, {"admitted": "false", "events": "[]"}), step.log
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
