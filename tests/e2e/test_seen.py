"""What operators see of real deliveries: one trace from receive to the admitted run, and never a value of a body.

Every text of every sample's body that no declaration and no profile reads is replaced by a canary, objects get members
with one, and headers, query and bodies that are refused carry some too. Then everything is searched that anybody could
look at: pages, API, metrics, log, traces, notifications, commands and the store.
"""

import asyncio
import base64
import copy
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from aiohttp import web
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.demo import stop
from gateway.environment import data_folder
from gateway.tracing import root_span_id
from tests.e2e.otlp import Receiver, receiving
from tests.e2e.test_destination import NODE, Destination

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(NODE is None, reason="the action needs node")]
CANARY = "Zq7Canary"
WHSEC = b"whsec_" + base64.b64encode(b"k" * 32)


class Seen(Destination):
    """The stage with receivers for traces and notifications."""

    otlp: Receiver

    async def _start_github(self) -> None:
        self.otlp = await self._stack.enter_async_context(receiving())
        self.told: list[bytes] = []
        self.dead = asyncio.Event()
        app = web.Application()
        app.router.add_post("/told", self._told)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.told_url = f"http://127.0.0.1:{runner.addresses[0][1]}/told"
        await super()._start_github()

    async def _told(self, request: web.Request) -> web.Response:
        self.told.append(await request.read() + repr(request.raw_headers).encode())
        if b"dispatch.dead" in self.told[-1]:
            self.dead.set()
        return web.Response(status=204)

    def _configure(self) -> None:
        super()._configure()
        self._private("notifications", WHSEC)
        file = self.folder / "gateway.toml"
        file.write_text(
            f'{file.read_text()}\n[tracing]\nendpoint = "{self.otlp.url}"\n'
            f'[notifications]\nurl = "{self.told_url}"\nsecret = "file:{self.folder}/notifications"\n'
        )

    async def send(self, source: str, headers: dict[str, str], body: bytes, query: str = "") -> tuple[int, str]:
        async with self.session.post(f"{self.public}/hooks/{source}{query}", data=body, headers=headers) as response:
            return response.status, response.headers["gateway-delivery"]

    async def log_in(self) -> None:
        """Give this session's requests a browser's cookie."""
        async with self.session.post(
            f"{self.admin}/login", data={"token": self.operator_token}, allow_redirects=False
        ) as response:
            self.cookie = response.headers["set-cookie"].partition(";")[0]

    async def look(self, path: str) -> str:
        async with self.session.get(self.admin + path, headers={"cookie": self.cookie}) as response:
            assert response.status == 200, path
            return await response.text()


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Seen]:
    async with Seen() as running:
        yield running


async def spans_of(stage: Seen, delivery: str, number: int) -> dict[str, Span]:
    """The spans of one delivery's trace by name, once `number` have come."""
    trace, end = bytes.fromhex(delivery.replace("-", "")), time.monotonic() + 15
    while time.monotonic() < end:
        found = {span.name: span for span in stage.otlp.spans if span.trace_id == trace}
        if len(found) == number:
            return found
        await asyncio.sleep(0.2)
    raise AssertionError([span.name for span in stage.otlp.spans])


async def test_one_trace_from_receive_to_the_admitted_run(stage: Seen, tmp_path: Path) -> None:
    dispatched = await stage.deliver()
    step = await stage.job(dispatched, tmp_path)
    assert step.code == 0, step.log
    record = await stage.newest()
    spans = await spans_of(stage, record["id"], 3)
    assert set(spans) == {"receive", "dispatch", "admit-run"}
    root = spans["receive"]
    assert (root.parent_span_id, root.span_id) == (b"", root_span_id(record["id"]).to_bytes(8, "big"))
    assert {spans[name].parent_span_id for name in ("dispatch", "admit-run")} == {root.span_id}
    assert root.start_time_unix_nano < spans["dispatch"].start_time_unix_nano < spans["admit-run"].start_time_unix_nano
    facts = {one.key: one.value.string_value for one in spans["admit-run"].attributes}
    assert facts["gateway.dispatch"] == record["dispatches"][0]["id"]
    await stage.log_in()
    assert root.trace_id.hex() in await stage.look(f"/deliveries/{record['id']}")
    _, refused = await stage.send("linear-acme", {"content-type": "application/json"}, b"{}")
    assert (await spans_of(stage, refused, 1))["receive"].status.code == Status.STATUS_CODE_ERROR


def read_pointers(sample: dict[str, Any]) -> set[str]:
    """Every pointer that the sample's subscription or its profile reads."""
    document = (data_folder("subscriptions") / "examples" / sample["subscription"]).read_text()
    profile = (data_folder("profiles") / f"{sample['profile']}.yaml").read_text()
    return set(re.findall(r"(?<![\w:/.])/[A-Za-z_][\w./~@$-]*", document + profile))


def planted(body: Any, read: set[str], path: str = "", marks: Iterator[int] | None = None) -> Any:
    """The body with canaries wherever nothing reads."""
    marks = marks or iter(range(10_000))
    if isinstance(body, dict):
        inner = {key: planted(value, read, f"{path}/{key}", marks) for key, value in body.items()}
        return {**inner, f"{CANARY}Key": f"{CANARY}{next(marks)}<script>alert(1)</script>\r\nX: \x1b[31m"}
    if isinstance(body, list):
        return [planted(value, read, f"{path}/{place}", marks) for place, value in enumerate(body)]
    used = any(path.endswith(pointer) for pointer in read)
    return f"{CANARY}{next(marks)}" if isinstance(body, str) and not used and not body.startswith("$") else body


def noise(stage: Seen, sample: dict[str, Any]) -> Iterator[tuple[dict[str, str], bytes]]:
    """Deliveries that are refused or ignored, each full of canaries."""
    headers, body = stage.signed(sample, time.time(), forged=True)
    yield headers, body
    yield {**headers, "authorization": f"Bearer {CANARY}.{CANARY}.{CANARY}"}, CANARY.encode()
    signed, _ = stage.signed(sample, time.time())
    for name in ("x-github-event", "x-github-delivery", "webhook-id", "linear-delivery", "x-gitlab-event"):
        signed[name] = f"{CANARY} \u00e9"
    yield signed, body
    strange = copy.deepcopy(sample)
    item = {CANARY: CANARY, "id": CANARY, "resource": CANARY, "changeType": CANARY, "lifecycleEvent": CANARY}
    names = ("type", "action", "object_kind", "event", "eventType", "webhookEvent", "event_name", "notificationId")
    strange["body"] = {CANARY: [CANARY], "value": [item], **dict.fromkeys(names, CANARY)}
    strange["headers"] = dict.fromkeys(sample.get("headers", {}), CANARY)
    yield stage.signed(strange, time.time())


async def test_no_value_of_a_body_is_anywhere(stage: Seen) -> None:
    await stage.log_in()
    extra = {"x-canary": CANARY, "cookie": f"a={CANARY}", "user-agent": CANARY, "referer": f"https://{CANARY}/"}
    ids = []
    for sample in stage.samples:
        canaries = {**sample, "body": planted(sample["body"], read_pointers(sample))}
        for name in ("acme/app", "acme/widgets"):
            faults = {"repo": name, "on": "dispatch", "answers": [{"status": 422, "body": CANARY}]}
            async with stage.session.post(f"{stage.github}/_double/script", json=faults) as response:
                assert response.status < 300
        headers, body = stage.signed(canaries, time.time())
        assert body.count(CANARY.encode()) > 1
        status, ident = await stage.send(sample["source"], {**headers, **extra}, body, f"?q={CANARY}")
        assert status < 300, sample["source"]
        ids.append((ident, sample["source"]))
        for bad_headers, bad in noise(stage, canaries):
            status, _ = await stage.send(sample["source"], {**extra, **bad_headers}, bad, f"?q={CANARY}")
            assert status < 500, (sample["source"], status)
    async with stage.session.post(f"{stage.public}/hooks/{CANARY}", data=CANARY) as response:
        assert response.status == 404
    async with asyncio.timeout(45):
        await stage.dead.wait()
    told = b"".join(stage.told)
    assert b"dispatch.dead" in told
    assert b"source.failing" in told

    seen: dict[str, bytes] = {"notifications": told, "traces": bytes(stage.otlp.raw)}
    for ident, source in ids:
        row = json.loads(await stage.look(f"/api/v1/deliveries/{ident}"))
        assert row["outcome"] == "forwarded", (source, row)
    rows = json.loads(await stage.look("/api/v1/deliveries?limit=500"))["deliveries"]
    assert {"forwarded", "rejected", "ignored"} <= {row["outcome"] for row in rows}
    api = [f"/api/v1/{one}" for one in ("deliveries?limit=500", "subscriptions", "sources", "dead", "asks")]
    pages = ["/", "/deliveries", "/subscriptions", "/dead", "/asks", "/metrics"]
    pages += [f"/sources/{sample['source']}" for sample in stage.samples]
    pages += [f"{start}{row['id']}" for row in rows for start in ("/deliveries/", "/api/v1/deliveries/")]
    for path in api + pages:
        seen[path] = (await stage.look(path)).encode()
    for command in (("deliveries",), ("deliveries", "--export"), ("dead", "list", "--json"), ("audit", "--json")):
        code, text = await stage.command(*command)
        assert code == 0
        seen[" ".join(command)] = text.encode()
    for ident, _ in ids:
        seen[f"explain {ident}"] = (await stage.command("explain", ident))[1].encode()
    seen["store"] = dump(stage.folder / "store")
    await stop(stage.receiver)
    seen["log"] = (stage.folder / "gateway.log").read_bytes()
    for file in (stage.folder / "store").rglob("*"):
        if file.is_file():
            seen[file.name] = file.read_bytes()
    for encoded in (CANARY, CANARY.lower(), base64.b64encode(CANARY.encode()).decode()[:10], CANARY.encode().hex()):
        assert [name for name, text in seen.items() if encoded.encode() in text] == []
    assert b'"url":"https://' in seen["store"]  # what is projected stands there: the search would have found the rest
    assert seen["log"].count(b'"event":"delivery"') == len(rows)
    assert len(seen["traces"]) > 1000


def dump(folder: Path) -> bytes:
    """Every key of the embedded store with its value."""
    (socket,) = folder.glob("*.sock")
    found = bytearray()
    with redis.Redis(unix_socket_path=str(socket)) as client:
        for key in client.scan_iter(count=1000):
            readers: dict[bytes, Any] = {
                b"string": client.get,
                b"hash": client.hgetall,
                b"list": lambda name: client.lrange(name, 0, -1),
                b"set": client.smembers,
                b"zset": lambda name: client.zrange(name, 0, -1),
                b"stream": client.xrange,
            }
            found += repr((key, readers[client.type(key)](key))).encode()
    return bytes(found)
