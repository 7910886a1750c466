"""Proxies killed by SIGKILL under a training loop: nothing is lost or taken twice, and the others are not held up."""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.fleets import Fleet as Running
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.client.fleet.agents import talk_all, talked
from tests.integration.client.fleet.by_turns import check_halves, keys_by_turns, sessions_by_turns, starts_by_turns
from tests.integration.client.fleet.conftest import whereabouts
from tests.integration.client.fleet.killing import ended_sessions, set_right, start_keys, up_again
from tests.waiting import PATIENCE, START, comes_true

from rolloutfleet.fleet import AsyncFleet, Fleet, Trajectory
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.wire import Audit
from rolloutfleet_proxy.cluster.placement import keeper_of
from rolloutfleet_proxy.failpoints import AFTER_COMMIT, AFTER_START, BEFORE_COMMIT, VARIABLE


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fleet(tmp_path_factory.mktemp("killed"), proxies=2, start_proxies=False) as found:
        yield found


@pytest.fixture
def two(running: Running) -> Running:
    set_right(running)
    return running


@pytest.fixture
def before(two: Running) -> Audit:
    """What was counted until the test began."""
    with Fleet(whereabouts(two), progress=False) as fleet:
        return fleet.audit()


def names(trajectories: list[Trajectory]) -> list[str]:
    return sorted(each.session_id for each in trajectories)


async def test_training_reaches_its_batch_with_one_proxy_killed_and_all_load_on_the_other(
    two: Running, before: Audit
) -> None:
    """The budget is one batch. What half of it made is with a dead proxy, and must not hold up the other half."""
    manager = StalenessManager(max_concurrent=8, max_staleness=0, batch_size=8)
    async with AsyncFleet(whereabouts(two), staleness=manager, too_old="keep", lost_after=1.0, progress=False) as fleet:
        first = await ended_sessions(fleet, 8)
        of_the_dead = {session.session_id for session in first if session.session_id.startswith("s1")}
        two.proxies[1].kill()

        async def rollouts() -> None:
            while True:
                async with await fleet.start_session() as session:
                    await talk_all([session])

        trained: list[str] = []
        work = asyncio.create_task(rollouts())
        try:
            for version in (1, 2):
                async with fleet.export(8, timeout=START) as export:
                    trained += [each.session_id async for each in export]
                answer = await fleet.set_version(version)
                assert [each.ordinal for each in answer.failed] == [1]
            assert of_the_dead.isdisjoint(trained)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        assert fleet.unreachable.keys() == {1}
        await up_again(two.proxies[1])
        async with fleet.export(timeout=START) as export:
            trained += [each.session_id async for each in export]
        assert of_the_dead <= set(trained)
        assert Counter(trained).most_common(1)[0][1] == 1
        audit = await fleet.audit()
        assert (audit.turns.live, audit.turns.leased, audit.balanced) == (0, 0, True)
        made = audit.turns.created - before.turns.created
        assert audit.turns.acknowledged - before.turns.acknowledged == made


async def test_sessions_start_with_one_of_two_proxies_down(two: Running, before: Audit) -> None:
    two.proxies[1].kill()
    keys = keys_by_turns()
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        with start_keys(lambda: next(keys)):
            sessions = [await fleet.start_session() for _ in range(20)]
        assert {session.session_id[:2] for session in sessions} == {"s0"}
        assert len({session.session_id for session in sessions}) == 20
        await up_again(two.proxies[1])
        started = (await fleet.audit()).sessions.created - before.sessions.created
        assert started == 20, "no key started a second one"


async def test_a_start_whose_proxy_died_over_it_is_asked_of_that_proxy_until_it_is_back(
    two: Running, before: Audit
) -> None:
    """It was committed, and its answer lost: only the proxy that is down knows of it."""
    dying = two.proxies[1]
    dying.stop()
    dying.environment = {VARIABLE: AFTER_START}
    key = next(key for key in keys_by_turns() if keeper_of(key, 2) == 1)
    async with AsyncFleet(whereabouts(two), progress=False, patience=START) as fleet:
        dying.start()
        two.wait_until_complete()
        with start_keys(lambda: key):
            starting = asyncio.create_task(fleet.start_session())
            await asyncio.to_thread(dying.wait_until_killed, PATIENCE)
        dying.environment = {}
        await up_again(dying)
        session = await starting
        assert session.session_id.startswith("s1")
        assert (await fleet.audit()).sessions.created == before.sessions.created + 1


async def test_an_export_that_a_dead_proxy_never_heard_leases_nothing_when_it_is_back(two: Running) -> None:
    """Else another export would find nothing there, for a moment."""
    dead = two.proxies[1]
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        sessions = await ended_sessions(fleet, 8)
        alive, leases = sum(session.session_id.startswith("s0") for session in sessions), leases_of(dead)
        dead.kill()
        async with fleet.export(timeout=START, grace=0.5) as export:
            assert len([each async for each in export]) == alive
        assert any("broken off" in text for text in fleet.owed)
        await up_again(dead)
        await comes_true(lambda: not fleet.owed, seconds=START)
        assert leases_of(dead) == leases
        async with fleet.export(timeout=START) as export:
            assert len([each async for each in export]) == len(sessions) - alive


def leases_of(proxy: ProxyProcess) -> int:
    """How many its store knows of, those included that have ended."""
    with contextlib.closing(sqlite3.connect(f"file:{proxy.store_file}?mode=ro", uri=True)) as store:
        [leases] = store.execute("SELECT count(*) FROM leases").fetchone()
    return int(leases)


async def test_a_proxy_killed_in_mid_export_delays_its_own_data_only(two: Running, before: Audit) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        sessions = await ended_sessions(fleet, 40)
        alive = [session for session in sessions if session.session_id.startswith("s0")]
        taken: list[Trajectory] = []
        async with fleet.export(40, page=4, timeout=START) as export:
            async for trajectory in export:
                taken.append(trajectory)
                if len(taken) == 6:
                    two.proxies[1].kill()
                if len([each for each in taken if each.session_id.startswith("s0")]) == len(alive) and (
                    two.proxies[1].boots == 1
                ):
                    # All that the other one has came without a wait.
                    assert len(taken) < 40
                    assert export.unreachable.keys() <= {1}
                    await up_again(two.proxies[1])
        assert names(taken) == sorted(session.session_id for session in sessions)
        async with fleet.export() as rest:
            assert [each async for each in rest] == []
        assert (await fleet.audit()).turns.acknowledged == before.turns.acknowledged + 40


def test_the_same_for_code_that_blocks(two: Running, before: Audit) -> None:
    with Fleet(whereabouts(two), progress=False) as fleet:
        with starts_by_turns():
            sessions = [fleet.start_session() for _ in range(20)]
        check_halves(sessions)
        talked(sessions)
        for session in sessions:
            session.close()
        taken = []
        with fleet.export(20, page=2, timeout=START) as export:
            for trajectory in export:
                taken.append(trajectory)
                if len(taken) == 4:
                    two.proxies[1].kill()
                if len(taken) == 8:
                    two.proxies[1].start()
        assert names(taken) == sorted(session.session_id for session in sessions)
        assert fleet.audit().turns.acknowledged == before.turns.acknowledged + 20


async def test_without_a_count_an_export_ends_and_names_who_is_missing(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        sessions = await ended_sessions(fleet, 8)
        two.proxies[1].kill()
        async with fleet.export(grace=1.0) as export:
            taken = [each async for each in export]
            assert export.unreachable.keys() == {1}
        assert names(taken) == sorted(each.session_id for each in sessions if each.session_id.startswith("s0"))


async def test_an_acknowledgement_that_nobody_hears_is_said_again_and_never_trained_twice(
    two: Running, before: Audit
) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        await ended_sessions(fleet, 10)
        async with fleet.export(10, timeout=START) as export:
            taken = [each async for each in export]
            two.proxies[1].kill()
        assert any("acknowledgement" in text for text in fleet.owed)
        await up_again(two.proxies[1])
        await comes_true(lambda: not fleet.owed, seconds=START)
        async with fleet.export() as rest:
            assert [each async for each in rest] == []
        audit = await fleet.audit()
        assert (audit.turns.acknowledged - before.turns.acknowledged, audit.turns.leased, len(taken)) == (10, 0, 10)


@contextlib.asynccontextmanager
async def dying(proxy: ProxyProcess, *, deaths: int) -> AsyncIterator[Counter[str]]:
    """The proxy dies before or after every few commits, and is started again, so many times; then it stays."""
    proxy.kill()
    counted: Counter[str] = Counter()

    def launch() -> None:
        place = (BEFORE_COMMIT, AFTER_COMMIT)[counted.total() % 2]
        proxy.environment = {VARIABLE: f"{place}:{2 + counted.total()}"} if counted.total() < deaths else {}
        proxy.launch()
        counted[place] += 1

    async def again_and_again() -> None:
        while proxy.process is not None:
            await asyncio.to_thread(proxy.process.wait)
            launch()

    launch()
    task = asyncio.create_task(again_and_again())
    try:
        yield counted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        proxy.kill()
        proxy.environment = {}
        await up_again(proxy)


async def test_every_act_of_a_trainer_survives_a_proxy_that_dies_again_and_again(two: Running, before: Audit) -> None:
    """Rewards, closes, exports and acknowledgements lose their answers; each is made again, and done once."""
    manager = StalenessManager(max_concurrent=100, max_staleness=100, batch_size=20)
    async with AsyncFleet(whereabouts(two), patience=START, staleness=manager, progress=False) as fleet:
        sessions = await sessions_by_turns(fleet, 20)
        await talk_all(sessions)
        async with dying(two.proxies[1], deaths=5) as deaths:
            for number, session in enumerate(sessions):
                await session.reward(float(number))
                await session.close()
            assert deaths.total() > 1
            async with fleet.export(20, page=1, timeout=START) as export:
                taken = [each async for each in export]
            await comes_true(lambda: not fleet.owed, seconds=START)
            assert deaths.total() > 3
        assert sorted(each.reward or 0.0 for each in taken) == [float(number) for number in range(20)]
        assert names(taken) == sorted(session.session_id for session in sessions)
        audit = await fleet.audit()
        assert audit.turns.acknowledged - before.turns.acknowledged == 20
        assert (audit.turns.leased, audit.balanced) == (0, True)
        assert (manager.counts.accepted, manager.counts.running) == (20, 0)


async def test_a_session_whose_proxy_is_down_is_closed_when_it_is_back(two: Running, before: Audit) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        _, session = await sessions_by_turns(fleet, 2)
        with pytest.raises(RuntimeError, match="of the agent"):
            async with session:
                two.proxies[1].kill()
                raise RuntimeError("of the agent")
        assert fleet.owed == [f"the end of session {session.session_id}"]
        await up_again(two.proxies[1])
        await comes_true(lambda: not fleet.owed, seconds=START)
        assert (await fleet.audit()).sessions.discarded["empty"] == before.sessions.discarded.get("empty", 0) + 1


async def test_an_export_that_waits_follows_proxies_that_come_and_go(two: Running) -> None:
    """Scaled to one and back to two, while a trainer waits for a batch."""
    first, second = two.proxies

    async def scaled_to(replicas: int) -> None:
        for proxy in two.proxies:
            proxy.stop()
            proxy.settings["replicas"] = replicas
        for proxy in two.proxies[:replicas]:
            await up_again(proxy)

    try:
        async with AsyncFleet(whereabouts(two), progress=False) as fleet:
            before = await ended_sessions(fleet, 6)
            await scaled_to(1)
            assert [each.ordinal for each in await fleet.proxies()] == [0]
            taken: list[Trajectory] = []
            async with fleet.export(8, timeout=START) as export:
                async for trajectory in export:
                    taken.append(trajectory)
                    if len(taken) == sum(each.session_id.startswith("s0") for each in before):
                        async with AsyncFleet(whereabouts(two), progress=False) as other:
                            sessions = [await other.start_session() for _ in range(2)]
                            await talk_all(sessions)
                            for session in sessions:
                                await session.close()
                        await scaled_to(2)
            assert names(taken) == sorted(each.session_id for each in (*before, *sessions))
            assert [each.ordinal for each in await fleet.proxies()] == [0, 1]
    finally:
        first.settings["replicas"] = second.settings["replicas"] = 2
