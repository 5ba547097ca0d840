"""The sweep on a real store against the doubles: what never arrived is asked for again, bounded, and nothing else is."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import wire
from gateway.answers import next_link
from gateway.configuration import Configuration, load_configuration
from gateway.doubles import providers
from gateway.doubles.deliveries import Log
from gateway.doubles.github import running
from gateway.doubles.github.double import GitHubDouble
from gateway.environment import data_folder
from gateway.github import GitHubApp
from gateway.store import Store
from gateway.structs import replace
from gateway.sweep import ATTEMPTS, GITLAB_ASKS, OVERLAP_S, ROUND_S, TICK_S, Attempt, Plan, Sweeper, plan
from tests.operating import APP_ID, PEM, PUBLIC, write
from tests.valkey import PrivateValkey

NOW = 1_800_000_000.0
EXAMPLES = data_folder("subscriptions") / "examples"
GITHUB = json.loads((EXAMPLES / "github-issue-opened.json").read_bytes())
GITLAB = json.loads((EXAMPLES / "gitlab-merge-request-opened.json").read_bytes())


def attempt(delivery: str, status: int, position: float, *, at: float | None = None) -> Attempt:
    return Attempt(f"{delivery}@{position}", delivery, status, position, position if at is None else at)


# -- the decision


def test_only_what_never_arrived_and_may_yet_is_asked_for() -> None:
    log = [
        attempt("good", 200, 10),
        attempt("failed then good", 503, 20),
        attempt("failed then good", 200, 30),
        attempt("failed", 503, 40),
        attempt("no answer", 0, 50),
        attempt("refused", 401, 60),
        attempt("too fresh", 500, 995),
        *[attempt("hopeless", 502, 100 + n) for n in range(ATTEMPTS)],
    ]
    decided = plan(log, 1000, 10)
    assert [one.delivery for one in decided.ask] == ["failed", "no answer"]
    assert (decided.waiting, decided.given_up) == (3, 1)
    assert 39 < decided.mark < 40  # everything up to it is settled


def test_attempts_wait_longer_each_time() -> None:
    log = [attempt("d", 503, 0), attempt("d", 503, 100)]
    assert plan(log, 200, 10).ask == ()
    assert [one.id for one in plan(log, 220, 10).ask] == ["d@100"]  # the newest one is asked for


def test_a_quiet_log_keeps_the_mark() -> None:
    assert plan([], 1000, 10, 77) == Plan((), 0, 0, 77)
    assert plan([attempt("d", 200, 500)], 1000, 10, 77).mark == 500 - OVERLAP_S
    assert plan([attempt("d", 200, 80)], 1000, 10, 77).mark == 77
    assert plan([Attempt("9", "d", 200, 9.0)], 1000, 10, 7).mark == 9  # ids need no overlap


def test_redeliveries_whose_first_attempt_is_behind_the_mark_are_settled() -> None:
    log = [replace(attempt("given up", 503, 100), redelivery=True), attempt("new", 503, 100)]
    assert [one.delivery for one in plan(log, 1000, 10, 90).ask] == ["new"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from([0, 200, 401, 429, 500, 503]), st.integers(0, 900)),
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_any_log_is_bounded_and_never_passes_what_is_open(rows: list[tuple[str, int, int]], most: int) -> None:
    log = [attempt(delivery, status, float(at)) for delivery, status, at in rows]
    decided = plan(log, 1000, most)
    assert len(decided.ask) <= most
    assert len({one.delivery for one in decided.ask}) == len(decided.ask)
    good = {one.delivery for one in log if one.good}
    for one in decided.ask:
        assert one.delivery not in good
        assert decided.mark < min(other.position for other in log if other.delivery == one.delivery)


def test_links() -> None:
    assert next_link('<https://a/b?cursor=1>; rel="next", <https://a/c>; rel="prev"') == "https://a/b?cursor=1"
    assert next_link('<https://a/c>; rel="prev"') is None
    assert next_link("") is None


# -- the whole


class House:
    """Sources for GitHub and GitLab, the doubles, and a sweeper with a clock of its own."""

    configuration: Configuration
    store: Store
    session: aiohttp.ClientSession
    github: GitHubDouble
    providers: providers.ProvidersDouble
    app: GitHubApp

    def __init__(self) -> None:
        self.now = NOW

    def clock(self) -> float:
        return self.now

    def sweeper(self) -> Sweeper:
        return Sweeper(lambda: self.configuration, self.store, self.session, self.app, clock=self.clock)

    async def wire(self, name: str) -> Log:
        """Make the source's hook at the double; return its delivery log."""
        wiring = wire.wiring_for(self.configuration, name, self.session)
        parts = (wiring.provider, wiring.api, wiring.want)
        rows = await wire.look(*parts, self.store, wiring.key, self.now)
        (made,) = await wire.apply(*parts, rows, self.store, wiring.key, self.now)
        return self.providers.log(int(str(made.id)))

    async def round(self, sweeper: Sweeper, after_s: float = ROUND_S) -> None:
        self.now += after_s
        for name in self.configuration.sources:
            await self.store.forget(f"sweeping:{name}")
        await sweeper.round()


@pytest.fixture
async def house(server: PrivateValkey, tmp_path: Path) -> AsyncIterator[House]:
    with server.client() as client:
        client.flushall()
    made = House()
    (tmp_path / "token").write_text(providers.TOKEN)
    (tmp_path / "signing").write_text("whsec_" + "A" * 43 + "=")
    async with (
        providers.running(clock=made.clock) as doubles,
        running(app_id=APP_ID, public_key_pem=PUBLIC, installations={11: [GITHUB["repository"]]}) as app,
        aiohttp.ClientSession() as session,
    ):
        source = [
            "[sources.github]",
            'profile = "github"',
            f'secrets = ["file:{tmp_path}/linear"]',
            f'api_url = "{doubles.address}/github"',
            f'api_token = "file:{tmp_path}/token"',
            "[sources.gitlab]",
            'profile = "gitlab-signing"',
            f'secrets = ["file:{tmp_path}/signing"]',
            f'api_url = "{doubles.address}/gitlab/api/v4"',
            f'api_token = "file:{tmp_path}/token"',
        ]
        for name, document in (("github", GITHUB), ("gitlab", GITLAB)):
            source += [
                "[[enrollments]]",
                f'subscription = "{document["digest"]}"',
                f'source = "{name}"',
                "installation = 11",
            ]
        more = ["[server]", 'public_url = "https://hooks.example"', "[github]", f'api_url = "{app.address}"']
        more += [f"app_id = {APP_ID}", f'private_key = "file:{tmp_path}/app.pem"']
        made.configuration = load_configuration(write(tmp_path, server.url, source=source, more=more))
        made.session, made.providers, made.github = session, doubles.double, app.double
        made.github.log.clock = made.clock
        made.store = await Store.open(server.url, require=True)
        made.app = GitHubApp(app.address, APP_ID, PEM, session)
        yield made
        await made.store.close()


async def test_github_is_asked_once_for_what_an_outage_lost(house: House) -> None:
    log = await house.wire("github")
    log.add("before", 200)
    for n in range(250):  # more than two pages
        house.now += 1
        log.add(f"lost-{n}", 0 if n % 2 else 503)
    log.add("refused", 401)
    sweeper = house.sweeper()
    for _ in range(3):  # a hundred a turn, the next a minute later
        await house.round(sweeper, TICK_S * 2)
    assert sorted(log.asked) == sorted(f"lost-{n}" for n in range(250))
    calls = len(house.providers.kept.calls)
    await house.round(sweeper)
    assert len(log.asked) == 250
    assert len(house.providers.kept.calls) - calls < 8  # the log is read back to the mark alone
    again = house.sweeper()  # another process, or this one started anew: the mark is in the store
    await house.round(again)
    assert len(log.asked) == 250


async def test_what_is_older_than_three_days_is_left_alone(house: House) -> None:
    log = await house.wire("github")
    log.add("old", 503, at=NOW - 3 * 86_400 - 10)
    log.add("young", 503, at=NOW - 2 * 86_400)
    await house.round(house.sweeper())
    assert log.asked == ["young"]


async def test_one_that_keeps_failing_is_given_up_and_remembered(house: House) -> None:
    log = await house.wire("github")

    async def send(_delivery: str) -> int:
        return 503

    log.send = send
    log.add("d", 503)
    sweeper = house.sweeper()
    for _ in range(20):
        await house.round(sweeper, 1200)
    assert log.asked == ["d"] * (ATTEMPTS - 1)
    assert await house.store.recall("gap:github") is not None
    log.add("later", 503)
    await house.round(sweeper)
    assert log.asked.count("later") == 1


async def test_the_app_hook_is_swept_where_it_is_ours(house: House) -> None:
    house.github.log.add("lost", 503)
    house.now += 120
    await house.round(house.sweeper())
    assert house.github.log.asked == []  # its URL is another's
    house.github.hook_url = "https://hooks.example/hooks/github"
    await house.round(house.sweeper())
    assert house.github.log.asked == ["lost"]
    await house.round(house.sweeper())
    assert house.github.log.asked == ["lost"]


async def test_gitlab_is_asked_within_its_rate(house: House) -> None:
    log = await house.wire("gitlab")
    log.add("fine", 200)
    for n in range(30):
        log.add(f"lost-{n}", 500 if n % 2 else 0)
    sweeper = house.sweeper()
    await house.round(sweeper)
    assert log.asked == [f"lost-{n}" for n in range(GITLAB_ASKS)]
    for _ in range(10):
        await house.round(sweeper, TICK_S + 1)
    assert sorted(log.asked) == sorted(f"lost-{n}" for n in range(30))


async def test_a_hook_of_a_group_above_the_project_is_swept_too(house: House) -> None:
    wiring = wire.wiring_for(house.configuration, "gitlab", house.session)
    (project,) = wiring.want.granted("projects")
    house.providers.kept.groups[project] = ["9", "404", "8"]  # of one the token may see nothing
    logs = {}
    for group, url in (("9", "https://elsewhere.example/"), ("8", wiring.want.url)):
        made = await wiring.api.call("POST", f"/groups/{group}/hooks", {"url": url})
        logs[group] = house.providers.log(int(made["id"]))
        logs[group].add("lost", 503)
    await house.round(house.sweeper())
    assert {group: log.asked for group, log in logs.items()} == {"9": [], "8": ["lost"]}


async def test_two_processes_do_not_sweep_at_once(house: House) -> None:
    log = await house.wire("github")
    log.add("lost", 503)
    house.now += 200
    first, second = house.sweeper(), house.sweeper()
    await first.round()
    await second.round()
    assert log.asked == ["lost"]


async def test_a_provider_that_is_away_costs_one_turn(house: House) -> None:
    log = await house.wire("github")
    log.add("lost", 503)
    sweeper = house.sweeper()
    async with house.session.post(
        f"{house.configuration.settings.sources['github'].api_url}/../_double/fault", json={"status": 503}
    ) as response:
        assert response.status < 300
    await house.round(sweeper)
    assert log.asked == []
    await house.round(sweeper)
    assert log.asked == ["lost"]


async def test_a_source_that_nothing_is_enrolled_for_is_left_alone(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.configuration = replace(house.configuration, enrolled=())
    with caplog.at_level(logging.WARNING, "gateway"):
        await house.sweeper().round()
    assert [record.message for record in caplog.records] == []


def test_an_attempt_says_what_it_was() -> None:
    one = Attempt("1", "d", 503, 1.0)
    assert one.passing
    assert not one.good
    assert replace(one, status=204).good
    assert not replace(one, status=404).passing
