"""A trainer that comes back after a crash: what its dead run left, at two proxies, and what it may drop of that."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.agents import talk, talk_all
from tests.integration.client.fleet.by_turns import sessions_by_turns
from tests.integration.client.fleet.conftest import whereabouts
from tests.waiting import PATIENCE

from rolloutfleet.fleet import AsyncFleet, AsyncSession, Conflict, Fleet, NotEverywhere, NotHeardYet, TookTooLong
from rolloutfleet.staleness import StalenessManager


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two proxies, whose versions only these tests move; the engines don't say theirs."""
    folder = tmp_path_factory.mktemp("recovering")
    with running_fleet(folder, proxies=2, engine_options=("--weight-version", "default")) as found:
        yield found


@pytest.fixture
async def fleet(running: Running) -> AsyncIterator[AsyncFleet]:
    """The trainer that will be dead; nothing is left of other tests."""
    async with AsyncFleet(whereabouts(running), progress=False) as found:
        async for shown in found.sessions():
            await found.delete(shown)
        yield found


@pytest.fixture
async def restarted(running: Running) -> AsyncIterator[AsyncFleet]:
    budget = StalenessManager(max_concurrent=4, max_staleness=1, batch_size=4)
    async with AsyncFleet(whereabouts(running), staleness=budget, progress=False) as found:
        yield found


async def at_both(fleet: AsyncFleet, *, version: int) -> list[AsyncSession]:
    """Four sessions that have talked under this version, two at each proxy."""
    await fleet.set_version(version)
    made = await sessions_by_turns(fleet, 4, task_id="old")
    await talk_all(made)
    return made


async def ready(fleet: AsyncFleet) -> set[str]:
    """The sessions of which trajectories can be exported, without taking them."""
    async with fleet.export(on_exit="keep") as export:
        found = [each async for each in export]
    await fleet.release(found)
    return {each.session_id for each in found}


async def next_version(fleet: AsyncFleet) -> int:
    return (await fleet.weights()).version + 1


async def test_the_version_is_not_known_before_a_proxy_has_said_it(running: Running) -> None:
    async with AsyncFleet(whereabouts(running)) as fleet:
        for name in ("version", "run"):
            with pytest.raises(NotHeardYet, match=r"fleet\.weights\(\) asks"):
                getattr(fleet, name)
        weights = await fleet.weights()
        assert (fleet.version, fleet.run) == (weights.version, weights.run)


def test_nor_is_it_to_code_that_blocks(running: Running) -> None:
    with Fleet(whereabouts(running)) as fleet:
        with pytest.raises(NotHeardYet):
            _ = fleet.version
        assert fleet.weights().version == fleet.version


async def test_a_recovery_that_would_drop_too_much_drops_nothing_anywhere(
    fleet: AsyncFleet, restarted: AsyncFleet
) -> None:
    version = 2 * await next_version(fleet) + 2
    made = await at_both(fleet, version=version)
    for session in made[:-1]:
        await session.close()
    before, stood = await fleet.audit(), await fleet.weights()
    for too_far in (0, version // 2 - 1):
        with pytest.raises(Conflict, match=f"would discard {len(made)} trajectories") as refused:
            await restarted.recover(too_far, open="delete")
        assert refused.value.code == "recovery_too_far"
        assert refused.value.details["would_drop"] == {"ready": len(made) - 1, "leased": 0, "open": 1}
    assert (await fleet.audit(), await fleet.weights()) == (before, stood)
    assert restarted.staleness is not None
    assert restarted.staleness.counts.accepted == 0
    answer = await restarted.recover(0, confirm=True)
    assert answer.recovered["dropped_trajectories"] == len(made) - 1
    assert answer.ordinals == [0, 1]
    assert await ready(fleet) == set()


async def test_kept_sessions_hold_their_places_and_the_time_out_says_whose_they_are(
    fleet: AsyncFleet, restarted: AsyncFleet
) -> None:
    version = await next_version(fleet)
    made = await at_both(fleet, version=version)
    await restarted.recover(version)
    with pytest.raises(TookTooLong, match=f"{len(made)} sessions of earlier runs are open.*open='close'"):
        await restarted.start_session(timeout=0.2)
    # They can be found, and ended by hand.
    left = [shown async for shown in restarted.sessions(state="open", task_id="old")]
    assert {shown.session_id for shown in left} == {session.session_id for session in made}
    assert [shown async for shown in restarted.sessions(task_id="other")] == []
    for shown in left:
        await restarted.delete(shown)
    await (await restarted.start_session(timeout=PATIENCE)).delete()


async def test_closed_sessions_can_be_exported_and_their_agents_are_told(
    fleet: AsyncFleet, restarted: AsyncFleet
) -> None:
    version = await next_version(fleet)
    made = await at_both(fleet, version=version)
    answer = await restarted.recover(version, open="close")
    assert answer.recovered["ended_sessions"] == len(made)
    for session in made:
        with pytest.raises(openai.APIStatusError) as ended:
            await talk(session)
        assert (ended.value.status_code, ended.value.code) == (410, "session_closed")
    session = await restarted.start_session(timeout=PATIENCE)
    # The same recovery again leaves the new run's sessions alone.
    await restarted.recover(version, run=answer.run, open="close")
    await talk(session)
    await session.delete()
    assert await ready(restarted) == {session.session_id for session in made}


async def test_deleted_sessions_are_gone(fleet: AsyncFleet, restarted: AsyncFleet) -> None:
    version = await next_version(fleet)
    made = await at_both(fleet, version=version)
    assert (await restarted.recover(version, open="delete")).recovered["ended_sessions"] == len(made)
    assert await ready(restarted) == set()
    assert [shown async for shown in restarted.sessions()] == []
    assert (await restarted.audit()).balanced


async def test_a_call_in_flight_of_a_session_that_is_ended_ends_with_it(
    running: Running, fleet: AsyncFleet, restarted: AsyncFleet
) -> None:
    session = await fleet.start_session()
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as agent:
        running.engine.fault("never", after_tokens=5)
        stream = await agent.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": "x"}], max_tokens=2000, stream=True
        )
        await anext(stream)
        await restarted.recover(await next_version(fleet), open="close")
        with pytest.raises(openai.APIError, match="closed"):
            async for _ in stream:
                pass
    assert sum(proxy.stats()["sessions"]["open"] for proxy in running.proxies) == 0


async def test_a_list_without_a_proxy_that_is_down_says_so(running: Running, fleet: AsyncFleet) -> None:
    made = await at_both(fleet, version=await next_version(fleet))
    running.proxies[1].kill()
    found = []
    with pytest.raises(NotEverywhere) as error:
        async for shown in fleet.sessions():
            found.append(shown.session_id)
    assert set(error.value.failed) == {1}
    assert set(found) == {session.session_id for session in made if session.session_id.startswith("s0-")}
    running.proxies[1].start()
