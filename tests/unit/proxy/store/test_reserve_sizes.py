"""What is held for a disk that is full: how large it is, and that what frees needs no more."""

from pathlib import Path

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.store import log_index
from rolloutfleet_proxy.store.reserve import MOST, reserve_of
from rolloutfleet_proxy.store.trajectories import close_session, close_turns, delete_session

TURNS = 40
LONG = range(20_000)


def test_its_size_goes_by_the_disks() -> None:
    assert reserve_of(24 << 20) == 3 << 20 and reserve_of(200 << 20) == 25 << 20
    assert reserve_of(20 << 30) == reserve_of(512 << 20) == MOST


def test_the_logs_index_is_as_long_as_the_log_may_become() -> None:
    assert log_index.size_for(24 << 20) == 64 << 10
    assert log_index.size_for(1 << 40) == log_index.size_for(512 << 20) == 33 << 15


@pytest.mark.parametrize("how", ["deleted", "closed", "deleted after a trajectory"])
def test_what_frees_writes_a_page_a_turn_at_the_most_however_long_it_is(tmp_path: Path, how: str) -> None:
    store = SyncStore(tmp_path)
    ((session, _),) = store.start()
    if how == "deleted after a trajectory":
        store.commit(session, name="first")
        store.run(lambda transaction: close_turns(transaction, session, closed_by="reward"))
    for number in range(TURNS):
        store.commit(session, name=f"turn-{number}", output=LONG)
    log = tmp_path / "store.sqlite3-wal"
    connection = store.database.connect()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    end = close_session if how == "closed" else delete_session
    store.run(lambda transaction: end(transaction, session))
    assert log.stat().st_size < (TURNS + 50) * 4120 < (tmp_path / "store.sqlite3").stat().st_size / 10
    store.close()
