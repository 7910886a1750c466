"""What deleted rows left goes back to the disk, in steps that hold up nobody."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rolloutfleet_proxy.store.clock import ServedClock
from rolloutfleet_proxy.store.compacting import compact, is_due, surplus
from rolloutfleet_proxy.store.database import Database, open_database, store_bytes
from rolloutfleet_proxy.store.writer import Writer

MEGABYTES = 24


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Database, Writer]]:
    database = open_database(tmp_path)
    writer = Writer(database, ServedClock(database.connect(read_only=True)))
    yield database, writer
    await writer.close()
    database.close()


def test_what_is_worth_the_work() -> None:
    assert not is_due(free=1000, pages=2000), "a few megabytes are used again"
    assert not is_due(free=20_000, pages=100_000), "so is a small share"
    assert is_due(free=30_000, pages=100_000)
    assert surplus(free=30_000, pages=100_000) == 30_000 - 3500
    assert surplus(free=200, pages=100_000) == 0


async def test_a_file_shrinks_after_a_crowd_while_others_write(opened: tuple[Database, Writer]) -> None:
    database, writer = opened
    await writer.run(lambda t: t.execute("CREATE TABLE crowd (id INTEGER PRIMARY KEY, body BLOB)"))
    small = store_bytes(database.folder)
    for _ in range(MEGABYTES):
        await writer.run(
            lambda t: t.executemany("INSERT INTO crowd (body) VALUES (?)", ((bytes(20_000),) for _ in range(50)))
        )
    await writer.run(lambda t: t.execute("DELETE FROM crowd WHERE id > 5"))
    assert database.path.stat().st_size > MEGABYTES * 1_000_000 - 4_000_000
    compacting = asyncio.create_task(compact(database, writer))
    slowest = 0.0
    writes = 0
    while not compacting.done():
        began = time.perf_counter()
        await writer.run(lambda t: t.set_fact("written", 1))
        slowest = max(slowest, time.perf_counter() - began)
        writes += 1
        await asyncio.sleep(0.001)
    assert await compacting
    assert database.path.stat().st_size < small + 2_500_000
    assert writes > 10 and slowest < 0.2, slowest
    assert not await compact(database, writer)
    with database.connect(read_only=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM crowd").fetchall() == [(5,)]
    connection.close()
