"""The store on what operators run: Sentinel with a real failover, a Cluster of three masters, TLS, a Unix socket."""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from gateway.errors import ConfigError, Rejection, Unavailable
from gateway.store import Store
from tests.destination_house import house
from tests.test_store import DIGEST, NOW, admit, drain, event, one_batch, status
from tests.topology import Node, certificate, cluster, tls_before, wait, watched
from tests.valkey import PrivateValkey

pytestmark = pytest.mark.e2e


async def taken(store: Store, number: int, source: str) -> bool:
    """Admit one numbered event, as a sender that sends again would; whether it was answered."""
    try:
        await store.admit(admit(f"d{number}", f"id:{number}", source=source))
    except Unavailable:
        return False
    return True


async def test_sentinel_failover_loses_nothing_that_was_answered() -> None:
    with watched() as servers:
        store = await Store.open(servers.url, wait_replicas=1, require=True)
        accepted: list[int] = []
        stop = asyncio.Event()

        async def load(first: int) -> None:
            for number in range(first, 1_000_000, 4):
                if stop.is_set():
                    return
                if await taken(store, number, "s"):
                    accepted.append(number)
                else:
                    await asyncio.sleep(0.05)

        loaders = [asyncio.create_task(load(n)) for n in range(4)]
        await asyncio.sleep(0.5)
        before, old = len(accepted), servers.primary()
        old.kill()
        killed = time.monotonic()
        for _ in range(600):
            if len(accepted) > before + 20 and servers.primary() is not old:
                break
            await asyncio.sleep(0.05)
        assert servers.primary() is not old
        print(f"failover: {time.monotonic() - killed:.1f} s, {before} accepted before")
        stop.set()
        await asyncio.gather(*loaders)
        with servers.primary().client() as client:
            client.script_flush()
        assert before > 20
        queued = await drain(store, "s")
        assert {event(f"d{number}") for number in accepted} - set(queued) == set()
        assert len(queued) == len(set(queued))
        await store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as below
async def test_admission_during_a_redis_failover_admits_one_run_a_dispatch() -> None:
    """The primary dies while eight runs a dispatch ask: nobody is admitted who could lose it, and each dispatch gets one."""
    with watched() as servers:
        old: Any = servers.primary()
        async with house(old, url=servers.url, wait_replicas=1) as home:
            before, *raced = [await home.dispatch() for _ in range(7)]
            await home.admit(home.token(run_id="1"), before)
            away = 0

            async def run(run_id: int, dispatch: str, after_s: float = 0) -> str:
                nonlocal away
                await asyncio.sleep(after_s)
                for _ in range(400):
                    try:
                        return (await home.admit(home.token(run_id=str(run_id)), dispatch)).run_id
                    except Rejection as error:
                        return error.reason
                    except Unavailable:
                        away += 1
                        await asyncio.sleep(0.1)
                raise TimeoutError

            asking = [asyncio.gather(*(run(n + 10, one, n * 0.4) for n in range(8))) for one in raced]
            await asyncio.sleep(0.05)  # in the middle of the first runs' claims
            old.kill()
            answers = await asyncio.gather(*asking)
            assert servers.primary() is not old
            assert away > 0
            for dispatch, said in zip(raced, answers, strict=True):
                known = await home.store.dispatch(dispatch)
                assert known is not None
                assert [one for one in said if one != "taken"] == [known.run]
            # as the action does, both ask again while the new primary's replica has not caught up
            assert await run(2, before) == "taken"
            assert await run(1, before) == "1"
        for one in gc.get_objects():  # the library forgets connections to a dead node without closing them
            if isinstance(one, AbstractConnection):
                await one.disconnect(nowait=True)


async def test_a_primary_that_lost_its_replicas_answers_nothing() -> None:
    with watched(1) as servers:
        store = await Store.open(servers.url, wait_replicas=1, require=True)
        assert await status(store, admit("d1")) == ("queued", None)
        next(node for node in servers.nodes if node is not servers.primary()).kill()
        with pytest.raises(Unavailable):
            await store.admit(admit("d2"))
        await store.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the library drops a dead node's clients
async def test_a_cluster_of_three_masters() -> None:
    with cluster() as nodes:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        store = await Store.open(url, require=True)
        sources = [f"source-{n}" for n in range(12)]
        await asyncio.gather(*(store.admit(admit(f"{one}-{n}", source=one)) for one in sources for n in range(5)))
        sizes = []
        for node in nodes:
            with node.client() as client:
                sizes.append(client.dbsize())
                client.script_flush()
        assert all(size > 5 for size in sizes), sizes  # the sources are spread over all three
        for one in sources:
            batch = await one_batch(store, source=one)
            assert len(batch.events) == 5
            assert await store.started(batch, NOW)
            assert await store.admit_run(batch.dispatch, DIGEST, "1", f"j-{one}", NOW, 60) == "admitted"
            assert await store.done(batch, NOW, "sent")
            assert (await store.dispatch(batch.dispatch)) is not None
        assert len((await store.deliveries(limit=500)).rows) == 60
        # one master is killed and comes back: the same process goes on, and nothing answered is gone
        accepted = [one for one in sources if await taken(store, 1, one)]
        assert accepted == sources
        nodes[0].kill()
        answers = [await taken(store, 2, one) for one in sources]
        assert not all(answers)
        nodes[0].start()
        for _ in range(100):
            if all([await taken(store, 2, one) for one in sources]):
                break
            await asyncio.sleep(0.1)
        for one in sources:
            assert await drain(store, one) == [event("d1"), event("d2")]
        await store.close()
        gc.collect()


async def test_wait_replicas_is_refused_on_a_cluster() -> None:
    with pytest.raises(ConfigError) as refused:
        await Store.open("redis+cluster://127.0.0.1:1", wait_replicas=1)
    assert refused.value.problems[0].key == "store.wait_replicas"


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, private = certificate(tmp_path)
    other, _ = certificate(tmp_path, "other")
    node = Node()
    node.start()
    try:
        async with tls_before(node.port, public, private) as port:
            store = await Store.open(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={public}", require=True)
            assert await status(store, admit("d1")) == ("queued", None)
            node.kill()
            with pytest.raises(Unavailable):
                await store.admit(admit("d2"))
            node.start()
            assert await status(store, admit("d2")) == ("queued", None)
            await store.close()
            for url in (f"rediss://127.0.0.1:{port}?ssl_ca_certs={other}", f"rediss://127.0.0.1:{port}"):
                with pytest.raises(Unavailable):  # a certificate that nobody vouches for
                    await Store.open(url, require=True)
            monkeypatch.setenv("SSL_CERT_FILE", str(public))
            store = await Store.open(f"rediss://127.0.0.1:{port}", require=True)
            assert await drain(store) == [event("d1"), event("d2")]
            await store.close()
    finally:
        node.close()


async def test_a_unix_socket() -> None:
    with PrivateValkey() as server:
        store = await Store.open(server.url, require=True)
        assert await status(store, admit("d1")) == ("queued", None)
        server.restart()
        assert await status(store, admit("again", "id:d1")) == ("duplicate", "d1")
        assert await drain(store) == [event("d1")]
        await store.close()


def test_waiting_ends() -> None:
    with pytest.raises(TimeoutError):
        wait(lambda: False, "nothing", 0.1)
