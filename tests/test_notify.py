import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from gateway.health import Asked, Look, Lookout, Row, SourceHealth
from gateway.metrics import Gauges, Metrics
from gateway.notify import Notifier, notices
from gateway.profiles import load_profiles
from gateway.settings import Notifications, data_folder
from gateway.store import Depth, Dispatch, Flow, Store
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


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as running:
        yield running


@pytest.fixture
async def store(valkey: PrivateValkey) -> AsyncIterator[Store]:
    with valkey.client() as client:
        client.flushall()
    opened = await Store.open(valkey.url)
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
    async def look(self) -> Look:
        return TROUBLE


def notifier(tmp_path: Path, store: Store, url: str, session: aiohttp.ClientSession, **settings: Any) -> Notifier:
    (tmp_path / "secret").write_text(SECRET)
    given = Notifications(url=url, secret=f"file:{tmp_path}/secret", **settings)
    profile = load_profiles(data_folder("profiles"))["standard-webhooks"]
    return Notifier(given, profile, store, cast(Lookout, Fixed()), session, Metrics())


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
