"""What an operator does to a running receiver: enroll, revoke, reload, deliver, explain; each by the command."""

import asyncio
import base64
import html
import json
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.demo import KID, Stage, make_secret
from gateway.environment import data_folder
from tests.e2e.logs import lines, until_logged

pytestmark = pytest.mark.e2e
EXAMPLES = data_folder("subscriptions") / "examples"


class Operator:
    """Runs commands against a stage's configuration."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.config = stage.folder / "gateway.toml"
        self.enrolled = stage.folder / "enrolled"

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *arguments, "--config", str(self.config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def rows(self) -> list[dict[str, Any]]:
        code, out, _ = await self.run("subscriptions", "--json")
        assert code == 0
        rows: list[dict[str, Any]] = json.loads(out)["subscriptions"]
        return rows


async def outcome(stage: Stage, source: str) -> str:
    sample = next(one for one in stage.samples if one["source"] == source)
    headers, body = stage.signed(sample, time.time())
    async with stage.session.post(f"{stage.public}/hooks/{source}", data=body, headers=headers) as response:
        assert response.status in (200, 202)
        delivery = response.headers["gateway-delivery"]
    for _ in range(100):
        async with stage.session.get(f"{stage.admin}/api/v1/deliveries", params={"source": source}) as response:
            rows = (await response.json())["deliveries"]
        for row in rows:
            if row["id"] == delivery:
                return str(row["outcome"])
        await asyncio.sleep(0.05)
    raise AssertionError("no record")


async def test_revoke_and_enroll_again_are_noticed_by_the_running_receiver() -> None:
    async with Stage() as stage:
        operator = Operator(stage)
        document = EXAMPLES / "linear-issue-created.json"
        digest = json.loads(document.read_bytes())["digest"]
        assert {row["state"] for row in await operator.rows()} == {"active"}
        assert await outcome(stage, "linear-acme") == "forwarded"
        seen = len(lines(operator.stage))
        code, _, err = await operator.run("revoke", digest)
        assert code == 0, err
        await until_logged(operator.stage, event="reloaded", after=seen)
        assert await outcome(stage, "linear-acme") == "ignored"
        assert digest not in {row["digest"] for row in await operator.rows()}
        assert (await operator.run("revoke", digest))[0] == 1
        for _ in range(2):  # twice: it is the same enrollment
            seen = len(lines(operator.stage))
            enroll = ("enroll", str(document), "--source", "linear-acme", "--installation", "5001")
            code, out, err = await operator.run(*enroll)
            assert code == 0, err
            await until_logged(operator.stage, event="reloaded", after=seen)
            assert [row["state"] for row in await operator.rows() if row["digest"] == digest] == ["active"]
        assert "already" in out
        assert await outcome(stage, "linear-acme") == "forwarded"


async def test_a_reload_drops_no_request_and_a_bad_one_keeps_the_old_set() -> None:
    async with Stage() as stage:
        operator = Operator(stage)
        sample = next(one for one in stage.samples if one["source"] == "linear-acme")
        statuses: list[int] = []
        stop = asyncio.Event()

        async def load(session: aiohttp.ClientSession) -> None:
            while not stop.is_set():
                headers, body = stage.signed(sample, time.time())
                async with session.post(f"{stage.public}/hooks/linear-acme", data=body, headers=headers) as response:
                    statuses.append(response.status)

        loaders = [asyncio.create_task(load(stage.session)) for _ in range(8)]
        for _ in range(5):
            seen = len(lines(operator.stage))
            stage.receiver.send_signal(signal.SIGHUP)
            await until_logged(operator.stage, event="reloaded", after=seen)
        text = operator.config.read_text()
        operator.config.write_text(text + "\n[nonsense]\nx = 1\n")
        seen = len(lines(operator.stage))
        stage.receiver.send_signal(signal.SIGHUP)
        assert (await until_logged(operator.stage, event="reload-refused", after=seen))["key"] == "nonsense"
        operator.config.write_text(text)
        # a document that was changed by hand: it never activates, and what ran goes on
        changed = operator.enrolled / "linear-issue-created.json"
        document = json.loads(changed.read_bytes())
        document["grants"]["teams"].append("another-team")
        seen = len(lines(operator.stage))
        changed.write_text(json.dumps(document))
        assert "digest" in (await until_logged(operator.stage, event="reload-refused", after=seen))["key"]
        rows = [row for row in await operator.rows() if row["source"] == "linear-acme"]
        assert [row["state"] for row in rows] == ["mismatched"]
        assert "does not match" in rows[0]["reason"]
        assert await outcome(stage, "linear-acme") == "forwarded"
        seen = len(lines(operator.stage))
        shutil.copy(EXAMPLES / "linear-issue-created.json", changed)
        await until_logged(operator.stage, event="reloaded", after=seen)
        stop.set()
        await asyncio.gather(*loaders)
        assert len(statuses) > 100
        assert set(statuses) == {200}


async def test_deliver_then_deliveries_then_explain() -> None:
    async with Stage() as stage:
        operator = Operator(stage)
        code, out, err = await operator.run("deliver", "linear-acme", "--json")
        assert code == 0, err
        [sent] = json.loads(out)["deliveries"]
        code, out, err = await operator.run("deliveries", "--source", "linear-acme", "--json")
        assert code == 0, err
        [row] = json.loads(out)["deliveries"]
        assert (row["id"], row["outcome"]) == (sent["delivery"], "forwarded")
        code, out, err = await operator.run("explain", sent["delivery"], "--json")
        assert code == 0, err
        explained = json.loads(out)
        assert explained["outcome"] == "forwarded"
        assert [(one["trigger"], one["matched"]) for one in explained["explanations"]] == [("issue-created", True)]
        assert (await operator.run("explain", "no-such-id"))[0] == 1
        code, _, err = await operator.run("deliver", "confluence-acme")
        assert (code, "--key" in err) == (2, True)
        assert (await operator.run("deliver", "linear-acme", "--url", "http://127.0.0.1:1"))[0] == 3
        body = stage.folder / "body.json"
        body.write_text(
            json.dumps(next(s for s in stage.samples if s["source"] == "linear-acme")["body"] | {"organizationId": "x"})
        )
        code, _, err = await operator.run("deliver", "linear-acme", "--file", str(body))
        assert code == 1, err


class Wide(Stage):
    """A stage with a source of every shipped profile, and for those that sign with a private key, one of ours."""

    def _configure(self) -> None:
        super()._configure()
        self.ed25519 = Ed25519PrivateKey.generate()
        self.forge_pem, self.ed25519_pem = self.folder / "forge.pem", self.folder / "ed25519.pem"
        for file, key in ((self.forge_pem, self.forge_key), (self.ed25519_pem, self.ed25519)):
            file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        raw = self.ed25519.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        have = {sample["profile"] for sample in self.samples}
        lines = []
        for profile in self.profiles.values():
            if profile.name in have:
                continue
            secret = raw.hex().encode() if profile.name == "discord" else make_secret(profile)
            self._private(f"{profile.name}-own", secret)
            lines += [f"[sources.{profile.name}-own]", f'profile = "{profile.name}"']
            lines.append(f'secrets = ["file:{self.folder}/{profile.name}-own"]')
            lines += [
                f'identity.{name} = ["ours"]' for name in profile.identity if name not in profile.identity_optional
            ]
        self._private("public", b"whpk_" + base64.b64encode(raw))
        lines += ["[sources.public-own]", 'profile = "standard-webhooks"', f'secrets = ["file:{self.folder}/public"]']
        with (self.folder / "gateway.toml").open("a") as toml:
            toml.write("\n".join(lines) + "\n")


async def test_deliver_signs_as_the_provider_of_every_profile() -> None:
    """What ships with a connector fires; the others are authentic, and nothing wants them."""
    async with Wide() as stage:
        operator = Operator(stage)
        expected = {sample["source"]: "forwarded" for sample in stage.samples}
        expected |= {f"{name}-own": "ignored" for name in stage.profiles} | {"public-own": "ignored"}
        with_key = {
            "confluence-acme": ("--key", str(stage.forge_pem), "--kid", KID),
            "discord-own": ("--key", str(stage.ed25519_pem)),
            "public-own": ("--key", str(stage.ed25519_pem)),
        }
        sources = tomllib.loads(operator.config.read_text())["sources"]
        assert {source["profile"] for source in sources.values()} == set(stage.profiles)
        outcomes, wanted = {}, {name: expected[name] for name in sources}
        for name in sources:
            code, out, err = await operator.run("deliver", name, "--json", *with_key.get(name, ()))
            assert code == 0, (name, out, err)
            delivery = json.loads(out)["deliveries"][0]["delivery"]
            code, out, err = await operator.run("explain", delivery, "--json")
            outcomes[name] = json.loads(out)["outcome"]
            if name in with_key:
                assert (await operator.run("deliver", name))[0] == 2
        assert outcomes == wanted


class Mirrored(Stage):
    """Two sources list somebody as themselves, by an id and by a login; nothing says who our App's bot user is."""

    def _configure(self) -> None:
        super()._configure()
        file = self.folder / "gateway.toml"
        text = file.read_text()
        for source, who in (("linear-acme", "an-actor"), ("github-acme", "our-robot")):
            text = text.replace(f"[sources.{source}]\n", f'[sources.{source}]\nself = ["{who}"]\n')
        file.write_text(text)


async def test_what_we_caused_ourselves_starts_nothing_and_every_place_says_so(tmp_path: Path) -> None:
    """Our App's bot user, whose id the gateway learns from GitHub; a login and an id in a source's `self`."""
    words = "Caused by our own App or by an id in the source's self: it would start a loop."
    cases: list[tuple[str, dict[str, Any]]] = [
        ("github-acme", {"sender": {"id": 200_000_001, "login": "gateway-double[bot]", "type": "Bot"}}),
        ("github-acme", {"sender": {"id": 9, "login": "our-robot", "type": "User"}}),
        ("linear-acme", {"actor": {"id": "an-actor", "type": "user", "name": "A", "url": "https://linear.app/acme"}}),
    ]
    async with Mirrored() as stage:
        operator = Operator(stage)
        token = {"token": stage.operator_token}
        async with stage.session.post(f"{stage.admin}/login", data=token, allow_redirects=False) as response:
            cookie = response.headers["set-cookie"].partition(";")[0]
        for source, members in cases:
            sample = next(one for one in stage.samples if one["source"] == source)
            mine = sample | {"body": sample["body"] | members}
            headers, body = stage.signed(mine, time.time())
            async with stage.session.post(f"{stage.public}/hooks/{source}", data=body, headers=headers) as response:
                assert response.status == 200
                delivery = response.headers["gateway-delivery"]
            record: dict[str, Any] = {}
            for _ in range(200):
                async with stage.session.get(f"{stage.admin}/api/v1/deliveries/{delivery}") as response:
                    if response.status == 200:
                        record = await response.json()
                        break
                await asyncio.sleep(0.05)
            assert (record["outcome"], record["reason"], record["subscriptions"]) == ("ignored", "own-event", []), (
                members
            )
            told = await operator.run("explain", delivery)
            assert (told[0], told[1].startswith(f"{source} ignored: own-event\n    {words}")) == (0, True), told
            saved = tmp_path / "saved.json"
            saved.write_bytes(body)
            (tmp_path / "headers.json").write_text(json.dumps(headers))
            file = ("explain", "--source", source, "--file", str(saved), "--headers", str(tmp_path / "headers.json"))
            told = await operator.run(*file)
            assert (told[0], told[1].startswith(f"ignored: own-event\n    {words}")) == (0, True), told
            page = f"{stage.admin}/deliveries/{delivery}"
            async with stage.session.get(page, headers={"cookie": cookie}) as response:
                assert words in html.unescape(await response.text())
        async with stage.session.get(f"{stage.github}/_double/dispatches") as response:
            assert (await response.json())["dispatches"] == []


async def test_a_revocation_ends_what_was_suspended_before_the_receiver_has_read_its_folder() -> None:
    async with Stage() as stage:
        operator = Operator(stage)
        document = json.loads((EXAMPLES / "linear-issue-created.json").read_bytes())

        async def opt_in(text: str | None) -> None:
            change = {"repo": document["repository"], "path": ".github/workflows/aw.json", "text": text}
            async with stage.session.post(f"{stage.github}/_double/contents", json=change) as response:
                assert response.status == 204

        for suspend in (True, False):
            if suspend:
                failing = {"repo": document["repository"], "on": "dispatch", "answers": [{"status": 500}] * 9}
                async with stage.session.post(f"{stage.github}/_double/script", json=failing) as response:
                    assert response.status == 204
                assert await outcome(stage, "linear-acme") == "forwarded"
                await opt_in(None)
                assert (await operator.run("reconcile", document["digest"]))[0] == 1
                await opt_in('{"gateway-dispatch": true}')
            seen = len(lines(stage))
            code, _, err = await operator.run("revoke", document["digest"])
            assert code == 0, err
            ends = time.monotonic() + 3
            while time.monotonic() < ends and not any(line["event"] == "reloaded" for line in lines(stage)[seen:]):
                assert await outcome(stage, "linear-acme") == "ignored"
            if suspend:  # what waited does not wait for ever
                await until_logged(stage, event="dispatch-dead", after=seen, reason="revoked")
            enroll = ("enroll", str(EXAMPLES / "linear-issue-created.json"), "--source", "linear-acme")
            code, _, err = await operator.run(*enroll, "--installation", "5001")
            assert code == 0, err
            await asyncio.sleep(5)
            assert await outcome(stage, "linear-acme") == "forwarded"
