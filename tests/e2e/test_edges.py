"""The receiver over real sockets: what it refuses before anything is believed, and how it ends."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway.demo import Stage
from tests.e2e.logs import lines, until_logged

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["hypercorn", "uvicorn"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with Stage(request.param) as running:
        yield running


async def talk(stage: Stage, data: bytes, *, within_s: float = 15) -> bytes:
    """Send raw bytes, return all that comes back until the peer closes or `within_s` is over."""
    host, _, port = stage.public.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    got = b""
    try:
        async with asyncio.timeout(within_s):
            while chunk := await reader.read(65_536):
                got += chunk
    except TimeoutError:
        pass
    writer.close()
    return got


def request(path: str = "/hooks/github-acme", *headers: str, method: str = "POST", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: gateway.test", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_unknown_source_and_other_methods(stage: Stage) -> None:
    for method, path, status in (
        ("POST", "/hooks/nobody", 404),
        ("GET", "/hooks/github-acme", 405),
        ("PUT", "/hooks/github-acme", 405),
    ):
        async with stage.session.request(method, stage.public + path) as response:
            assert response.status == status
            assert len(response.headers["gateway-delivery"]) == 36
            assert await response.read() == b""


async def test_declared_and_streamed_bodies_over_the_cap(stage: Stage) -> None:
    declared = await talk(stage, request("/hooks/github-acme", "content-length: 99999999999"))
    assert declared.startswith(b"HTTP/1.1 413 ")
    assert b"gateway-delivery: " in declared.lower()
    assert declared.endswith(b"\r\n\r\n")


async def test_content_encoding_and_ambiguous_framing(stage: Stage) -> None:
    assert (
        await talk(stage, request("/hooks/github-acme", "content-encoding: gzip", "content-length: 2", body=b"{}"))
    ).startswith(b"HTTP/1.1 415 ")
    both = request("/hooks/github-acme", "content-length: 7", "transfer-encoding: chunked", body=b"0\r\n\r\nXX")
    assert (await talk(stage, both)).split(b" ")[1] == b"400"


async def test_a_slow_client_is_gone_in_ten_seconds(stage: Stage) -> None:
    began = time.monotonic()
    got = await talk(stage, request("/hooks/github-acme", "content-length: 50", body=b"abc"))
    assert got.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 14  # the deadline is 8 s; nobody would hang up before 15


async def test_a_vanished_client_is_no_error(stage: Stage) -> None:
    await talk(stage, request("/hooks/github-acme", "content-length: 50", body=b"abc"), within_s=0.2)
    await until_logged(stage, event="client-vanished")
    assert not [line for line in lines(stage) if line["event"] == "loop-error"]


async def test_http2_with_prior_knowledge_is_refused(stage: Stage) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    got = await talk(stage, preface, within_s=1)
    assert b"200" not in got


async def test_every_sample_and_no_secret_in_the_log(stage: Stage) -> None:
    cases = [line async for line in stage.lines()]
    assert cases
    assert [f"{line.source} {line.case} {line.outcome} {line.reason}" for line in cases if not line.good] == []
    log = (stage.folder / "gateway.log").read_text()
    planted = [secret.decode() for secret in stage.secrets.values()]
    planted += ["BEGIN PRIVATE KEY", "ghs_", "Bearer ", "sha256=", "v0=", "v1,"]
    assert [word for word in planted if word in log] == []
    for line in log.splitlines():
        assert "event" in json.loads(line)


def store_pid(stage: Stage) -> int:
    return int(next(Path(stage.folder / "store").rglob("*.pid")).read_text())


async def test_a_stopped_store_is_503_within_two_seconds_and_then_works_again(stage: Stage) -> None:
    sample = next(s for s in stage.samples if s["source"].startswith("github"))
    url = f"{stage.public}/hooks/{sample['source']}"
    pid = store_pid(stage)
    os.kill(pid, signal.SIGSTOP)
    try:
        headers, body = stage.signed(sample, time.time())
        began = time.monotonic()
        async with stage.session.post(url, data=body, headers=headers) as response:
            assert response.status == 503
            assert int(response.headers["retry-after"]) > 0
        assert time.monotonic() - began < 15
        async with stage.session.get(f"{stage.public}/readyz") as response:
            assert response.status == 503
        async with stage.session.get(f"{stage.public}/healthz") as response:
            assert response.status == 200
        bad, forged = stage.signed(sample, time.time(), forged=True)
        async with stage.session.post(url, data=forged, headers=bad) as response:
            assert response.status == 401
    finally:
        os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        async with stage.session.get(f"{stage.public}/readyz") as response:
            if response.status == 200:
                break
        await asyncio.sleep(0.1)
    async with stage.session.post(url, data=body, headers=headers) as response:
        assert response.status == 200  # applied whole before, or now: either way the provider may stop trying


def descriptors(stage: Stage) -> int:
    return len(list(Path(f"/proc/{stage.receiver.pid}/fd").iterdir()))


async def test_an_early_answer_leaves_no_connection_behind(stage: Stage) -> None:
    host, _, port = stage.public.removeprefix("http://").rpartition(":")
    before = descriptors(stage)

    async def endless(path: str) -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                writer.write(b"2\r\naa\r\n" * 500)
                await writer.drain()
                await asyncio.sleep(0.03)
        writer.transport.abort()

    await asyncio.gather(*(endless(path) for path in ["/hooks/github-acme"] * 5 + ["/hooks/nobody", "/nowhere"] * 3))
    for _ in range(100):
        if descriptors(stage) <= before:
            break
        await asyncio.sleep(0.2)
    assert descriptors(stage) <= before


async def test_a_connection_ends_with_its_peer(stage: Stage) -> None:
    """However far its peer got: nothing waits for the end of a keep-alive."""
    host, _, port = stage.public.removeprefix("http://").rpartition(":")
    before = descriptors(stage)
    for sent in (b"", b"POST /hooks/github-acme HTTP/1.1\r\n", request("/hooks/github-acme", "content-length: 50")):
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            writer.close()
    for _ in range(20):
        sample = next(s for s in stage.samples if s["source"].startswith("github"))
        headers, body = stage.signed(sample, time.time())
        url = f"{stage.public}/hooks/{sample['source']}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
            assert response.status == 200
    for _ in range(30):
        if descriptors(stage) <= before + 2:
            break
        await asyncio.sleep(0.1)
    assert descriptors(stage) <= before + 2


async def test_no_descriptor_left_ends_nothing_and_passes(stage: Stage) -> None:
    """Idle connections take every descriptor that a process may have; when they are gone it goes on."""
    pid, sample = stage.receiver.pid, next(s for s in stage.samples if s["source"].startswith("github"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert before[0] == before[1]  # it takes what it may have
    host, _, port = stage.public.removeprefix("http://").rpartition(":")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(stage) + 3, before[1]))
    idle = []
    try:
        for _ in range(30):
            with contextlib.suppress(ConnectionError):
                idle.append(await asyncio.open_connection(host, int(port)))
        await asyncio.sleep(2.5)  # a look at the subscriptions folder meanwhile
    finally:
        for _, writer in idle:
            writer.transport.abort()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    await asyncio.sleep(0.5)
    assert stage.receiver.returncode is None
    headers, body = stage.signed(sample, time.time())
    async with stage.session.post(f"{stage.public}/hooks/{sample['source']}", data=body, headers=headers) as response:
        assert response.status == 200


async def test_a_path_below_a_hook_is_no_source_and_no_redirect(stage: Stage) -> None:
    for path in ("/hooks/github-acme/", "/hooks/a/b", "/hooks/", "/hooks/%00"):
        async with stage.session.post(stage.public + path, allow_redirects=False) as response:
            assert response.status == 404, path
            assert response.headers["gateway-delivery"]


async def test_a_header_repeated_in_another_case_is_two_copies(stage: Stage) -> None:
    signatures = ("X-Hub-Signature-256: sha256=" + "0" * 64, "x-hub-signature-256: sha256=" + "1" * 64)
    got = await talk(stage, request("/hooks/github-acme", *signatures, "content-length: 2", body=b"{}"))
    assert got.startswith(b"HTTP/1.1 401 ")
    ident = got.lower().partition(b"gateway-delivery: ")[2].split(b"\r\n")[0].decode()
    assert (await until_logged(stage, delivery=ident))["reason"] == "header-repeated"


async def test_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    got = await talk(
        stage, request("/healthz", method="GET").replace(b"connection: close\r\n", b"") + request("/nowhere")
    )
    assert [line.split(b" ")[1] for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [b"200", b"404"]


async def test_a_head_without_end_is_cut_off(stage: Stage) -> None:
    host, _, port = stage.public.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /hooks/github-acme HTTP/1.1\r\nx-filler: ")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 20_000_000 and not reader.at_eof():
            writer.write(b"a" * 8_192)
            await writer.drain()
            sent += 8_192
            await asyncio.sleep(0)
    with contextlib.suppress(ConnectionError):
        assert (await asyncio.wait_for(reader.read(), 5))[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 431", b""}
    assert sent < 20_000_000
    writer.transport.abort()
