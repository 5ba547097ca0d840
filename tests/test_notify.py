import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from gateway.environment import data_folder
from gateway.health import Asked, Look, Lookout, Row, SourceHealth
from gateway.metrics import Gauges, Metrics
from gateway.notify import Notifier, notices
from gateway.profiles import load_profiles
from gateway.settings import Notifications
from gateway.store import Admit, AdmitItem, Depth, Dispatch, Flow, QueueEntry, Store
from tests.valkey import PrivateValkey

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLlR4gW0Yx3w7tXk="
NOW = time.time()


def dispatch(ident: str = "d1", status: str = "dead", settled: float | None = NOW) -> Dispatch:
    return Dispatch(
        ident,
        "s",
        "sha256:a:t",
        "sha256:a",
        "t",
        status,
        "not-found",
        1,
        ("{}",),
        (),
        None,
        NOW,
        NOW,
        NOW,
        NOW,
        settled,
        None,
        None,
    )


def source(state: Any, letters: tuple[Dispatch, ...] = ()) -> SourceHealth:
    return SourceHealth("s", "linear", state, NOW, None, 4, Flow({}, {}), Depth(0, 0, 0, len(letters), None), letters)


TROUBLE = Look(
    NOW,
    None,
    (source("failing", (dispatch("d1"), dispatch("d2"), dispatch("d3", settled=NOW - 90_000))),),
    (),
    {},
    (
        Row("sha256:a", "s", "acme/app", "suspended", "workflow-hash"),
        Row("sha256:b", "s", "acme/app", "active", None),
    ),
    (Asked(dispatch("d9", "asked", None), NOW + 60),),
)


def test_what_is_told() -> None:
    told = {notice.type: dict(notice.data) for notice in notices(TROUBLE)}
    assert set(told) == {"source.failing", "subscription.suspended", "dispatch.dead", "ask.waiting"}
    assert told["dispatch.dead"]["dead_last_hour"] == 2
    assert told["ask.waiting"]["dispatch"] == "d9"
    assert [notice.type for notice in notices(Look(NOW, "store-away"))] == []
    assert [notice.type for notice in notices(Look(NOW, None, (source("flowing"), source("new"))))] == []


@pytest.fixture
async def store(server: PrivateValkey) -> AsyncIterator[Store]:
    with server.client() as client:
        client.flushall()
    opened = await Store.open(server.url)
    yield opened
    await opened.close()


class Receiver:
    """The operator's webhook."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.got.append(({key.lower(): value for key, value in request.headers.items()}, await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204, headers={"location": "/"})


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    receiving, app = Receiver(), web.Application()
    app.router.add_post("/hook", receiving.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield receiving, f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    await runner.cleanup()


class Fixed:
    """A lookout that sees what it is given."""

    def __init__(self, seen: Look = TROUBLE) -> None:
        self.seen = seen

    async def look(self) -> Look:
        return self.seen


def notifier(
    tmp_path: Path,
    store: Store,
    url: str,
    session: aiohttp.ClientSession,
    look: Fixed | None = None,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> Notifier:
    (tmp_path / "secret").write_text(SECRET)
    given = Notifications(url=url, secret=f"file:{tmp_path}/secret", **settings)
    profile = load_profiles(data_folder("profiles"))["standard-webhooks"]
    return Notifier(given, profile, store, cast(Lookout, look or Fixed()), session, Metrics(), clock)


async def test_signed_and_told_once_by_one_of_several(
    tmp_path: Path, store: Store, receiver: tuple[Receiver, str]
) -> None:
    receiving, url = receiver
    async with aiohttp.ClientSession() as session:
        one, two = (notifier(tmp_path, store, url, session) for _ in range(2))
        assert await one.round() + await two.round() == 4
        assert await one.round() + await two.round() == 0
    assert len(receiving.got) == 4
    for headers, body in receiving.got:
        Webhook(SECRET).verify(body, headers)
        assert set(json.loads(body)) == {"type", "timestamp", "data"}


async def test_a_failure_is_tried_again_with_the_same_id(
    tmp_path: Path, store: Store, receiver: tuple[Receiver, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_seconds: float) -> None:
        return None

    monkeypatch.setattr("gateway.notify.asyncio.sleep", at_once)
    receiving, url = receiver
    receiving.statuses = [500, 302, 503, 500]
    async with aiohttp.ClientSession() as session:
        telling = notifier(tmp_path, store, url, session)
        assert await telling.round() == 0  # three tries, then the next round
        assert len({headers["webhook-id"] for headers, _ in receiving.got}) == 1
        assert await telling.round() == 4
        text = telling._metrics.present(Gauges(0, False)).decode()
    assert 'gateway_notifications_total{result="failed",worker="0"} 1.0' in text


async def test_an_hour_has_a_bound(tmp_path: Path, store: Store, receiver: tuple[Receiver, str]) -> None:
    receiving, url = receiver
    async with aiohttp.ClientSession() as session:
        telling = notifier(tmp_path, store, url, session, hourly=2)
        assert await telling.round() == 2
        assert await telling.round() == 0
        text = telling._metrics.present(Gauges(0, False)).decode()
    assert len(receiving.got) == 2
    assert 'gateway_notifications_total{result="suppressed",worker="0"} 2.0' in text


async def test_nobody_listens(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_seconds: float) -> None:
        return None

    monkeypatch.setattr("gateway.notify.asyncio.sleep", at_once)
    async with aiohttp.ClientSession() as session:
        telling = notifier(tmp_path, store, "http://127.0.0.1:9/hook", session)
        assert await telling.round() == 0
        async with telling.running():
            pass


async def test_what_comes_back_after_an_hour_is_told_again(
    tmp_path: Path, store: Store, receiver: tuple[Receiver, str]
) -> None:
    receiving, url = receiver
    now, seen = [NOW], Fixed(Look(NOW, None, (source("failing"),)))
    well = Look(NOW, None, (source("flowing"),))
    async with aiohttp.ClientSession() as session:
        telling = notifier(tmp_path, store, url, session, seen, lambda: now[0])
        assert await telling.round() == 1
        failing = seen.seen
        for minutes, look, told in (
            (10, well, 0),
            (20, failing, 0),  # it comes and goes: told once
            (50, well, 0),
            (70, Look(NOW, "store-away"), 0),  # what is not known is not well
            (79, failing, 0),
            (100, well, 0),
            (140, well, 0),
            (141, failing, 1),
        ):
            now[0], seen.seen = NOW + minutes * 60, look
            assert await telling.round() == told, minutes
    assert [json.loads(body)["type"] for _, body in receiving.got] == ["source.failing"] * 2


async def test_a_burst_of_dead_letters_hides_no_other(
    tmp_path: Path, store: Store, receiver: tuple[Receiver, str]
) -> None:
    receiving, url = receiver
    now = time.time()
    for number, lane in enumerate(["sha256:b:t", *["sha256:a:t"] * 450]):
        record = {"id": str(number), "source": "s", "received_at": now, "outcome": "forwarded", "reason": None}
        item = AdmitItem((f"id:{number}",), 60, None, (QueueEntry(lane, "{}", str(number)),))
        await store.admit(Admit("s", str(number), (item,), json.dumps(record), now))
        (batch,) = await store.seal("s", now, 30, 1)
        await store.dead(batch, "not-found", now + number / 1000)
    letters = tuple(await store.dead_letters("s", 20))
    assert {one.digest for one in letters} == {"sha256:a"}
    look = SourceHealth("s", "linear", "flowing", now, None, 0, Flow({}, {}), await store.depth("s"), letters)
    async with aiohttp.ClientSession() as session:
        telling = notifier(tmp_path, store, url, session, Fixed(Look(now + 1, None, (look,))))
        assert await telling.round() == 2
    told = {data["subscription"]: data["dead_last_hour"] for data in (json.loads(b)["data"] for _, b in receiving.got)}
    assert told == {"sha256:a": 450, "sha256:b": 1}


GARBAGE = {
    "silent": b"",
    "no-http": b"\x16\x03\x01\x02\x00nonsense\r\n\r\n",
    "endless-header": b"HTTP/1.1 204 No Content\r\nX: " + b"a" * 200_000,
    "no-length": b"HTTP/1.1 500 \xff\xfe\r\nContent-Length: -4\r\n\r\n",
    "two-lengths": b"HTTP/1.1 204 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
    "bad-encoding": b"HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "redirect": b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/api/v1/dead/discard\r\nContent-Length: 0\r\n\r\n",
    "early-hints": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50,
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
async def test_whatever_answers_is_no_success_and_no_crash(
    tmp_path: Path, store: Store, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.notify.TRIES", 1)
    monkeypatch.setattr("gateway.notify.TOTAL_S", 0.5)
    serving: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(cast(asyncio.Task[Any], asyncio.current_task()))
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await asyncio.sleep(2 if answer == b"" else 0.2)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        look = Fixed(Look(NOW, None, (source("failing"),)))
        telling = notifier(tmp_path, store, url, session, look)
        assert await telling.round() == 0
        assert await store.recall("notified:source.failing:s") is None  # the next look tries again
        text = telling._metrics.present(Gauges(0, False)).decode()
        await asyncio.gather(*serving)
    assert 'gateway_notifications_total{result="failed",worker="0"} 1.0' in text
    assert len(serving) == 1
