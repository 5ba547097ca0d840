"""Who is answered at all: own names, and what a browser is told it may do."""

import pytest
from starlette.datastructures import Headers

from gateway.console.guard import host_name
from tests.console.client import Client

OWN = ["localhost", "localhost:8081", "127.0.0.1:8081", "[::1]:8081", "LOCALHOST", "10.0.0.5:8081", "console.example"]
FOREIGN = [
    "evil.example",
    "localhost.evil.example",
    "10.0.0.6",
    "",
    "localhost:",
    "localhost:x",
    "[::1",
    "a:b:c",
    "localhost@evil",
]


@pytest.mark.parametrize("host", OWN)
async def test_own_names(client: Client, host: str) -> None:
    for path in ("/healthz", "/login", "/static/console.css"):
        assert (await client.call("GET", path, host=[host])).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_foreign_names_get_nothing(client: Client, host: str) -> None:
    for path in ("/", "/healthz", "/metrics", "/api/v1/deliveries", "/login", "/nowhere"):
        assert (await client.call("GET", path, host=[host])).status == 421, path


async def test_no_or_two_names_are_refused(client: Client) -> None:
    assert (await client.call("GET", "/healthz", host=[])).status == 421
    assert (await client.call("GET", "/healthz", host=["localhost", "localhost"])).status == 421


async def test_every_answer_binds_the_browser(client: Client) -> None:
    await client.log_in()
    for path in ("/", "/login", "/nowhere", "/api/v1/deliveries", "/static/console.js", "/metrics"):
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] in {"no-store", "no-cache"}


async def test_the_pages_have_nothing_that_the_policy_forbids(client: Client) -> None:
    await client.log_in()
    for path in ("/", "/deliveries", "/subscriptions", "/dead", "/asks", "/sources/linear-acme"):
        text = (await client.get(path)).text
        for word in (" style=", "<style", "onclick", "javascript:", "<script>"):
            assert word not in text, (path, word)


def test_names() -> None:
    def name(*values: str) -> str | None:
        return host_name(Headers(raw=[(b"host", value.encode()) for value in values]))

    assert name("A.example:1") == "a.example"
    assert name("[::1]:80") == "::1"
    assert name("[::1]") == "::1"
    assert name("a", "a") is None
