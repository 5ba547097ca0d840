"""`gateway explain` of a saved delivery and the bodies of `gateway deliver`: what is read, supplied and said."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.environment import data_folder
from gateway.samples import load_samples

EXAMPLES = data_folder("subscriptions") / "examples"
SAMPLES = data_folder("subscriptions") / "samples"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("A_SECRET", "whsec_" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB")
    file = tmp_path / "gateway.toml"
    sources = "".join(
        f'[sources.{name}]\nprofile = "{name}"\nsecrets = ["env:A_SECRET"]\n'
        for name in ("github", "linear", "standard-webhooks", "shopify", "stripe")
    )
    sources = sources.replace(
        '"linear"\n', '"linear"\nidentity = { organization = ["11111111-1111-4111-8111-111111111111"] }\n'
    )
    file.write_text(f'[store]\nembedded = "store"\n[github]\napp_id = 1\nprivate_key = "env:A_SECRET"\n{sources}')
    for name, source in (("linear-issue-created", "linear"), ("github-issue-opened", "github")):
        done = run(file, "enroll", EXAMPLES / f"{name}.json", "--source", source, "--installation", "7")
        assert done.exit_code == 0, done.output
    return file


def run(config: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "--config", str(config)])


def test_a_shipped_sample_is_explained_as_it_is_delivered(config: Path) -> None:
    result = run(config, "explain", "--source", "linear", "--file", SAMPLES / "linear.json")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("forwarded\n")
    assert "acme/app linear-issue-created.lock.yml  issue-created: matched" in result.stdout


def test_an_event_of_our_own_bot_is_told_where_it_is_known(config: Path, tmp_path: Path) -> None:
    sample = next(one for one in load_samples() if one["profile"] == "github")
    body = sample["body"] | {"sender": {"id": 200_000_001, "login": "gateway[bot]", "type": "Bot"}}
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"headers": sample["headers"], "body": body}))
    strange = run(config, "explain", "--source", "github", "--file", file)
    assert (strange.stdout.startswith("forwarded"), "set github.sender_id" in strange.stderr) == (True, True)
    config.write_text(config.read_text().replace("app_id = 1", "app_id = 1\nsender_id = 200000001"))
    own = run(config, "explain", "--source", "github", "--file", file)
    assert own.stdout.startswith("ignored: own-event\n    Caused by our own App")
    assert own.stderr == ""
    body["sender"]["id"] = 7
    file.write_text(json.dumps({"headers": sample["headers"], "body": body}))
    assert run(config, "explain", "--source", "github", "--file", file).stdout.startswith("forwarded")


def test_what_was_not_true_is_said_in_words(config: Path, tmp_path: Path) -> None:
    sample = next(one for one in load_samples() if one["profile"] == "linear")
    body = json.loads(json.dumps(sample["body"]).replace(sample["body"]["data"]["teamId"], "other"))
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"headers": sample["headers"], "body": body}))
    result = run(config, "explain", "--source", "linear", "--file", file)
    assert "issue-created: not true: resources at /data/teamId (the scope value is not granted)" in result.stdout
    body["webhookTimestamp"] = "yesterday"
    file.write_text(json.dumps(body))
    result = run(config, "explain", "--source", "linear", "--file", file)
    first, second = result.stdout.splitlines()[:2]
    assert first == "rejected: freshness"
    assert second.startswith("    "), "the reason in words"


@pytest.mark.parametrize(
    ("source", "body", "words"),
    [
        ("standard-webhooks", {"type": "card.moved"}, "does not answer"),
        ("stripe", {"type": "charge.failed", "id": "evt_1"}, "does not answer"),
        ("github", {"action": "opened", "issue": {}, "repository": {}, "sender": {}}, "does not answer"),
        ("shopify", {"id": 7}, "name its own in the header x-shopify-topic, with --headers"),
    ],
)
def test_a_body_alone_can_be_delivered(
    config: Path, tmp_path: Path, source: str, body: dict[str, object], words: str
) -> None:
    """It is signed and sent, to where nobody listens here; only what cannot be known is asked for."""
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    result = run(config, "deliver", source, "--file", file, "--url", "http://127.0.0.1:1")
    assert words in result.output
    assert result.exit_code == (3 if "answer" in words else 2)
