"""Reads beside the writer: a read-only connection on a thread of its own, for short reads or for long ones."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rolloutfleet_proxy.store.database import Database

T = TypeVar("T")
Connection = sqlite3.Connection
"""What a query reads from."""
Read = Callable[[Callable[[Connection], T]], T]
"""Runs a query in one snapshot; called from a worker thread."""


class Reader:
    """`await reader.run(query)` runs a function of a read-only connection in one consistent snapshot.

    One query at a time: what takes long has a reader of its own, so that nobody's call waits for it.
    """

    def __init__(self, database: Database, *, name: str = "store-reader") -> None:
        self._connection = database.connect(read_only=True)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._snapshot, query)

    def run_blocking(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """The same for other threads, which may wait."""
        return self._thread.submit(self._snapshot, query).result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._connection.close()

    def _snapshot(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._connection.execute("BEGIN")
        try:
            return query(self._connection)
        finally:
            self._connection.execute("COMMIT")
