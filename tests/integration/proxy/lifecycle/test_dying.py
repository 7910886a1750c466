"""Kill -9 in the middle of an import, at every place where something is written: all of it is there afterwards, or
none, and what is none can be imported again."""

import multiprocessing
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.proxy.lifecycle.imports import Store
from tests.waiting import PATIENCE

from rolloutfleet.wire import ImportDumps
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.failpoints import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    IMPORT_CLAIMED,
    IMPORT_COMMITTED,
    IMPORT_FINISHED,
    IMPORT_STAGED,
    IN_TRANSACTION,
)

PLACES = (IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT, IMPORT_CLAIMED, IMPORT_STAGED, IMPORT_COMMITTED, IMPORT_FINISHED)
_processes = multiprocessing.get_context("forkserver")


def import_and_die(folder: Path, names: list[str], place: str, times: int) -> None:
    """A process's work: import dumps, and die when it comes to a place for the n-th time."""
    store = Store(folder / "store", folder / "dumps")
    failpoints.arm(place, times)
    store.wait(store.importer.run(ImportDumps(names=names)))
    store.close()


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[tuple[str, str], bytes]]:
    """A folder with a store that let go of its sessions, their dumps, and what they would have been exported as."""
    folder = tmp_path_factory.mktemp("dumped")
    store = Store(folder / "store", folder / "dumps")
    members = store.start(2)
    for session, name in members:
        first = store.commit(session, name=f"{name}-a")
        store.trajectory(session)
        store.commit(session, name=f"{name}-b", parent=first)
        store.trajectory(session)
    before = store.exported(session_ids=[name for _, name in members])
    names = [dump for session, _ in members for dump in store.dump(session)]
    store.close()
    _processes.set_forkserver_preload([__name__])
    return folder, names, before


def deaths(folder: Path, names: list[str], place: str, at: Path) -> Iterator[Path]:
    """A copy of the folder after each death at a place, the first time it comes there, the second, and so on."""
    for times in range(1, 100):
        copy = shutil.copytree(folder, at / f"{place}-{times}")
        dying = _processes.Process(target=import_and_die, args=(copy, names, place, times))
        dying.start()
        dying.join(PATIENCE)
        if dying.exitcode == 0:
            return
        assert dying.exitcode == -signal.SIGKILL, (place, times)
        yield copy
    raise AssertionError(f"{place} is never past")


@pytest.mark.parametrize("place", PLACES)
def test_a_death_loses_nothing_and_doubles_nothing(
    dumped: tuple[Path, list[str], dict[tuple[str, str], bytes]], tmp_path: Path, place: str
) -> None:
    folder, names, before = dumped
    outcomes = []
    for copy in deaths(folder, names, place, tmp_path):
        store = Store(copy / "store", copy / "dumps")
        try:
            imported = store.sums()["turns"]["imported"]
            outcomes.append(imported)
            states = {str(each.name): each.state for each in store.folder_of_dumps.listed(after="", limit=99)}
            assert states == dict.fromkeys(names, "imported" if imported else "ready")
            if not imported:
                assert store.rows("SELECT * FROM sessions") == store.rows("SELECT * FROM turns") == []
                store.import_dumps(names)
            assert store.exported(max_trajectories=64) == before
            assert (store.sums()["turns"]["imported"], store.sums()["sessions"]["imported"]) == (4, 2)
        finally:
            store.close()
    assert outcomes == sorted(outcomes) and set(outcomes) <= {0, 4}, "all or nothing"
    assert outcomes
