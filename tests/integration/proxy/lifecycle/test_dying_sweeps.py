"""Kill -9 in the middle of a sweep, at every place where something is written: after a start each session is in the
store or in files that can be imported, and never in both."""

import asyncio
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.unit.proxy.lifecycle.imports import Store
from tests.unit.proxy.lifecycle.sweeps import UNCLAIMED, House
from tests.waiting import PATIENCE

from rolloutfleet.dumps.files import parse_dump_name
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.failpoints import (
    AFTER_COMMIT,
    AFTER_DUMP,
    AFTER_RENAME,
    BEFORE_COMMIT,
    IN_TRANSACTION,
    MID_DUMP,
    MID_SWEEP,
)
from rolloutfleet_proxy.store.trajectories import close_session

T = TypeVar("T")
PLACES = (MID_DUMP, AFTER_RENAME, AFTER_DUMP, IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT, MID_SWEEP)
_processes = multiprocessing.get_context("forkserver")


def housed(folder: Path, work: Callable[[House], Coroutine[Any, Any, T]]) -> T:
    """Do something in a store that a proxy has just begun to serve."""

    async def run() -> T:
        house = House(folder)
        try:
            return await work(house)
        finally:
            await house.close()

    return asyncio.run(run())


async def sweep(house: House) -> None:
    house.seconds = 3 * UNCLAIMED
    await house.sweep()


def sweep_and_die(folder: Path, place: str, times: int) -> None:
    """A process's work: sweep, and die when it comes to a place for the n-th time."""

    async def dying(house: House) -> None:
        failpoints.arm(place, times)
        await sweep(house)

    housed(folder, dying)


@pytest.fixture(scope="module")
def unclaimed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder with a store of sessions that nobody claimed, and their names: some were imported."""
    folder = tmp_path_factory.mktemp("unclaimed")
    store = Store(folder / "store", folder / "dumps")
    names = set()
    for imported in (False, True):
        for session, name in store.start(2):
            store.commit(session, name=f"{name}-a")
            store.trajectory(session)
            store.commit(session, name=f"{name}-b", parent=1)
            store.trajectory(session)
            names.add(name)
            if imported:
                store.import_dumps(store.dump(session))
    for session, state in store.rows("SELECT id, state FROM sessions"):
        if state == "open":
            store.run(partial(close_session, session=session))
    store.close()
    _processes.set_forkserver_preload([__name__])
    return folder, names


async def state(house: House) -> tuple[set[str], list[str]]:
    """(sessions that are there, sessions of files that could be imported) after a start."""
    await house.sweeper.tidy(house.orders())
    return await house.there(), [name.session_id for file in house.files() if (name := parse_dump_name(file))]


@pytest.mark.parametrize("place", PLACES)
def test_a_death_in_a_sweep_leaves_each_session_in_the_store_or_in_its_files(
    unclaimed: tuple[Path, set[str]], tmp_path: Path, place: str
) -> None:
    folder, names = unclaimed
    for times in range(1, 100, 13 if place == MID_DUMP else 1):
        copy = shutil.copytree(folder, tmp_path / str(times))
        dying = _processes.Process(target=sweep_and_die, args=(copy, place, times))
        dying.start()
        dying.join(PATIENCE)
        if dying.exitcode == 0:
            break
        assert dying.exitcode == -signal.SIGKILL, (place, times)
        there, dumped = housed(copy, state)
        assert there.isdisjoint(dumped) and there.union(dumped) == names
        assert len(dumped) == 2 * len(set(dumped)), "one of each trajectory"
        housed(copy, sweep)
        there, dumped = housed(copy, state)
        assert there == set() and sorted(dumped) == sorted([*names, *names])
    assert 1 < times < 100
