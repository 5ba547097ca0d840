"""`gateway wire` as an operator runs it: against doubles in a process of their own."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gateway.cli import main
from gateway.configuration import load_configuration
from gateway.environment import data_folder
from gateway.profiles import Source, load_profiles
from gateway.store import Store
from gateway.subscriptions import load_subscription
from gateway.wire import BY_PROFILE, instructions, want_for
from gateway.wire.types import Want
from tests.operating import gateway, write
from tests.valkey import PrivateValkey

PUBLIC = "https://hooks.acme.example"


@pytest.fixture(scope="module")
def doubles() -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "gateway.doubles.providers", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.terminate()


@pytest.fixture
def config(server: PrivateValkey, doubles: dict[str, str], tmp_path: Path) -> Path:
    with server.client() as client:
        client.flushall()
    (tmp_path / "token").write_text(doubles["token"])
    source = [f'api_url = "{doubles["url"]}/linear/graphql"', f'api_token = "file:{tmp_path}/token"']
    return write(tmp_path, server.url, source=source, more=["[server]", f'public_url = "{PUBLIC}"'])


def test_wire_registers_once_reports_and_is_in_the_trail(config: Path) -> None:
    missing = gateway(config, "wire", "linear-acme", "--check", "--json")
    assert missing.exit_code == 1
    assert [row["state"] for row in json.loads(missing.stdout)["hooks"]] == ["missing"]
    made = gateway(config, "wire", "linear-acme")
    assert (made.exit_code, made.stdout.startswith("created")) == (0, True)
    good = gateway(config, "wire", "linear-acme", "--check", "--json")
    assert good.exit_code == 0, good.output
    (row,) = json.loads(good.stdout)["hooks"]
    assert (row["state"], row["drift"]) == ("good", [])
    assert row["scope"] == "team/33333333-3333-4333-8333-333333333333"
    assert gateway(config, "wire", "linear-acme").stdout.startswith("ok")
    actions = json.loads(gateway(config, "audit", "--json").stdout)["actions"]
    assert [(a["action"], a["source"]) for a in actions] == [("wire", "linear-acme")]
    (config.parent / "linear").write_text("the-rotated-one")
    drift = gateway(config, "wire", "linear-acme", "--check")
    assert (drift.exit_code, "secret: 'another one'" in drift.stdout) == (1, True)
    assert "the-rotated-one" not in drift.output


def test_what_is_missing_in_the_configuration_is_said_with_the_next_step(config: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace(f'public_url = "{PUBLIC}"\n', ""))
    assert "server.public_url is not set" in gateway(config, "wire", "linear-acme").stderr
    config.write_text("\n".join(line for line in text.splitlines() if not line.startswith("api_token")))
    refused = gateway(config, "wire", "linear-acme")
    assert (refused.exit_code, "api_token (or api_oauth) is not set" in refused.stderr) == (2, True)
    assert f"by hand, in the provider's console, with the URL {PUBLIC}/hooks/linear-acme" in refused.stderr
    assert gateway(config, "wire", "nobody").exit_code == 2
    config.write_text(text.partition("[[enrollments]]")[0])
    assert "gateway enroll" in gateway(config, "wire", "linear-acme").stderr


def test_another_address_is_named_whole(config: Path, doubles: dict[str, str]) -> None:
    config.write_text(config.read_text().replace("/linear/graphql", "/linear"))
    refused = gateway(config, "wire", "linear-acme", "--check")
    assert refused.exit_code == 3
    assert f"POST {doubles['url']}/linear was answered 404" in refused.stderr
    assert "or sources.linear-acme.api_url is another's" in refused.stderr


def test_a_token_that_may_not_is_exit_3_and_says_what_it_needs(config: Path) -> None:
    (config.parent / "token").write_text("wrong")
    refused = gateway(config, "wire", "linear-acme")
    assert (refused.exit_code, "workspace admin" in refused.stderr) == (3, True)


def explained(config: Path, profile: str, identity: str) -> Any:
    text = config.read_text().partition("[[enrollments]]")[0]
    name = f"{profile}-acme"
    extra = [f"[sources.{name}]", f'profile = "{profile}"', identity]
    if profile != "forge":
        (config.parent / "whsec").write_text("whsec_" + "A" * 43 + "=")
        extra.append(f'secrets = ["file:{config.parent}/whsec"]')
    config.write_text(text + "\n".join(extra) + "\n")
    return gateway(config, "wire", name)


@pytest.mark.parametrize(
    ("profile", "identity", "expected"),
    [
        (
            "slack",
            'identity = {workspace = ["T0"], app = ["A0"]}',
            ["request_url: {url}", "bot_events:", "Signing Secret"],
        ),
        (
            "forge",
            'identity = {app = ["ari:cloud:ecosystem::app/1"], installation = ["i"], cloud = ["c"], environment = ["PRODUCTION"]}',
            ["baseUrl: https://hooks.acme.example", "path: /hooks/forge-acme", "--environment production"],
        ),
        ("sentry", 'identity = {installation = ["u"]}', ["Webhook URL: {url}", "Client Secret"]),
        ("servicenow", 'identity = {instance = ["acme.service-now.com"]}', ['setEndpoint("{url}")', "generateMac"]),
        ("stripe", "", ["URL: {url}", "Signing secret"]),
    ],
)
def test_providers_without_an_api_get_exact_steps(
    config: Path, profile: str, identity: str, expected: list[str]
) -> None:
    done = explained(config, profile, identity)
    assert done.exit_code == 0, done.output
    for text in expected:
        assert text.format(url=f"{PUBLIC}/hooks/{profile}-acme") in done.stdout
    assert "A" * 43 not in done.output
    as_json = json.loads(gateway(config, "wire", f"{profile}-acme", "--json").stdout)
    assert as_json["instructions"] == done.stdout


@pytest.mark.parametrize(
    ("profile", "identity", "head", "end"),
    [
        ("slack", 'identity = {workspace = ["T0"], app = ["A0"]}', "display_information:", "\n2. "),
        (
            "forge",
            'identity = {app = ["ari:cloud:ecosystem::app/1"], installation = ["i"], cloud = ["c"], environment = ["P"]}',
            "app:",
            "\n2. ",
        ),
    ],
)
def test_a_manifest_without_anything_enrolled_is_yaml_and_the_note_stands_outside(
    config: Path, profile: str, identity: str, head: str, end: str
) -> None:
    told = explained(config, profile, identity).stdout
    assert told.startswith(f"Nothing is enrolled for {profile}-acme yet")
    manifest = YAML(typ="safe").load(head + told.partition(f"\n{head}")[2].partition(end)[0])
    if profile == "slack":
        assert manifest["settings"]["event_subscriptions"]["bot_events"] == []
        assert manifest["oauth_config"]["scopes"]["bot"] == ["app_mentions:read"]
        assert len(manifest["display_information"]["name"]) <= 35
    else:
        assert manifest["modules"]["trigger"][0]["events"] == []


def test_a_slack_manifest_names_the_enrolled_events_and_stays_yaml() -> None:
    """A source may be named like a number or longer than Slack's 35 characters."""
    document = (data_folder("subscriptions") / "examples/slack-threaded-app-mention.json").read_bytes()
    profile = load_profiles(data_folder("profiles"))["slack"]
    for name in ("1e3", "x" * 63):
        want = Want(name, f"{PUBLIC}/hooks/{name}", "", signing=True, subscriptions=(load_subscription(document, ""),))
        told = instructions(want, Source(name, profile, {"workspace": ("T0",), "app": ("A0",)}), ["env:X"])
        manifest = YAML(typ="safe").load("display" + told.partition("\ndisplay")[2].partition("\n2. ")[0])
        assert manifest["settings"]["event_subscriptions"]["bot_events"] == ["app_mention"]
        assert manifest["features"]["bot_user"]["display_name"] == name
        assert len(manifest["display_information"]["name"]) <= 35
        assert told.startswith("1. ")


def test_without_an_api_check_looks_for_a_genuine_delivery(server: PrivateValkey, config: Path) -> None:
    explained(config, "stripe", "")
    assert gateway(config, "wire", "stripe-acme", "--check").exit_code == 1
    at = time.time() - 3600

    async def arrive(kind: str) -> None:
        store = await Store.open(server.url, require=True)
        await store.add_flow("stripe-acme", {kind: (1, at)}, at)
        await store.close()

    asyncio.run(arrive("rejected"))
    assert gateway(config, "wire", "stripe-acme", "--check").exit_code == 1
    asyncio.run(arrive("ignored"))
    seen = gateway(config, "wire", "stripe-acme", "--check", "--json")
    [row] = json.loads(seen.stdout)["hooks"]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    assert (seen.exit_code, row["state"], row["last_delivery"]) == (0, "unverifiable", moment)
    assert "last genuine delivery" in gateway(config, "wire", "stripe-acme", "--check").stdout


def test_every_shipped_profile_is_wired_or_explained(config: Path) -> None:
    configuration = load_configuration(config)
    for profile in load_profiles(data_folder("profiles")).values():
        if profile.name not in BY_PROFILE:
            source = configuration.sources["linear-acme"]
            text = instructions(want_for(configuration, "linear-acme"), type(source)("x", profile), ["env:SECRET"])
            assert f"{PUBLIC}/hooks/linear-acme" in text or profile.name == "forge"
    assert "wire" in main.commands
