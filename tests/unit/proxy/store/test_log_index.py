"""The index of the log has all of its blocks before SQLite opens it, where a disk's blocks are small."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rolloutfleet_proxy.store import log_index
from rolloutfleet_proxy.store.database import FILE, open_database

INDEX = f"{FILE}-shm"
DISK = 24 << 20


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk of blocks of 1 KiB."""
    blocks = DISK // 1024
    disk = SimpleNamespace(f_frsize=1024, f_blocks=blocks, f_bfree=blocks, f_bavail=blocks)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    yield


def test_it_is_as_long_as_a_log_that_fills_the_disk_needs(tmp_path: Path) -> None:
    with contextlib.closing(open_database(tmp_path, with_reserve=True)) as database:
        with contextlib.closing(database.connect()) as connection:
            connection.execute("INSERT INTO facts (name, value) VALUES ('written', 1)")
        assert (tmp_path / INDEX).stat().st_blocks * 512 == log_index.size_for(DISK) == 64 << 10


def test_one_that_somebody_reads_stays_as_it_is(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    reader = log_index.hold(tmp_path / INDEX)
    assert reader is not None
    os.pwrite(reader, b"x", 0)
    other = log_index.hold(tmp_path / INDEX)
    assert other is not None and os.pread(other, 1, 0) == b"x"
    os.close(other)
    os.close(reader)
    again = log_index.hold(tmp_path / INDEX)
    assert again is not None and os.pread(again, 1, 0) == b"\0"
    os.close(again)


def test_without_room_it_is_said_and_without_such_files_sqlite_makes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = errno.ENOSPC

    def refuse(file: int, start: int, nbytes: int) -> None:
        raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        log_index.hold(tmp_path / INDEX)
    refused = errno.EOPNOTSUPP
    assert log_index.hold(tmp_path / INDEX) is None
