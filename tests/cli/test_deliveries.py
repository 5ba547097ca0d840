"""`gateway deliveries`: pages for eyes and scripts, and an export of everything, whatever stands at the other end."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.configuration import load_configuration
from gateway.store import Store, uuid7
from tests.operating import admit, gateway, write
from tests.valkey import PrivateValkey

MANY = 1_200  # more than two pages of an export, and more than a pipe holds


@pytest.fixture(scope="module")
def config(server: PrivateValkey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds one forwarded delivery, whose dispatch is sealed, and many refusals."""
    path = write(tmp_path_factory.mktemp("deliveries"), server.url)

    async def fill() -> None:
        store, now = await Store.open(server.url, require=True), time.time()
        await admit(store, load_configuration(path), 1, now)
        assert len(await store.seal("linear-acme", now, 60, 1)) == 1
        for number in range(MANY):
            row = {"id": uuid7(), "source": "linear-acme", "received_at": now - number, "outcome": "rejected"}
            await store.record("linear-acme", json.dumps({**row, "reason": "signature", "subscriptions": []}))
        await store.close()

    asyncio.run(fill())
    return path


def test_an_export_is_every_record_on_a_line_of_its_own(config: Path) -> None:
    done = gateway(config, "deliveries", "--export")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.exit_code, len(rows), len({row["id"] for row in rows})) == (0, MANY + 1, MANY + 1)
    assert [row["received_at"] for row in rows] == sorted((row["received_at"] for row in rows), reverse=True)
    [page] = json.loads(gateway(config, "deliveries", "--outcome", "forwarded", "--json").stdout)["deliveries"]
    [forwarded] = [row for row in rows if row["outcome"] == "forwarded"]
    assert forwarded == page
    assert forwarded["dispatches"][0]["status"] == "queued"
    only = gateway(config, "deliveries", "--export", "--source", "linear-acme", "--outcome", "forwarded")
    assert json.loads(only.stdout) == page


@pytest.mark.parametrize("other", [("--limit", "5"), ("--next", "1-a"), ("--json",)])
def test_an_export_has_no_pages(config: Path, other: tuple[str, ...]) -> None:
    done = gateway(config, "deliveries", "--export", *other)
    assert done.exit_code == 2
    assert "leave out" in done.output


def test_pages_go_on_where_the_one_before_ended(config: Path) -> None:
    first = json.loads(gateway(config, "deliveries", "--json").stdout)
    assert len(first["deliveries"]) == 50
    second = json.loads(gateway(config, "deliveries", "--json", "--limit", "3", "--next", first["next"]).stdout)
    assert not {row["id"] for row in second["deliveries"]} & {row["id"] for row in first["deliveries"]}
    assert gateway(config, "deliveries", "--next", "rubbish").exit_code == 2
    assert gateway(config, "deliveries", "--source", "nobody").exit_code == 2


def test_explaining_by_id_says_what_became_of_it(config: Path) -> None:
    [forwarded] = json.loads(gateway(config, "deliveries", "--outcome", "forwarded", "--json").stdout)["deliveries"]
    told = json.loads(gateway(config, "explain", forwarded["id"], "--json").stdout)
    [dispatch] = told["dispatches"]
    assert (dispatch["status"], dispatch["attempts"], dispatch["admitted"]) == ("queued", 0, False)
    text = gateway(config, "explain", forwarded["id"]).stdout
    assert f"dispatch {dispatch['id']}  queued, 0 attempts, no run admitted" in text
    refused = json.loads(gateway(config, "deliveries", "--outcome", "rejected", "--json").stdout)["deliveries"][0]
    first, _, fix = gateway(config, "explain", refused["id"]).stdout.splitlines()
    assert first == "linear-acme rejected: signature"
    assert "Compare the secret with the provider's" in fix
    assert gateway(config, "explain", "\ud800").exit_code in {1, 3}


def export(config: Path) -> list[str]:
    return [sys.executable, "-m", "gateway", "deliveries", "--export", "--config", str(config)]


def test_a_reader_that_leaves_ends_the_export_quietly(config: Path) -> None:
    with subprocess.Popen(export(config), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["source"] == "linear-acme"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 3


def test_a_full_disk_is_said(config: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(export(config), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "failed: No space left on device\n")
