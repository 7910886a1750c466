"""The log's index has its blocks before SQLite maps it: a full disk of small blocks kills nobody."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.disks import fill, small_disk

from rolloutfleet_proxy.store import log_index
from rolloutfleet_proxy.store.database import FILE, StoreUnusable, open_database
from rolloutfleet_proxy.store.reserve import FILE as RESERVE

INDEX = f"{FILE}-shm"
KILOBYTES = range(0, 30, 2)
"""All of the index's first part is 32 KiB."""

_OPEN = """
import sqlite3, sys
from pathlib import Path
from rolloutfleet_proxy.store.database import no_room, open_database
database = open_database(Path(sys.argv[1]), with_reserve=True)
try:
    database.connect().execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('opened', 1)")
except sqlite3.Error as error:
    if not no_room(error):
        raise
"""

_COUNT = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM facts").fetchone()[0])
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Of blocks of 1 KiB."""
    with small_disk(tmp_path / "disk", megabytes=24, kind="ext4") as disk:
        assert os.statvfs(disk).f_frsize == 1024
        yield disk


def opened_and_killed(disk: Path) -> None:
    """By a process of its own, which SIGBUS would end; it writes if there is room. The log and its index stay."""
    done = subprocess.run([sys.executable, "-c", _OPEN, str(disk / "store")], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


def blocks(disk: Path) -> int:
    return (disk / "store" / INDEX).stat().st_blocks * 512


@pytest.mark.parametrize("left", KILOBYTES)
def test_a_store_opens_whatever_is_left_of_a_full_disk(disk: Path, left: int) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(left << 10))
    opened_and_killed(disk)
    fill(disk / "filler")
    ballast.unlink()
    opened_and_killed(disk)
    fill(disk / "filler")
    opened_and_killed(disk)


def test_the_index_is_as_long_as_a_log_that_fills_the_disk_needs(disk: Path) -> None:
    with contextlib.closing(open_database(disk / "store", with_reserve=True)):
        assert blocks(disk) >= log_index.size_for(24 << 20) == 64 << 10


def test_without_any_room_it_is_said_that_there_is_none(disk: Path) -> None:
    open_database(disk / "store", with_reserve=True).close()
    (disk / "store" / RESERVE).unlink()
    fill(disk / "filler")
    with pytest.raises(StoreUnusable, match="No space left on device"):
        open_database(disk / "store", with_reserve=True).close()
    (disk / "filler").unlink()
    open_database(disk / "store", with_reserve=True).close()


def test_others_may_read_the_store_before_and_meanwhile(disk: Path) -> None:
    opened_and_killed(disk)
    with contextlib.closing(sqlite3.connect(disk / "store" / FILE)) as reading:
        reading.execute("SELECT * FROM facts").fetchall()
        opened_and_killed(disk)
        assert reading.execute("SELECT value FROM facts WHERE name = 'opened'").fetchone() == (1,)
        assert reading.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database = open_database(disk / "store", with_reserve=True)
    command = [sys.executable, "-c", _COUNT, str(disk / "store" / FILE)]
    for name in ("one", "another"):
        with contextlib.closing(database.connect()) as connection:
            connection.execute("INSERT INTO facts (name, value) VALUES (?, 1)", (name,))
            (count,) = connection.execute("SELECT count(*) FROM facts").fetchone()
        assert int(subprocess.run(command, check=True, capture_output=True).stdout) == count
    database.close()
