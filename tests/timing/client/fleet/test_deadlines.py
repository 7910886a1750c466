"""Times that a trainer keeps while a proxy is down, and when it is told to end."""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.agents import talk
from tests.integration.client.fleet.by_turns import keys_by_turns
from tests.integration.client.fleet.conftest import whereabouts
from tests.integration.client.fleet.killing import ended_sessions, set_right, start_keys, up_again
from tests.integration.client.fleet.trainers import Trainer
from tests.waiting import PATIENCE

from rolloutfleet.fleet import AsyncFleet, AsyncSession, EpisodeGroup
from rolloutfleet.fleet.proxies import new_key
from rolloutfleet_proxy.cluster.placement import keeper_of


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {"sessions": {"cleanup_interval": 0.2}}
    with running_fleet(tmp_path_factory.mktemp("deadlines"), proxies=2, settings=settings) as found:
        yield found


@pytest.fixture
def two(running: Running) -> Running:
    set_right(running)
    return running


async def test_twenty_sessions_start_within_five_seconds_with_one_of_two_proxies_down(two: Running) -> None:
    two.proxies[1].kill()
    keys = keys_by_turns()
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        # Left to chance, one start in 256 draws eight keys of the proxy that is down, and then waits for seconds.
        with start_keys(lambda: next(keys)):
            async with asyncio.timeout(5):
                sessions = [await fleet.start_session() for _ in range(20)]
        assert {session.session_id[:2] for session in sessions} == {"s0"}


async def test_an_export_without_a_count_ends_within_twenty_seconds_with_a_proxy_down(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        await ended_sessions(fleet, 8)
        two.proxies[1].kill()
        async with asyncio.timeout(20), fleet.export(grace=1.0) as export:
            assert len([each async for each in export]) == 4


async def test_a_proxy_that_is_down_holds_up_no_acknowledgement_for_ten_seconds(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        await ended_sessions(fleet, 10)
        async with fleet.export(10, timeout=PATIENCE) as export:
            assert len([each async for each in export]) == 10
            two.proxies[1].kill()
            ended = time.monotonic()
        assert time.monotonic() - ended < 10
        assert any("acknowledgement" in text for text in fleet.owed)


async def test_a_group_of_a_rollout_waits_for_its_proxy_and_comes_whole(two: Running) -> None:
    """Down for longer than a close or an export waits by itself."""

    async def back_later() -> None:
        await asyncio.sleep(15)
        await up_again(two.proxies[1])

    async def agent(session: AsyncSession, task: str) -> None:
        await talk(session, max_tokens=500)

    backs: list[asyncio.Task[None]] = []

    async def kill(group: EpisodeGroup) -> None:
        two.proxies[1].kill()
        backs.append(asyncio.create_task(back_later()))

    keys = iter([next(key for key in keys_by_turns() if keeper_of(key, 2) == 1)])
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        with start_keys(lambda: next(keys, new_key())):
            async with fleet.rollout(agent, ["a"], n=2, after_each=kill) as episodes:
                group = await anext(episodes)
        await asyncio.gather(*backs)
        assert [len(episode.trajectories) for episode in group] == [1, 1]
        assert {episode.outcome for episode in group} == {"completed"}


async def test_sessions_of_a_rollout_are_touched_and_its_leases_renewed_as_often_as_they_need_it(two: Running) -> None:
    async def slow(session: AsyncSession, task: str) -> None:
        await talk(session)
        await asyncio.sleep(5)
        await talk(session)

    times = {"lease_seconds": 2.0}
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        async with fleet.rollout(slow, ["a"], n=2, on_exit="keep", export=times, stale_after=2.0) as episodes:
            group = await anext(episodes)
            assert [episode.turns for episode in group] == [2, 2]
            await asyncio.sleep(5)
            async with fleet.export(group_id=group.group_id) as export:
                assert [each async for each in export] == []
        await fleet.acknowledge(group.trajectories)


def test_ctrl_c_ends_a_wait_within_twenty_seconds(two: Running) -> None:
    trainer = Trainer(
        two,
        """
        with fleet, fleet.export(count=100) as export:
            say_once_it_waits()
            next(export)
        """,
    )
    try:
        assert trainer.hear() == {"waits": True}
        began = time.monotonic()
        trainer.process.send_signal(signal.SIGINT)
        trainer.end()
        assert time.monotonic() - began < 20
    finally:
        trainer.process.kill()
