"""What is committed is on the disk: here, that SQLite is told so; `tests/system` sees it done."""

import contextlib
from pathlib import Path

from rolloutfleet_proxy.store.database import open_database

FULL = 2


def test_every_connection_syncs_at_each_commit(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    with database.held, contextlib.closing(database.connect()) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
