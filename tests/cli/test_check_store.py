"""`gateway check` looks at the store: what it would lose is a problem, that it is away is not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operating import gateway, write
from tests.valkey import PrivateValkey


@pytest.fixture(autouse=True)
def as_it_was(server: PrivateValkey) -> Iterator[None]:
    yield
    with server.client() as client:
        client.config_set("appendonly", "yes")
        client.config_set("maxmemory-policy", "noeviction")
        client.delete("gw:schema")


def keys(text: str) -> list[str]:
    return [problem["problem"] for problem in json.loads(text)["problems"]]


def test_a_durable_store_is_good(server: PrivateValkey, tmp_path: Path) -> None:
    result = gateway(write(tmp_path, server.url), "check", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"problems": []})


def test_no_append_only_file_and_eviction_are_both_named(server: PrivateValkey, tmp_path: Path) -> None:
    with server.client() as client:
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "allkeys-lru")
    config = write(tmp_path, server.url)
    result = gateway(config, "check", "--json")
    assert result.exit_code == 2
    found = keys(result.stdout)
    assert len(found) == 2
    assert "append-only" in found[0]
    assert "allkeys-lru" in found[1]
    config.write_text(config.read_text().replace("[store]", '[store]\ndurability = "relaxed"'))
    assert gateway(config, "check").exit_code == 0


def test_another_schema_is_refused_and_says_what_to_do(server: PrivateValkey, tmp_path: Path) -> None:
    with server.client() as client:
        client.set("gw:schema", "999")
    result = gateway(write(tmp_path, server.url), "check", "--json")
    assert result.exit_code == 2
    (problem,) = json.loads(result.stdout)["problems"]
    assert "999" in problem["problem"]
    assert "run the release that wrote it" in problem["fix"]


def test_a_store_that_is_away_is_said_so_and_is_no_problem(tmp_path: Path) -> None:
    result = gateway(write(tmp_path, "redis://127.0.0.1:1/0"), "check", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"problems": []})
    assert "was not checked" in result.stderr
