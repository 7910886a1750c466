"""Space that deleted rows left within the store's file goes back to the disk, a few pages at a time.

SQLite uses free pages again, so a steady coming and going needs none of this; it is for what a crowd leaves behind.
Pages
are given back in short transactions, each over before it could hold up a turn.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.database import PAGE, Database
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import Writer

BEGIN_SHARE, BEGIN_PAGES = 0.25, 1024
"""Pages are given back once so many are free, and so large a share of the file."""
LEAVE_SHARE, LEAVE_PAGES = 0.05, 256
"""So many stay, for what comes next."""
SECONDS_AT_ONCE: Final = 0.01
REST: Final = 0.03
"""Seconds in which others have the writer, after each such time."""
_CHECK_EVERY: Final = 8
_BUSY_MS: Final = 50
"""How long a checkpoint that lets nobody write meanwhile waits for readers of an older state."""


def is_due(*, free: int, pages: int, owed: int = 0) -> bool:
    """Whether so many free pages of a file are worth the work. They are where as many are `owed` to the reserve."""
    return free >= max(BEGIN_PAGES, BEGIN_SHARE * pages) or owed > 0


def surplus(*, free: int, pages: int, owed: int = 0) -> int:
    """How many of them are to go: all but a few, and those few too where they are owed."""
    return max(0, min(free, owed), free - int(max(LEAVE_PAGES, LEAVE_SHARE * (pages - free))))


def give_back(transaction: Transaction, *, owed: int = 0, clock: Callable[[], float] = time.perf_counter) -> int:
    """Take free pages off the file's end for a short while; returns how many are still to go."""
    left = surplus(
        free=transaction.value("PRAGMA freelist_count"), pages=transaction.value("PRAGMA page_count"), owed=owed
    )
    ends = clock() + SECONDS_AT_ONCE
    while left and clock() < ends:
        for _ in range(min(_CHECK_EVERY, left)):
            # One page a statement: sqlite3 runs this pragma a single step, whatever number it is given.
            transaction.execute("PRAGMA incremental_vacuum(1)")
            left -= 1
    return left


async def compact(database: Database, writer: Writer) -> bool:
    """Give back what is free, if that is worth it; returns whether it was.

    A checkpoint is worth it too where a reader held up the last one, and with it the file's end; and while the reserve
    is owed, as the log keeps the room that it once grew to.
    """
    free, pages = await writer.run(lambda t: (t.value("PRAGMA freelist_count"), t.value("PRAGMA page_count")))
    owed = _owed_pages(database)
    if not is_due(free=free, pages=pages, owed=owed) and _pages_past_end(database, pages) < BEGIN_PAGES:
        return False
    left = surplus(free=free, pages=pages, owed=owed)
    with contextlib.suppress(DiskFull):  # with nothing left in reserve; later there may be
        while left:
            left = await writer.run(partial(give_back, owed=_owed_pages(database)), frees=True)
            await asyncio.sleep(REST)
    # The file itself ends sooner only with the next checkpoint, which a quiet store would not come to.
    await asyncio.to_thread(_checkpoint, database)
    return True


def _checkpoint(database: Database) -> None:
    """Bring the log into the file, which then ends where its pages do, unless somebody reads an older state of it.

    While the reserve is owed, the log then ends too.
    """
    with contextlib.closing(database.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if _pages_past_end(database, connection.execute("PRAGMA page_count").fetchone()[0]):
            # SQLite ends the file only where nobody commits before all is copied. By now there is little to copy.
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        if _owed_pages(database):
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _pages_past_end(database: Database, pages: int) -> int:
    """How many pages longer the file is than it has to be."""
    return max(0, database.path.stat().st_size // PAGE - pages)


def _owed_pages(database: Database) -> int:
    """Pages' worth of the reserve that is missing: the file's free ones are then of more use to the disk."""
    return 0 if database.reserve is None else database.reserve.owed // PAGE
