"""Space that deleted rows left within the store's file goes back to the disk, a few pages at a time.

SQLite uses free pages again, so a steady coming and going needs none of this; it is for what a crowd leaves behind.
Pages
are given back in short transactions, each over before it could hold up a turn.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from rolloutfleet_proxy.store.database import Database
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


def is_due(*, free: int, pages: int) -> bool:
    """Whether so many free pages of a file are worth the work."""
    return free >= max(BEGIN_PAGES, BEGIN_SHARE * pages)


def surplus(*, free: int, pages: int) -> int:
    """How many of them are to go."""
    return max(0, free - int(max(LEAVE_PAGES, LEAVE_SHARE * (pages - free))))


def give_back(transaction: Transaction, *, clock: Callable[[], float] = time.perf_counter) -> int:
    """Take free pages off the file's end for a short while; returns how many are still to go."""
    left = surplus(free=_pragma(transaction, "freelist_count"), pages=_pragma(transaction, "page_count"))
    ends = clock() + SECONDS_AT_ONCE
    while left and clock() < ends:
        for _ in range(min(_CHECK_EVERY, left)):
            # One page a statement: sqlite3 runs this pragma a single step, whatever number it is given.
            transaction.execute("PRAGMA incremental_vacuum(1)")
            left -= 1
    return left


async def compact(database: Database, writer: Writer) -> bool:
    """Give back what is free, if that is worth it; returns whether it was."""
    free, pages = await writer.run(lambda t: (_pragma(t, "freelist_count"), _pragma(t, "page_count")))
    if not is_due(free=free, pages=pages):
        return False
    left = surplus(free=free, pages=pages)
    while left:
        left = await writer.run(give_back)
        await asyncio.sleep(REST)
    # The file itself ends sooner only with the next checkpoint, which a quiet store would not come to.
    await asyncio.to_thread(_checkpoint, database)
    return True


def _checkpoint(database: Database) -> None:
    with contextlib.closing(database.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _pragma(transaction: Transaction, name: str) -> int:
    found: int = transaction.rows(f"PRAGMA {name}")[0][0]
    return found
