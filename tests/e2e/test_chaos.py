"""The chaos suite's short form: every fault once in one run under load, then one audit. `make chaos` is the long form."""

import asyncio

import pytest

from tests.e2e.chaos import FAULTS, Chaos

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("engine", ["hypercorn", "uvicorn"])
async def test_every_fault_once_and_nothing_is_lost(engine: str) -> None:
    accepted = {}
    async with Chaos(engine=engine) as stage:
        async with stage.load():
            for name, fault in FAULTS.items():
                before = stage.account.accepted
                await asyncio.sleep(0.7)
                await fault(stage)
                accepted[name] = stage.account.accepted - before
            recovery_s = await stage.recovered()
        took = await stage.drain()
        history, found = await stage.audited()
        print(accepted, f"\nrecovered in {recovery_s:.1f} s, drained in {took:.1f} s; {dict(stage.account.statuses)}")
        assert found == []
        assert history.waiting == []
        assert history.sealed == []
        assert stage.account.accepted > 300
        assert any(len(ids) > 1 for ids in history.answers.values())  # duplicates were among them
        assert len({b.dispatch for b in history.taken}) < len(history.taken)  # and repeats of unknown outcomes
        assert history.dead  # and dead letters
        assert recovery_s < 40
