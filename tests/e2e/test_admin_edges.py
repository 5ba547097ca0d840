"""The admin side over a real socket: whatever is sent, it answers for its own names alone, leaks nothing and stays up."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.demo import Stage

pytestmark = pytest.mark.e2e
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# HPACK, static table (https://www.rfc-editor.org/rfc/rfc7541#appendix-A): :method GET, :scheme http, :path /, :authority x
H2_GET = b"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01x"


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as running:
        yield running


async def ask(stage: Stage, data: bytes, seconds: float = 3.0) -> bytes:
    host, _, port = stage.admin.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        answer = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while piece := await reader.read(65_536):
                    answer += piece
        except (TimeoutError, ConnectionError):
            pass
        return bytes(answer)
    finally:
        writer.close()


def request(line: str, host: str | None, *headers: bytes, body: bytes = b"") -> bytes:
    lines = [line.encode("latin-1"), *([f"Host: {host}".encode()] if host else []), *headers, b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


FORM = b"Content-Type: application/x-www-form-urlencoded"
CASES: dict[str, tuple[bytes, int]] = {
    "another name": (request("GET /metrics HTTP/1.1", "evil.example"), 421),
    "a proxy's word for it": (request("GET /metrics HTTP/1.1", "evil.example", b"X-Forwarded-Host: localhost"), 421),
    "the standard header too": (request("GET /metrics HTTP/1.1", "evil.example", b"Forwarded: host=localhost"), 421),
    # the target's authority is the host then, whatever Host says: https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
    "absolute form": (request("GET http://evil.example/metrics HTTP/1.1", "localhost"), 421),
    "absolute form of an own name": (request("GET http://localhost/metrics HTTP/1.1", "evil.example"), 200),
    "user information": (request("GET /metrics HTTP/1.1", "evil@127.0.0.1"), 421),
    "a trailing dot": (request("GET /metrics HTTP/1.1", "localhost."), 421),
    "an own name in front": (request("GET /metrics HTTP/1.1", "localhost.evil.example"), 421),
    "no name": (request("GET /metrics HTTP/1.0", None), 421),
    "two names": (request("GET /metrics HTTP/1.1", "localhost", b"Host: evil.example"), 400),
    "out of the folder": (request("GET /static/../../gateway.toml HTTP/1.1", "localhost"), 404),
    "encoded": (request("GET /static/%2e%2e%2fgateway.toml HTTP/1.1", "localhost"), 404),
    "backslash": (request("GET /static/..%5cgateway.toml HTTP/1.1", "localhost"), 404),
    "an address as path": (request("GET //evil.example/ HTTP/1.1", "localhost"), 404),
    "a slash more": (request("GET /deliveries/ HTTP/1.1", "localhost"), 404),
    "null": (request("GET /%00 HTTP/1.1", "localhost"), 404),
    "not UTF-8": (request("GET /api/v1/deliveries/%ff%fe HTTP/1.1", "localhost"), 404),
    "parameters not UTF-8": (request("GET /api/v1/deliveries?outcome=%ff HTTP/1.1", "localhost"), 400),
    "a line in a name": (request("GET /sources/a%0d%0aSet-Cookie:%20x=y HTTP/1.1", "localhost"), 303),
    "cookie not ASCII": (request("GET / HTTP/1.1", "localhost", b"Cookie: gateway_session=\xff.\xfe.1"), 303),
    "bearer not ASCII": (request("POST /api/v1/dead/replay HTTP/1.1", "localhost", b"Authorization: Bearer \xff"), 401),
    "both framings": (
        request("POST /login HTTP/1.1", "localhost", FORM, b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        400,
    ),
    "form not UTF-8": (request("POST /login HTTP/1.1", "localhost", FORM, b"Content-Length: 9", body=b"token=%ff"), 400),
    "form of another kind": (request("POST /login HTTP/1.1", "localhost", b"Content-Length: 2", body=b"{}"), 415),
    "form too large": (
        request("POST /login HTTP/1.1", "localhost", FORM, b"Content-Length: 100000", body=b"a" * 100_000),
        413,
    ),
    "header too large": (request("GET / HTTP/1.1", "localhost", b"X: " + b"a" * 100_000), 431),
    "change by GET": (request("GET /logout HTTP/1.1", "localhost"), 405),
    "test event by GET": (request("GET /sources/linear-acme/test HTTP/1.1", "localhost"), 405),
    "trace": (request("TRACE / HTTP/1.1", "localhost"), 405),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "status"), CASES.values(), ids=CASES)
async def test_an_answer_for_whatever_is_sent(stage: Stage, sent: bytes, status: int) -> None:
    answer = await ask(stage, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert b"\r\nset-cookie" not in head.lower()
    assert b"evil.example" not in answer
    assert b"Traceback" not in body
    if status not in {400, 421, 431}:
        assert b"content-security-policy: default-src 'none'" in head.lower()


async def test_http_2_reaches_nothing(stage: Stage) -> None:
    answer = await ask(stage, PREFACE + H2_GET)
    assert b"Overview" not in answer
    assert b"login" not in answer
    upgrade = (b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    asked = request("GET /metrics HTTP/1.1", "evil.example", *upgrade).replace(b"close", b"Upgrade, HTTP2-Settings")
    assert b"gateway_" not in await ask(stage, asked)


async def test_who_reads_nothing_and_who_never_ends_hold_nobody_up(stage: Stage) -> None:
    host, _, port = stage.admin.removeprefix("http://").partition(":")
    held = []
    for number in range(300):
        _, writer = await asyncio.open_connection(host, int(port))
        whole = request("GET /metrics HTTP/1.1", "localhost").replace(b"close", b"keep-alive")
        writer.write(whole * 5 if number % 2 else b"GET / HT")
        held.append(writer)
    for address in (stage.admin, stage.public):
        async with asyncio.timeout(10), stage.session.get(f"{address}/readyz") as response:
            assert response.status == 200
    for writer in held:
        writer.close()
    log = (stage.folder / "gateway.log").read_text()
    assert '"level":"error"' not in log
