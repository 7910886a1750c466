"""Sessions under the staleness budget, on two real proxies: who waits, and what gives a place back."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import httpx
import pytest
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.agents import talk, talk_all
from tests.integration.client.fleet.conftest import whereabouts
from tests.threads import in_threads
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.fleet import AsyncFleet, BadArgument, Fleet, KeyRefused, TookTooLong, Unreachable, Whereabouts
from rolloutfleet.staleness import StalenessManager


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A fleet of one, whose versions only these tests move; the engines don't say theirs."""
    folder = tmp_path_factory.mktemp("budget")
    with running_fleet(folder, engine_options=("--weight-version", "default")) as running:
        yield running


@pytest.fixture
def here(alone: Running) -> Iterator[Whereabouts]:
    """It holds nothing afterwards: a session that is left would count in another test's budget, and be exported."""
    where = whereabouts(alone)
    yield where
    with Fleet(where, progress=False) as fleet:
        for session in fleet.sessions():
            fleet.delete(session)


def budget(*, max_concurrent: int = 100, max_staleness: int = 0, batch_size: int = 100) -> StalenessManager:
    return StalenessManager(max_concurrent=max_concurrent, max_staleness=max_staleness, batch_size=batch_size)


def of(where: Whereabouts, staleness: StalenessManager, **options: object) -> AsyncFleet:
    return AsyncFleet(where, staleness=staleness, progress=False, **options)  # type: ignore[arg-type]


async def fresh(fleet: AsyncFleet, staleness: StalenessManager) -> None:
    """The budget as at the fleet's present version, with nothing held."""
    staleness.on_version_recovered((await fleet.weights()).version)


async def test_a_session_waits_until_another_ends(here: Whereabouts) -> None:
    manager = budget(max_concurrent=2)
    async with of(here, manager) as fleet:
        group = await fleet.start_group(2)
        waiting = asyncio.create_task(fleet.start_session())
        await comes_true(lambda: manager.counts.enqueued == 1)
        await talk_all(group)
        await group.sessions[0].close()
        session = await asyncio.wait_for(waiting, PATIENCE)
        assert (manager.counts.running, manager.counts.accepted, manager.counts.enqueued) == (2, 1, 0)
        await session.delete()
        await group.sessions[1].delete()
        assert (manager.counts.running, manager.counts.accepted, manager.counts.rejected) == (0, 1, 2)


async def test_a_session_waits_for_a_version(here: Whereabouts) -> None:
    manager = budget(batch_size=2)
    async with of(here, manager) as fleet, of(here, budget()) as other:
        await fresh(fleet, manager)
        async with await fleet.start_group(2) as group:
            await talk_all(group)
        with pytest.raises(TookTooLong, match="no room for 1 session within"):
            await fleet.start_session(timeout=0.3)
        assert manager.counts.enqueued == 0
        waiting = asyncio.create_task(fleet.start_session())
        # Whoever moves it: this trainer hears of it.
        await other.set_version(fleet.version + 1)
        await (await asyncio.wait_for(waiting, PATIENCE)).delete()


async def test_first_come_first_served(here: Whereabouts) -> None:
    manager = budget(max_concurrent=3)
    async with of(here, manager) as fleet:
        group = await fleet.start_group(2)
        large = asyncio.create_task(fleet.start_group(2))
        await comes_true(lambda: manager.counts.enqueued == 2)
        small = asyncio.create_task(fleet.start_session())
        await comes_true(lambda: manager.counts.enqueued == 3)  # though there is room for one
        assert not small.done()
        for session in group:
            await session.delete()
        started = [*(await large), await small]
        for session in started:
            await session.delete()
        assert manager.counts.running == 0


async def test_sessions_that_ended_unseen_are_found(here: Whereabouts) -> None:
    manager = budget(max_concurrent=3)
    async with of(here, manager) as fleet, AsyncFleet(here) as other:
        mine = await fleet.start_group(3, agent_may=["close"])
        await talk_all(mine)
        closed_by_its_agent, deleted_elsewhere, taken_elsewhere = mine
        key = {"authorization": f"Bearer {closed_by_its_agent.api_key}"}
        async with httpx.AsyncClient(headers=key) as agent:
            url = closed_by_its_agent.base_url.removesuffix("/v1")
            (await agent.post(f"{url}/close")).raise_for_status()
        await other.delete(deleted_elsewhere)
        await other.close_session(taken_elsewhere)
        async with other.export(session_ids=[taken_elsewhere]) as export:
            assert len([each async for each in export]) == 1
        more = await asyncio.wait_for(fleet.start_group(3), PATIENCE)
        assert (manager.counts.running, manager.counts.accepted, manager.counts.rejected) == (3, 2, 1)
        for session in more:
            await session.delete()


async def test_a_session_that_somebody_else_rewarded_keeps_its_place_when_it_is_closed(here: Whereabouts) -> None:
    manager = budget()
    async with of(here, manager) as fleet, AsyncFleet(here) as other:
        async with await fleet.start_session() as session:
            await talk(session)
            await other.reward(session, 1.0)
        assert (manager.counts.accepted, manager.counts.rejected, manager.counts.running) == (1, 0, 0)
        async with fleet.export(session_ids=[session]) as export:
            assert len([each async for each in export]) == 1
        assert fleet._slots.sessions() == [], "all of it is trained"


@pytest.mark.parametrize("as_", ["tensors", "shards"])
async def test_too_old_is_dropped_and_its_place_given_back(
    here: Whereabouts, as_: Literal["tensors", "shards"]
) -> None:
    manager = budget(max_staleness=1)
    async with of(here, manager) as fleet:
        async with await fleet.start_session() as session:
            await talk(session)
        now = fleet.version
        await fleet.set_version(now + 1)
        async with await fleet.start_session() as young:
            await talk(young)
        await fleet.set_version(now + 2)
        assert manager.counts.accepted == 2
        async with fleet.export(session_ids=[session, young], as_=as_) as export:
            found = [each.session_id async for each in export]
        assert found == [young.session_id]
        assert export.dropped == [f"{session.session_id}-trajectory-1"]
        assert (manager.counts.accepted, manager.counts.rejected) == (1, 1)
        assert (fleet.counts.too_old_dropped, fleet.counts.handed_out) == (1, 1)
        async with fleet.export() as rest:
            assert [each async for each in rest] == []


async def test_too_old_is_kept_where_that_is_asked_for(here: Whereabouts) -> None:
    manager = budget()
    async with of(here, manager, too_old="keep") as fleet:
        async with await fleet.start_session() as session:
            await talk(session)
        await fleet.set_version(fleet.version + 1)
        async with fleet.export(session_ids=[session]) as export:
            (trajectory,) = [each async for each in export]
        assert trajectory.oldest_version == fleet.version - 1
        assert (fleet.counts.too_old_kept, manager.counts.accepted) == (1, 1)


async def test_a_session_that_left_nothing_counts_as_rejected(here: Whereabouts) -> None:
    manager = budget()
    async with of(here, manager) as fleet:
        async with await fleet.start_session():
            pass
        assert (manager.counts.accepted, manager.counts.rejected, manager.counts.running) == (0, 1, 0)


async def test_a_start_that_fails_gives_its_place_back(here: Whereabouts) -> None:
    manager = budget()
    nowhere = Whereabouts.from_url("http://127.0.0.1:9", admin_key="x")
    async with of(nowhere, manager, patience=0.2) as fleet:
        with pytest.raises(Unreachable, match="no connection could be made"):
            await fleet.start_session()
    wrong = Whereabouts.from_url(here.urls[0], admin_key="wrong")
    async with of(wrong, manager) as fleet:
        with pytest.raises(KeyRefused):
            await fleet.start_session()
    assert manager.counts.running == manager.counts.enqueued == 0


async def test_a_group_larger_than_the_budget_is_refused(here: Whereabouts) -> None:
    async with of(here, budget(max_concurrent=2)) as fleet:
        with pytest.raises(BadArgument, match="group_size: is 3, and max_concurrent 2"):
            await fleet.start_group(3)


async def test_a_trainer_that_recovers_counts_what_the_fleet_holds(here: Whereabouts) -> None:
    async with of(here, budget()) as before:
        held = await before.start_group(3)
        running = await before.start_group(2)
        await talk_all([*held, *running])
        for session in held:
            await session.close()
        version = (await before.weights()).version
    manager = budget(batch_size=10, max_staleness=2)
    async with of(here, manager) as after:
        answer = await after.recover(version)
        assert answer.run == after.run > 0
        assert (manager.counts.accepted, manager.counts.running) == (version * 10 + 3, 2)
        assert manager.capacity(version) == 3 * 10 - 3 - 2
        await after.recover(version, run=answer.run)
        assert (manager.counts.accepted, manager.counts.running) == (version * 10 + 3, 2)
        async with after.export(3, timeout=PATIENCE) as export:
            batch = [each async for each in export]
        assert {each.session_id for each in batch} == {session.session_id for session in held}
        for session in running:
            await after.close_session(session.session_id)
        assert (manager.counts.accepted, manager.counts.running) == (version * 10 + 5, 0)
        async with after.export() as rest:
            assert len([each async for each in rest]) == 2


def test_threads_share_one_budget(here: Whereabouts) -> None:
    manager = budget(max_concurrent=3)
    most: list[int] = []

    def train() -> None:
        with Fleet(here, staleness=manager, progress=False) as fleet:
            for _ in range(5):
                with fleet.start_session():
                    most.append(manager.counts.running)

    in_threads(train, threads=6)
    assert len(most) == 30
    assert max(most) <= 3
    assert (manager.counts.running, manager.counts.enqueued, manager.counts.submitted) == (0, 0, 30)
