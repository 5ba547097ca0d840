"""Every script, broken: cut off before each of its writes, or with its check taken out, it must be caught.

A script that stops at its n-th write is what the same commands would be without the script, when their caller dies there.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from gateway.errors import Unavailable
from gateway.store import Admit, AdmitItem, Batch, QueueEntry, Store
from gateway.store import client as store_client
from gateway.store.scripts import Script, script
from tests import snapshots
from tests.auditor import Dispatched, Finding, History, Posted, audit, structure
from tests.valkey import PrivateValkey

SOURCE = "s"
DIGEST = "sha256:" + "e" * 64
LANE = f"{DIGEST}:opened"
NOW = 1_790_000_000.0
LEASE_S = 30.0
WRITES = "SET RPUSH LPOP LREM LTRIM ZADD ZREM HSET HDEL HINCRBY HSETNX DEL EXPIRE PEXPIRE PERSIST"
CUT = """
local done_, call_, writes_ = 0, redis.call, {}
for verb in ('%s'):gmatch('%%u+') do writes_[verb] = true end
local redis = setmetatable({call = function(verb, ...)
  if writes_[verb] then
    done_ = done_ + 1
    if done_ == %d then error('cut off') end
  end
  return call_(verb, ...)
end}, {__index = redis})
"""


@dataclass
class Flow:
    """A small life of the store: what was posted and taken, through one store whose scripts may be broken."""

    store: Store
    server: PrivateValkey
    mend: Callable[[], None]
    posted: list[Posted] = field(default_factory=list)
    answers: dict[str, list[str]] = field(default_factory=dict)
    taken: list[Dispatched] = field(default_factory=list)
    given_up: list[Dispatched] = field(default_factory=list)
    extra: list[Finding] = field(default_factory=list)
    time: float = NOW

    async def post(self, number: int) -> None:
        """One event, sent until it is answered, as a provider that sends again would."""
        event, began = f'{{"n":{number}}}', self.time
        for attempt in range(3):
            self.time += 1
            delivery = f"d{number}-{attempt}"
            entry = QueueEntry(LANE, event, delivery)
            record = f'{{"id":"{delivery}","source":"s","received_at":{self.time},"outcome":"forwarded","reason":null}}'
            item = AdmitItem((f"id:{number}",), 3600, None, (entry,))
            try:
                result = await self.store.admit(Admit(SOURCE, delivery, (item,), record, self.time))
            except Unavailable:
                self.mend()
                continue
            self.answers[event] = [delivery]
            assert result.items[0].status in {"queued", "duplicate"}
            self.posted.append(Posted(event, LANE, began, self.time))
            return

    async def lease(self) -> Batch | None:
        self.time += 1
        try:
            found = await self.store.seal(SOURCE, self.time, LEASE_S, 1)
        except Unavailable:
            self.mend()
            return None
        return found[0] if found else None

    async def send(self, batch: Batch) -> None:
        if await self.store.started(batch, self.time, "sha256:e"):
            self.taken.append(Dispatched(batch.dispatch, batch.events))

    async def death(self) -> None:
        """Its process dies and its leases end."""
        self.mend()
        with self.server.client() as client:
            for key in client.scan_iter(match="gw:{s}:lease:*"):
                client.delete(key)
        self.time += 1000

    def look(self) -> list[Finding]:
        with self.server.client() as client:
            snapshot = snapshots.take(client, SOURCE)
        history = History(
            posted=self.posted,
            taken=self.taken,
            dead=[*snapshots.batches(snapshot, "dead"), *self.given_up],
            sealed=snapshots.batches(snapshot, "queued", "sending", "asked"),
            waiting=snapshots.waiting(snapshot),
        )
        return [*structure(snapshot), *audit(history), *self.extra]

    async def judged(self) -> list[Finding]:
        """What is broken now, and what is after a healthy dispatcher sent the rest."""
        found = self.look()
        await self.death()
        while (batch := await self.lease()) is not None:
            await self.send(batch)
            await self.store.done(batch, self.time)
        return found + self.look()

    def turn(self) -> tuple[float, int]:
        """When the lane has its turn, and how long its lease lasts yet."""
        with self.server.client() as client:
            return client.zscore("gw:{s}:ready", LANE) or 0.0, client.ttl(f"gw:{{s}}:lease:{LANE}")


async def quiet(work: Awaitable[object]) -> None:
    """Run a call that may be cut off."""
    with contextlib.suppress(Unavailable):
        await work


async def leased(flow: Flow, *, sent: bool = True) -> Batch:
    await flow.post(1)
    await flow.post(2)
    batch = await flow.lease()
    assert batch is not None
    if sent:
        await flow.send(batch)
    return batch


async def admits(flow: Flow) -> None:
    await flow.post(1)


async def seals(flow: Flow) -> None:
    await flow.post(1)
    await flow.lease()


async def starts(flow: Flow) -> None:
    batch = await leased(flow, sent=False)
    await quiet(flow.send(batch))


async def is_done(flow: Flow) -> None:
    batch = await leased(flow)
    await quiet(flow.store.done(batch, flow.time))


async def dies(flow: Flow) -> None:
    batch = await leased(flow, sent=False)
    await quiet(flow.store.dead(batch, "not-found", flow.time))


async def gives_back(flow: Flow, how: str) -> None:
    batch, due = await leased(flow), flow.time + 500
    if how == "retry":
        await quiet(flow.store.retry(batch, due, "server-error", flow.time))
    else:
        await quiet(flow.store.release(batch, due, held_s=500))
    at, lease = flow.turn()
    with flow.server.client() as client:
        first = float(client.hget(f"gw:{{s}}:dispatch:{batch.dispatch}", "first_attempt") or 0) / 1000
    given = lease < 0
    if given != (at == due * 1000) or (how == "release" and given != (first > flow.time + 400)):
        flow.extra.append(Finding("wrong-turn", how))


async def renews(flow: Flow) -> None:
    batch = await leased(flow)
    await quiet(flow.store.renew(batch, flow.time, 200))
    at, lease = flow.turn()
    if (lease > 100) != (at == (flow.time + 200) * 1000):
        flow.extra.append(Finding("wrong-turn", "renew"))


async def letter(flow: Flow) -> str:
    batch = await leased(flow, sent=False)
    await flow.store.dead(batch, "not-found", flow.time)
    return batch.dispatch


async def replays(flow: Flow) -> None:
    await quiet(flow.store.replay_dead(SOURCE, [await letter(flow)], flow.time))


async def discards(flow: Flow) -> None:
    ident = await letter(flow)
    with flow.server.client() as client:
        flow.given_up += snapshots.batches(snapshots.take(client, SOURCE), "dead")
    await quiet(flow.store.discard_dead(SOURCE, [ident]))


async def records(flow: Flow) -> None:
    await flow.store.record(SOURCE, f'{{"id":"r","source":"s","received_at":{NOW},"outcome":"rejected","reason":"x"}}')
    await flow.store.flush()


async def parks(flow: Flow) -> None:
    await quiet(flow.store.park(7, flow.time + 60, "rate-limited", flow.time))
    bounded(flow, "gw:park")


async def runs(flow: Flow) -> None:
    """Two runs of one dispatch, and two dispatches with one token."""
    batch = await leased(flow)
    await flow.store.done(batch, flow.time)
    await flow.post(3)
    other = await flow.lease()
    assert other is not None
    await flow.send(other)
    ask = partial(flow.store.admit_run, digest=DIGEST, now=flow.time, window_s=3600)
    answers = [
        await ask(batch.dispatch, run_id="1", jti="a"),
        await ask(batch.dispatch, run_id="2", jti="b"),
        await ask(other.dispatch, run_id="3", jti="a"),
    ]
    if answers != ["admitted", "taken", "jti-used"]:
        flow.extra.append(Finding("two-runs", str(answers)))


async def refuses(flow: Flow) -> None:
    """A refused run of another subscription, one of its own, and one after a run was admitted."""
    batch = await leased(flow)
    keep = partial(flow.store.refuse_run, batch.dispatch, reason="ref", now=flow.time)
    told = [await keep(digest="sha256:" + "f" * 64, run_id="1"), await keep(digest=DIGEST, run_id="2")]
    await flow.store.admit_run(batch.dispatch, DIGEST, "3", "j", flow.time, 3600)
    if [*told, await keep(digest=DIGEST, run_id="4")] != [False, True, False]:
        flow.extra.append(Finding("refused-elsewhere", str(told)))


async def carries(flow: Flow) -> None:
    """A run has the dispatch whose events should go on under another."""
    batch = await leased(flow)
    await flow.store.admit_run(batch.dispatch, DIGEST, "1", "a", flow.time, 3600)
    entry = QueueEntry(LANE, batch.events[0], batch.dispatch)
    item = AdmitItem((f"rollover:{batch.dispatch}",), 60, None, (entry,))
    record = f'{{"id":"{batch.dispatch}","source":"s","received_at":{flow.time},"outcome":"forwarded","reason":null}}'
    done = await flow.store.admit(Admit(SOURCE, batch.dispatch, (item,), record, flow.time, batch.dispatch))
    if done.items[0].status != "taken":
        flow.extra.append(Finding("two-runs", "of the old dispatch and of the new one"))


def row(flow: Flow, ident: str) -> dict[str, str]:
    with flow.server.client() as client:
        return dict(client.hgetall(f"gw:{{s}}:dispatch:{ident}"))


async def asks(flow: Flow) -> None:
    batch = await leased(flow, sent=False)
    await quiet(flow.store.ask(SOURCE, batch.dispatch, flow.time, 60))
    found = row(flow, batch.dispatch)
    with flow.server.client() as client:
        listed = client.zscore("gw:{s}:asks", batch.dispatch) is not None
    if len({"ask_asked" in found, "ask_expires" in found, listed}) > 1:
        flow.extra.append(Finding("half-asked", batch.dispatch))


async def answers(flow: Flow) -> None:
    batch = await leased(flow, sent=False)
    await flow.store.ask(SOURCE, batch.dispatch, flow.time, 60)
    await flow.store.release(batch, flow.time + 60, status="asked", reason="asked")
    await quiet(flow.store.answer(SOURCE, batch.dispatch, "yes", "op", flow.time))
    answered = "ask_answer" in row(flow, batch.dispatch)
    with flow.server.client() as client:
        listed = client.zscore("gw:{s}:asks", batch.dispatch) is not None
    if answered == listed or answered != (flow.turn()[0] == flow.time * 1000):
        flow.extra.append(Finding("half-answered", batch.dispatch))


def bounded(flow: Flow, key: str) -> None:
    with flow.server.client() as client:
        if client.ttl(key) == -1:
            flow.extra.append(Finding("unbounded", key))


async def flows(flow: Flow) -> None:
    await quiet(flow.store.add_flow(SOURCE, {"forwarded": (1, flow.time)}, flow.time))
    bounded(flow, "gw:{s}:flow")


async def notices(flow: Flow) -> None:
    await quiet(flow.store.keep_notice(SOURCE, "reauthorizationRequired", "sub", flow.time))
    bounded(flow, "gw:{s}:notices")


async def forgets(flow: Flow) -> None:
    """A notice that came again while the first was acted on."""
    await flow.store.keep_notice(SOURCE, "reauthorizationRequired", "sub", flow.time)
    (first,) = await flow.store.notices(SOURCE)
    await flow.store.keep_notice(SOURCE, "reauthorizationRequired", "sub", flow.time + 5)
    await flow.store.forget_notice(SOURCE, first)
    if not await flow.store.notices(SOURCE):
        flow.extra.append(Finding("lost", "notice"))


async def lost_lease(flow: Flow, how: str) -> None:
    """A dispatcher that stood still while its lease ended: another holds the lane now."""
    batch = await leased(flow)
    with flow.server.client() as client:
        client.delete(f"gw:{{s}}:lease:{LANE}")
    flow.time += 1000
    other = await flow.lease()
    assert other is not None
    calls = {
        "started": partial(flow.store.started, batch, flow.time),
        "retry": partial(flow.store.retry, batch, flow.time, "server-error", flow.time),
        "release": partial(flow.store.release, batch, flow.time),
        "renew": partial(flow.store.renew, batch, flow.time, 60),
        "dead": partial(flow.store.dead, batch, "not-found", flow.time),
    }
    if await calls[how]():
        flow.extra.append(Finding("two-holders", how))


CUTS: dict[str, Callable[[Flow], Awaitable[None]]] = {
    "admit": admits,
    "seal": seals,
    "started": starts,
    "done": is_done,
    "dead": dies,
    "retry": partial(gives_back, how="retry"),
    "release": partial(gives_back, how="release"),
    "renew": renews,
    "replay_dead": replays,
    "discard_dead": discards,
    "record": records,
    "park": parks,
    "ask": asks,
    "answer": answers,
    "flow": flows,
    "notice": notices,
}
GUARD = ("redis.call('GET', P .. 'lease:' .. lane) == token", "true")
CHECKS: dict[str, tuple[Callable[[Flow], Awaitable[None]], str, str]] = {
    "admit_run": (runs, "if run and run ~= ARGV[3] then return 'taken' end", ""),
    "refuse_run": (refuses, " or row[1]:match('^(.*):[^:]*$') ~= ARGV[2]", ""),
    "admit": (carries, "redis.call('HEXISTS', dispatch_key(from), 'run') == 1", "false"),
    "forget_notice": (forgets, "if redis.call('HGET', P .. 'notices', ARGV[1]) ~= ARGV[2] then return 0 end", ""),
    "claim_jti": (runs, "if owner then return owner == ARGV[1] and 1 or 0 end", ""),
    **{name: (partial(lost_lease, how=name), *GUARD) for name in ("started", "retry", "release", "renew", "dead")},
}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateValkey]:
    with PrivateValkey(fsync="no") as running:
        yield running


def broken(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[str], str]) -> None:
    """Put another text in a script's place; its name at the server is not the real one's."""
    text = change(script(name).text)
    assert text != script(name).text
    mutant = Script(text, "0" * 40)  # unknown to the server: run by its text each time
    monkeypatch.setattr(store_client, "script", lambda asked: mutant if asked == name else script(asked))


async def findings(
    server: PrivateValkey, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Flow], Awaitable[None]]
) -> list[Finding]:
    with server.client() as client:
        client.flushall()
    store = await Store.open(server.url, require=True)
    flow = Flow(store, server, lambda: monkeypatch.setattr(store_client, "script", script))
    try:
        await scenario(flow)
        return await flow.judged()
    finally:
        await store.close()


def test_every_script_that_writes_is_here() -> None:
    folder = Path(store_client.__file__).parent.parent / "lua"
    whole = {"lib", "depth", "point"}  # no writes, or one: nothing to cut apart
    assert {path.stem for path in folder.glob("*.lua")} - whole == CUTS.keys() | CHECKS.keys()


@pytest.mark.parametrize("name", CUTS)
async def test_a_script_cut_in_two_is_caught(server: PrivateValkey, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert await findings(server, monkeypatch, CUTS[name]) == []
    kinds = []
    for write in range(1, 8):
        broken(monkeypatch, name, lambda text, write=write: CUT % (WRITES, write) + text)  # type: ignore[misc]
        kinds.append({finding.kind for finding in await findings(server, monkeypatch, CUTS[name])})
    assert kinds[0] == set()  # cut off before it wrote anything: as if it had not been called
    assert any(kinds), f"{name} could be two commands, and nothing would tell"


@pytest.mark.parametrize("name", CHECKS)
async def test_a_script_without_its_check_is_caught(
    server: PrivateValkey, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scenario, old, new = CHECKS[name]
    assert await findings(server, monkeypatch, scenario) == []
    broken(monkeypatch, name, lambda text: text.replace(old, new))
    assert await findings(server, monkeypatch, scenario)
