"""The reserve: it takes what there is room for, and is given up for what frees and for a store that opens."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store import log_index, reserve
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.database import Belonging, Database, StoreUnusable, open_database
from rolloutfleet_proxy.store.reserve import Reserve
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer

SIZE = 1 << 20
ROOM = 1000
"""Pages by which the store's file grows once the reserve is given up."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "MOST", SIZE)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Database, Writer]]:
    database = open_database(tmp_path / "store", with_reserve=True)
    writer = Writer(database, ServedClock(database))
    yield database, writer
    await writer.close()
    database.close()


def held(database: Database) -> Reserve:
    assert database.reserve is not None
    return database.reserve


def full(transaction: Transaction) -> None:
    """The store's file grows no more."""
    transaction.execute("PRAGMA max_page_count = 1")


def write(transaction: Transaction) -> None:
    transaction.set_fact("large", "x" * 100_000)


def write_in_reserve(transaction: Transaction) -> None:
    if transaction.in_reserve:
        transaction.execute(f"PRAGMA max_page_count = {transaction.value('PRAGMA page_count') + ROOM}")
    write(transaction)


def test_its_last_piece_is_taken_however_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be owed for ever."""
    monkeypatch.setattr(Reserve, "_room", lambda reserve: SIZE - 4096)
    with contextlib.closing(Reserve(tmp_path / "reserve", SIZE)) as reserve:
        assert reserve.owed == 4096
        monkeypatch.setattr(Reserve, "_room", lambda reserve: SIZE)
        reserve.take()
        assert reserve.owed == 0


def test_it_is_given_up_once_and_taken_again_and_outlives_the_process(tmp_path: Path) -> None:
    with contextlib.closing(Reserve(tmp_path / "reserve", SIZE)) as reserve:
        assert reserve.give_up() and reserve.owed == SIZE and not reserve.give_up()
        reserve.take()
        assert reserve.owed == 0
    with contextlib.closing(Reserve(tmp_path / "reserve", SIZE)) as again:
        assert again.held == SIZE


def test_one_that_is_larger_than_asked_for_is_made_anew(tmp_path: Path) -> None:
    Reserve(tmp_path / "reserve", 2 * SIZE).close()
    with contextlib.closing(Reserve(tmp_path / "reserve", SIZE)) as smaller:
        assert smaller.held == (tmp_path / "reserve").stat().st_blocks * 512 == SIZE


def test_a_disk_with_less_room_than_it_says_gives_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = os.posix_fallocate

    def refuse(file: int, start: int, nbytes: int) -> None:
        if start + nbytes > SIZE // 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, start, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with contextlib.closing(Reserve(tmp_path / "reserve", SIZE)) as reserve:
        assert (reserve.held, reserve.owed) == (SIZE // 2, SIZE // 2)


async def test_only_what_frees_is_written_in_it_and_it_is_taken_again(opened: tuple[Database, Writer]) -> None:
    database, writer = opened
    await writer.run(full)
    with pytest.raises(DiskFull):
        await writer.run(write)
    with pytest.raises(DiskFull):
        await writer.run(write_in_reserve)
    await writer.run(write_in_reserve, frees=True)
    assert held(database).owed == 0
    with contextlib.closing(database.connect(read_only=True)) as connection:
        assert connection.execute("SELECT length(value) FROM facts WHERE name = 'large'").fetchone() == (100_000,)


async def test_without_anything_left_of_it_what_frees_is_refused_too(opened: tuple[Database, Writer]) -> None:
    database, writer = opened
    await writer.run(full)
    held(database).give_up()
    with pytest.raises(DiskFull):
        await writer.run(write_in_reserve, frees=True)


async def test_owed_space_is_given_back_by_the_store_and_taken(
    opened: tuple[Database, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, writer = opened
    await writer.run(write)
    await writer.run(lambda transaction: transaction.forget_fact("large"))
    held(database).give_up()
    log = database.path.with_name(f"{database.path.name}-wal")
    with monkeypatch.context() as filled:
        filled.setattr(Reserve, "_room", lambda reserve: 0)
        assert await compact(database, writer)
    assert log.stat().st_size == 0
    await writer.run(lambda transaction: None)
    assert held(database).owed == 0


@pytest.mark.parametrize("refusal", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError])
def test_a_store_opens_in_its_space_and_it_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception | type[Exception]
) -> None:
    open_database(tmp_path, with_reserve=True).close()
    hold = log_index.hold

    def refuse_until_given_up(file: Path) -> int | None:
        if (tmp_path / reserve.FILE).stat().st_blocks == 0:
            return hold(file)
        if isinstance(refusal, OSError):
            raise refusal
        sqlite3.connect(tmp_path / "no folder" / "store")
        raise AssertionError("a database was opened in a folder that is not there")

    monkeypatch.setattr(log_index, "hold", refuse_until_given_up)
    database = open_database(tmp_path, Belonging("a-fleet"), with_reserve=True)
    assert held(database).owed == 0
    database.close()


def test_other_refusals_of_the_disk_do_not_cost_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(tmp_path, with_reserve=True).close()

    def refuse(file: Path) -> int | None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(log_index, "hold", refuse)
    with pytest.raises(StoreUnusable, match="Permission denied"):
        open_database(tmp_path, with_reserve=True)
    assert (tmp_path / reserve.FILE).stat().st_blocks > 0
