"""The reserve: what frees is written on a disk that is full, what does not free is refused, and room is taken back."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from string import ascii_lowercase

import pytest
from tests.system.disks import fill, small_disk
from tests.waiting import until

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.database import Belonging, Database, open_database
from rolloutfleet_proxy.store.reserve import Reserve
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=24) as disk:
        yield disk


def write(transaction: Transaction, *, name: str, size: int, letter: str = "x") -> None:
    transaction.set_fact(name, letter * size)


def forget(transaction: Transaction, *, name: str) -> None:
    transaction.execute("DELETE FROM facts WHERE name = ?", (name,))


def read_until_a_commit(database: Database, reading: threading.Event) -> None:
    """Hold the state of the store before a commit for a moment longer than until that is done."""
    with (
        contextlib.closing(database.connect(read_only=True)) as reader,
        contextlib.closing(database.connect(read_only=True)) as other,
    ):
        version = other.execute("PRAGMA data_version").fetchone()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM facts").fetchall()
        reading.set()
        until(lambda: other.execute("PRAGMA data_version").fetchone() != version)


async def opened(disk: Path) -> tuple[Database, Writer]:
    database = open_database(disk / "store", with_reserve=True)
    return database, Writer(database, ServedClock(database))


def test_it_is_taken_given_up_and_taken_again(disk: Path) -> None:
    reserve = Reserve.on(disk)
    assert reserve.owed == 0 and reserve.held == reserve.size
    fill(disk / "filler")
    assert reserve.give_up() and reserve.owed == reserve.size and not reserve.give_up()
    (disk / "other").write_bytes(bytes(1 << 20))
    reserve.take()
    assert reserve.owed == 1 << 20, "as much as there is room for"
    (disk / "filler").unlink()
    reserve.take()
    assert reserve.owed == 0
    reserve.close()
    again = Reserve.on(disk)
    assert again.owed == 0, "it outlives the process"
    again.close()


def test_its_last_piece_is_taken_however_small(disk: Path) -> None:
    """Else it would be owed for ever."""
    reserve = Reserve.on(disk)
    fill(disk / "filler")
    reserve.give_up()
    (disk / "other").write_bytes(bytes(4096))
    reserve.take()
    assert reserve.owed == 4096
    (disk / "other").unlink()
    reserve.take()
    assert reserve.owed == 0
    reserve.close()


async def test_what_frees_is_written_and_what_does_not_is_refused(disk: Path) -> None:
    database, writer = await opened(disk)
    for name in "abcdef":
        await writer.run(partial(write, name=name, size=400_000))
    fill(disk / "filler")
    with pytest.raises(DiskFull):
        await writer.run(partial(write, name="more", size=2_000_000))
    for name in "abcde":
        await writer.run(partial(write, name=name, size=700_000), frees=True)
        await writer.run(partial(forget, name=name), frees=True)
    with pytest.raises(DiskFull):
        await writer.run(partial(write, name="more", size=2_000_000))
    await writer.run(lambda transaction: forget(transaction, name="f"), frees=True)
    assert database.reserve is not None and database.reserve.held > 0
    await compact(database, writer)
    await writer.run(lambda transaction: None)
    (disk / "filler").unlink()
    await writer.run(partial(write, name="more", size=2_000_000))
    assert database.reserve.owed == 0
    await writer.close()
    database.close()


async def test_what_a_reader_kept_from_the_disk_goes_to_it_once_the_reader_has_gone(disk: Path) -> None:
    database, writer = await opened(disk)
    reserve = database.reserve
    assert reserve is not None
    for name in "abcdefghijkl":
        await writer.run(partial(write, name=name, size=400_000))
    for name in "abcdefghijkl":
        await writer.run(partial(forget, name=name))
    fill(disk / "filler")
    reserve.give_up()
    fill(disk / "more")
    with contextlib.closing(database.connect(read_only=True)) as reader:
        await writer.run(partial(write, name="small", size=10), frees=True)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM facts").fetchall()
        while await writer.run(lambda transaction: transaction.value("PRAGMA freelist_count")):
            await compact(database, writer)
    assert reserve.owed > 0
    await compact(database, writer)
    await writer.run(lambda transaction: None)
    assert reserve.owed == 0
    await writer.close()
    database.close()


async def test_what_the_log_grew_to_while_somebody_read_goes_to_the_disk(disk: Path) -> None:
    database, writer = await opened(disk)
    reserve = database.reserve
    assert reserve is not None
    with contextlib.closing(database.connect(read_only=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM facts").fetchall()
        for letter in "abcdefghijklmnopqrst":
            await writer.run(partial(write, name="again", size=400_000, letter=letter))
    with contextlib.closing(database.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    fill(disk / "filler")
    reserve.give_up()
    fill(disk / "more")
    assert reserve.owed == reserve.size
    await compact(database, writer)
    await writer.run(lambda transaction: None)
    assert reserve.owed == 0
    await writer.close()
    database.close()


async def test_readers_that_come_and_go_leave_room_for_what_frees(disk: Path) -> None:
    database, writer = await opened(disk)
    fill(disk / "filler")
    for letter in ascii_lowercase:
        reading = threading.Event()
        reader = threading.Thread(target=read_until_a_commit, args=(database, reading))
        reader.start()
        await asyncio.to_thread(reading.wait)
        await writer.run(partial(write, name="again", size=400_000, letter=letter), frees=True)
        reader.join()
    await writer.close()
    database.close()


async def test_a_store_opens_on_a_disk_that_filled_up_behind_it(disk: Path) -> None:
    database, writer = await opened(disk)
    await writer.run(partial(write, name="kept", size=1000))
    await writer.close()
    database.close()
    fill(disk / "filler")
    with contextlib.closing(sqlite3.connect(disk / "store" / "store.sqlite3")) as other, pytest.raises(sqlite3.Error):
        other.execute("SELECT * FROM facts").fetchall()
    database = open_database(disk / "store", Belonging("a-fleet"), with_reserve=True)
    connection = database.connect()
    assert connection.execute("SELECT length(value) FROM facts WHERE name = 'kept'").fetchone() == (1000,)
    connection.close()
    database.close()
