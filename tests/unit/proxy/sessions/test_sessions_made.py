"""Promise 7: of a freed session nothing stays in memory but pages of the store, which are counted and bounded."""

import _sqlite3
import asyncio
import ctypes
import gc
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.session import Gone
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.database import LASTING, PAGES, Database, open_database
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.trajectories import delete_session
from rolloutfleet_proxy.store.writer import ServedClock, Writer

AT_ONCE = 50
WARM_UP = 5
ROUNDS = 30
FACTOR = 1.5
"""How far the figure may be from what SQLite has allocated."""
BESIDE = 300_000
"""Bytes that connections and statements take, whatever was written."""
A_SESSION = 28
"""Bytes that Python may hold more of for each session: less than an object of each, and what the event loop's own sets
grow by."""


def in_sqlite() -> int:
    """Bytes that SQLite has allocated in this process."""
    used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    used.restype = ctypes.c_int64
    return int(used())


class House:
    """A store whose sessions are started, used once and freed."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.writer = Writer(database, ServedClock(database))
        self.reader = Reader(database)
        self.sessions = SessionRegistry(self.reader, cache_bytes=1 << 20)
        self._owner = Owner(0, database.store_id)

    async def live_and_die(self) -> None:
        asked = StartSessions(task_id="task")
        _, [started] = await self.writer.run(partial(start, owner=self._owner, asked=asked))
        assert started.record is not None
        session = self.sessions.started(started.record)
        found = await self.sessions.with_key(started.key)
        assert found is session
        _, freed = await self.writer.free(partial(delete_session, session=found.id))
        for name in freed:
            self.sessions.forget(name)
        assert isinstance(await self.sessions.with_key(started.key), Gone)

    async def churn(self, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*(self.live_and_die() for _ in range(AT_ONCE)))

    async def close(self) -> None:
        await self.writer.close()
        self.reader.close()
        self.database.close()


async def test_of_sessions_that_came_and_went_nothing_is_left_in_memory(tmp_path: Path) -> None:
    house = House(open_database(tmp_path / "store"))
    tracemalloc.start()
    try:
        await house.churn(WARM_UP)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await house.churn(ROUNDS)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < A_SESSION * ROUNDS * AT_ONCE, f"{grown / ROUNDS / AT_ONCE:.1f} bytes a session"
    assert house.sessions.cached_bytes == 0 and house.sessions.in_memory(lambda session: True) == []
    await house.close()


@pytest.mark.parametrize("pages", [LASTING * PAGES, 256 << 10])
async def test_sessions_that_came_and_went_leave_what_the_caches_say_and_no_more(tmp_path: Path, pages: int) -> None:
    before = in_sqlite()
    database = open_database(tmp_path / "store", cache_bytes=pages)
    house = House(database)
    await house.churn(ROUNDS)
    held = in_sqlite() - before
    assert database.cached_bytes <= pages
    assert held < FACTOR * database.cached_bytes + BESIDE, (held, database.cached_bytes)
    await house.close()
