"""Kill -9 between the acknowledgement of a session and its copy: the next process makes the copy."""

import io
import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from tests.unit.proxy.lifecycle.kept import House
from tests.waiting import PATIENCE

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.files import kept_name
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.failpoints import AFTER_KEEPING, AFTER_RENAME, BEFORE_COMMIT, BEFORE_KEEPING, MID_DUMP
from rolloutfleet_proxy.store.leases import acknowledge

_processes = multiprocessing.get_context("forkserver")


def train_and_die(folder: Path, place: str, times: int) -> None:
    """A process's work: acknowledge, and copy, until it comes to a place for the n-th time."""
    house = House(folder)
    lease = house.ask(max_trajectories=9).lease
    assert lease is not None
    failpoints.arm(place, times)
    house.run(lambda transaction: acknowledge(transaction, lease))
    house.copied()
    house.close()


@pytest.mark.parametrize("place", [BEFORE_COMMIT, BEFORE_KEEPING, MID_DUMP, AFTER_RENAME, AFTER_KEEPING])
def test_a_death_between_acknowledgement_and_copy_loses_no_copy(tmp_path: Path, place: str) -> None:
    house = House(tmp_path / "first")
    names = house.talked(group=2)
    house.close()
    _processes.set_forkserver_preload([__name__])
    for times in (1, 2):
        copy = shutil.copytree(tmp_path / "first", tmp_path / str(times))
        dying = _processes.Process(target=train_and_die, args=(copy, place, times))
        dying.start()
        dying.join(PATIENCE)
        assert dying.exitcode == -signal.SIGKILL
        house = House(copy)
        try:
            house.wait(house.keeping.tidy())
            if place != BEFORE_COMMIT or times > 1:
                assert house.sums()["turns"]["acknowledged"] == 6
                assert house.copied() == sorted(map(kept_name, names))
                contents = [io.BytesIO((house.files / kept_name(name)).read_bytes()) for name in names]
                assert [verify(content) for content in contents] == [[], []]
            else:
                assert house.copied() == []
            assert [table for table, _ in house.left() if table in ("keeping", "freed_sessions")] == []
        finally:
            house.close()
