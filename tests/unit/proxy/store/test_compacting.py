"""What deleted rows left goes back to the disk, in steps that hold up nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from tests.unit.proxy.store.crowd import MEGABYTES, after_a_crowd

from rolloutfleet_proxy.store import compacting
from rolloutfleet_proxy.store.compacting import compact, give_back, is_due, surplus
from rolloutfleet_proxy.store.database import Database, open_database
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Database, Writer]]:
    database = open_database(tmp_path)
    writer = Writer(database, ServedClock(database))
    yield database, writer
    await writer.close()
    database.close()


def test_what_is_worth_the_work() -> None:
    assert not is_due(free=1000, pages=2000), "a few megabytes are used again"
    assert not is_due(free=20_000, pages=100_000), "so is a small share"
    assert is_due(free=30_000, pages=100_000)
    assert surplus(free=30_000, pages=100_000) == 30_000 - 3500
    assert surplus(free=200, pages=100_000) == 0


def test_what_a_full_disk_is_owed_is_given_back_at_once() -> None:
    assert is_due(free=10, pages=100_000, owed=1000)
    assert surplus(free=200, pages=100_000, owed=1000) == 200, "down to the last page"
    assert surplus(free=3000, pages=10_000, owed=1000) == 2650, "and as much as without"
    assert surplus(free=300, pages=10_000, owed=100) == 100


async def test_a_file_shrinks_after_a_crowd_while_others_write(
    opened: tuple[Database, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, writer = opened
    steps: list[int] = []
    waits: list[int] = []

    def counted(transaction: Transaction, *, owed: int) -> int:
        """A look at the clock comes a millisecond after the last."""
        before = transaction.value("PRAGMA freelist_count")
        left = give_back(transaction, owed=owed, clock=map((0.001).__mul__, count()).__next__)
        steps.append(before - transaction.value("PRAGMA freelist_count"))
        return left

    monkeypatch.setattr(compacting, "give_back", counted)
    small = await after_a_crowd(database, writer)
    shrinking = asyncio.create_task(compact(database, writer))
    while not shrinking.done():
        before = len(steps)
        await writer.run(lambda t: t.set_fact("written", 1))
        waits.append(len(steps) - before)
        await asyncio.sleep(0.001)
    assert await shrinking
    assert database.path.stat().st_size < small + 2_500_000
    assert 0 < max(steps) <= 10 * 8, "pages, in ten milliseconds of which each has time for eight"
    assert len(waits) > 10 and max(waits) <= 2, "who writes waits for the step under way and one that is before it"
    assert not await compact(database, writer)
    with database.connect(read_only=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM crowd").fetchall() == [(5,)]
    connection.close()


async def test_a_file_whose_end_a_reader_held_up_shrinks_once_the_reader_has_gone(
    opened: tuple[Database, Writer],
) -> None:
    database, writer = opened
    small = await after_a_crowd(database, writer)
    with contextlib.closing(database.connect(read_only=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM crowd").fetchall()
        assert await compact(database, writer)
        assert database.path.stat().st_size > MEGABYTES * 500_000, "what the reader sees is there"
        assert reader.execute("SELECT count(*) FROM crowd").fetchall() == [(5,)]
    assert await compact(database, writer)
    assert database.path.stat().st_size < small + 2_500_000
    assert not await compact(database, writer)
