"""Pauses, versions and weight updates by a trainer: two real proxies, two engines, and a proxy killed in between."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence

import httpx
import psutil
import pytest
from tests.commands import suspended
from tests.fleets import Fleet as Running
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.client.fleet.agents import talk
from tests.integration.client.fleet.conftest import whereabouts
from tests.waiting import PATIENCE, comes_true, eventually

from rolloutfleet.fleet import AsyncFleet, BadArgument, Conflict, Fleet, NotEverywhere, Refused, StillPaused
from rolloutfleet.fleet.proxies import Proxies
from rolloutfleet_proxy.cluster.weights import TIMEOUT


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("updates")
    options = ("--token-latency", "0.01", "--weight-version", "0")
    with running_fleet(folder, proxies=2, engines=2, engine_options=options) as found:
        yield found


@pytest.fixture
def two(running: Running) -> Iterator[Running]:
    """Both proxies up, and nothing paused, before and after."""
    yield running
    for engine in running.engines:
        engine.clear_faults()
    for proxy in running.proxies:
        if proxy.process is None or proxy.process.poll() is not None:
            proxy.start()
    with Fleet(whereabouts(running)) as fleet:
        fleet.resume()


@contextlib.asynccontextmanager
async def agents(fleet: AsyncFleet, number: int = 4) -> AsyncIterator[list[str]]:
    """Agents that talk all the time, and their turns; what they can't do while a proxy is down does not matter here."""
    turns: list[str] = []

    async def one() -> None:
        while True:
            with contextlib.suppress(Exception):
                async with await fleet.start_session() as session:
                    turns.extend(await talk(session, max_tokens=40))

    tasks = [asyncio.create_task(one()) for _ in range(number)]
    try:
        yield turns
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def turns_more(turns: list[str], number: int) -> None:
    """Return once agents have made so many more."""
    enough = len(turns) + number
    await comes_true(lambda: len(turns) >= enough)


async def states(running: Running) -> list[tuple[int, int, bool]]:
    return await asyncio.to_thread(states_of, running.proxies)


def states_of(proxies: Sequence[ProxyProcess]) -> list[tuple[int, int, bool]]:
    """(version, epoch, paused) as each proxy has it by itself. Blocks."""
    with httpx.Client(headers={"authorization": f"Bearer {proxies[0].key}"}, timeout=PATIENCE) as admin:
        said = [admin.get(f"{proxy.url}/version").json() for proxy in proxies]
    return [(each["version"], each["epoch"], each["paused"]) for each in said]


async def in_engines(running: Running, version: int) -> None:
    async with httpx.AsyncClient() as admin:
        for engine in running.engines:
            body = {"model_path": "new", "weight_version": str(version)}
            (await admin.post(f"{engine.url}/update_weights_from_disk", json=body)).raise_for_status()


async def agree(running: Running, *, version: int, paused: bool = False) -> None:
    """All proxies say the same, soon."""

    def said() -> set[tuple[int, int, bool]]:
        try:
            return set(states_of(running.proxies))
        except httpx.TransportError:
            return set()

    await eventually(lambda: [(each[0], each[2]) for each in said()] == [(version, paused)])


async def test_the_whole_dance_while_agents_talk(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet, agents(fleet) as turns:
        first = (await fleet.weights()).version
        for version in range(first + 1, first + 4):
            await turns_more(turns, 2)
            async with fleet.weight_update(version) as update:
                assert {paused for _, _, paused in await states(two)} == {True}
                assert update.paused is not None
                assert update.paused.failed == []
                await in_engines(two, version)
            assert len(set(await states(two))) == 1
            assert (await states(two))[0] == (version, update.epoch, False)
            assert fleet.version == version


def test_the_same_for_code_that_blocks(two: Running) -> None:
    with Fleet(whereabouts(two), progress=False) as fleet:
        version = fleet.weights().version + 1
        with fleet.weight_update(version, mode="retract") as update:
            assert fleet.weights().paused
            asyncio.run(in_engines(two, version))
        assert (fleet.weights().version, fleet.weights().paused, update.version) == (version, False, version)


async def test_a_body_that_fails_leaves_the_fleet_paused_and_says_so(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        before = (await fleet.weights()).version
        with pytest.raises(RuntimeError, match="no disk") as error:
            async with fleet.weight_update(before + 1):
                raise RuntimeError("no disk")
        assert any("stays paused" in note for note in error.value.__notes__)
        assert {(version, paused) for version, _, paused in await states(two)} == {(before, True)}
        await fleet.resume()
        await agree(two, version=before)


async def test_weights_are_loaded_from_disk_while_agents_talk(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet, agents(fleet) as turns:
        version = (await fleet.weights()).version
        for mode in ("abort", "in_place"):
            await turns_more(turns, 2)
            version += 1
            answer = await fleet.load_from_disk(f"checkpoints/{version}", version, mode)
            assert (answer.version, answer.paused, answer.failed, fleet.version) == (version, False, [], version)
            assert await states(two) == [(version, answer.epoch, False)] * 2
            assert {engine.weight_version() for engine in two.engines} == {str(version)}


def test_an_engine_that_loads_nothing_is_named_and_leaves_the_fleet_paused(two: Running) -> None:
    with Fleet(whereabouts(two), progress=False) as fleet:
        version = fleet.weights().version + 1
        two.engines[1].fault("load_fails", message="no such file")
        with pytest.raises(StillPaused, match=rf"{two.engines[1].url}: .*400: no such file.* stays paused") as error:
            fleet.load_from_disk("nowhere", version)
        assert error.value.epoch == fleet.weights().epoch and fleet.weights().paused
        assert not fleet.load_from_disk("somewhere", version).paused
        assert {(each[0], each[2]) for each in states_of(two.proxies)} == {(version, False)}
        with pytest.raises(BadArgument, match="version: 0 would go back"):
            fleet.load_from_disk("somewhere", 0)
        with pytest.raises(BadArgument, match="in_place"):
            fleet.load_from_disk("somewhere", version, "in_place", flush_cache=True)


async def test_a_version_that_goes_back_is_refused_before_anything_is_paused(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        await fleet.set_version((await fleet.weights()).version + 1)
        before = await states(two)
        with pytest.raises(BadArgument, match="version"):
            async with fleet.weight_update(fleet.version - 1):
                pass
        with pytest.raises(Conflict) as error:
            await fleet.set_version(fleet.version - 1)
        assert error.value.code == "version_backwards"
        assert await states(two) == before


async def test_an_engine_that_hangs_leaves_nothing_paused(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        version = (await fleet.weights()).version
        with suspended(two.engine.pid), pytest.raises(Refused) as error:
            async with fleet.weight_update(version + 1, timeout=1.0):
                raise AssertionError("nothing may be done without a pause")
        assert error.value.code == "pause_timeout"
        assert error.value.details["engines_failed"]
        await agree(two, version=version)


async def test_a_pause_that_the_next_leader_undid_is_no_pause(two: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy 1 hangs while proxy 0 leads; led from itself later, it finds an engine that hangs."""
    hung, engine = two.proxies[1].stats()["pid"], psutil.Process(two.engine.pid)
    check = Proxies.check

    async def awake(proxies: Proxies, ordinal: int) -> None:
        os.kill(hung, signal.SIGCONT)
        monkeypatch.setattr("rolloutfleet.fleet.proxies.PROBE_TIMEOUT", 30.0)  # it has much to do first
        await check(proxies, ordinal)

    async def after_the_first_lead(proxies: Proxies, ordinal: int) -> None:
        if (await asyncio.to_thread(states_of, two.proxies[:1]))[0][2] and ordinal == 1:
            engine.suspend()
            monkeypatch.setattr(Proxies, "check", awake)
            await awake(proxies, ordinal)
        else:
            await check(proxies, ordinal)

    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        version = (await fleet.weights()).version
        os.kill(hung, signal.SIGSTOP)
        monkeypatch.setattr(Proxies, "check", after_the_first_lead)
        try:
            with pytest.raises(Refused) as error:
                await fleet.pause(timeout=2 * TIMEOUT + 2)
        finally:
            os.kill(hung, signal.SIGCONT)
            engine.resume()
        assert error.value.code == "pause_timeout"
        await agree(two, version=version)


async def test_a_pause_that_must_reach_every_proxy_and_does_not_is_ended(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        await fleet.proxies()
        two.proxies[1].kill()
        with pytest.raises(NotEverywhere) as error:
            await fleet.pause(strict=True)
        assert error.value.failed.keys() == {1}
        assert not (await fleet.weights()).paused


async def test_somebody_elses_newer_pause_is_not_undone(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet, AsyncFleet(whereabouts(two)) as other:
        version = (await fleet.weights()).version
        with pytest.raises(StillPaused) as error:
            async with fleet.weight_update(version + 1) as update:
                newer = await other.pause()
        assert newer.epoch == (update.epoch or 0) + 1
        assert error.value.epoch == update.epoch
        assert {(each, paused) for each, _, paused in await states(two)} == {(version, True)}
        await other.resume(epoch=newer.epoch)


async def test_a_pause_that_is_broken_off_does_not_stay(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet, agents(fleet):
        version = (await fleet.weights()).version
        for wait in (0.0, 0.005, 0.02, 0.05, 0.2):
            task = asyncio.create_task(fleet.pause())
            asyncio.get_running_loop().call_later(wait, task.cancel)
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                # It was done before it could be broken off.
                assert not isinstance(outcome, BaseException), outcome
                await fleet.resume()
            await comes_true(lambda: not fleet.owed)
            await agree(two, version=version)


async def test_an_update_goes_on_without_a_killed_proxy_which_is_told_when_it_is_back(two: Running) -> None:
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        version = (await fleet.weights()).version + 1
        async with fleet.weight_update(version) as update:
            two.proxies[1].kill()
            await in_engines(two, version)
        assert fleet.version == version
        shown = await fleet.weights()
        assert (shown.version, shown.paused, [each.ordinal for each in shown.failed]) == (version, False, [1])
        with pytest.raises(NotEverywhere) as error:
            await fleet.set_version(version, strict=True)
        assert error.value.failed.keys() == {1}
        two.proxies[1].launch()
        await asyncio.to_thread(two.proxies[1].wait_until_ready)
        await agree(two, version=version)
        assert update.epoch == (await fleet.weights()).epoch


@pytest.mark.parametrize("killed", [0, 1])
async def test_a_leader_killed_in_the_middle_of_an_update(two: Running, killed: int) -> None:
    """Whichever proxy led, the other one goes on, and both agree in the end."""
    async with AsyncFleet(whereabouts(two, ordinal=1 - killed), progress=False) as fleet, agents(fleet) as turns:
        version = (await fleet.weights()).version + 1
        await turns_more(turns, 2)
        with suspended(two.engine.pid):
            pausing = asyncio.create_task(fleet.pause())
            # Whoever leads has told both, and waits for the engines.
            await eventually(lambda: all(paused for *_, paused in states_of(two.proxies)))
            two.proxies[killed].kill()
        paused = await asyncio.wait_for(pausing, PATIENCE)
        assert paused.paused
        await in_engines(two, version)
        await fleet.set_version(version, epoch=paused.epoch)
        await fleet.resume(epoch=paused.epoch)
        two.proxies[killed].launch()
        await asyncio.to_thread(two.proxies[killed].wait_until_ready)
        await agree(two, version=version)


async def test_a_proxy_that_hangs_is_named_and_told_later(two: Running) -> None:
    hung = two.proxies[1]
    async with AsyncFleet(whereabouts(two), progress=False) as fleet:
        version = (await fleet.weights()).version + 1
        with suspended(hung.stats()["pid"]):
            answer = await asyncio.wait_for(fleet.set_version(version), PATIENCE)
            assert [each.ordinal for each in answer.failed] == [1]
            assert fleet.owed == ["what proxy 1 missed of the weights"]
        await agree(two, version=version)
        await comes_true(lambda: not fleet.owed)
