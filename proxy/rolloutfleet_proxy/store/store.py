"""An open store as a whole: its file, whose names its rows have, its clock, and who writes and reads it.

Reads go on beside the writer: each reader is a read-only connection on a thread of its own, for short reads or for long
ones.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from rolloutfleet_proxy.domain.errors import DamageFound
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store.database import Database, is_damage
from rolloutfleet_proxy.store.lock_holder import named_holder
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import PATIENCE, ServedClock, Writer

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
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                raise DamageFound(f"The store's file is damaged ({error}).") from error
            raise
        finally:
            self._connection.execute("ROLLBACK")  # a COMMIT says once more what went wrong


@dataclass(frozen=True, slots=True)
class Store:
    """What a proxy keeps in rows."""

    database: Database
    owner: Owner
    clock: ServedClock
    writer: Writer
    reader: Reader
    recounting: Reader
    """For reads that may look at all there is, and take as long as there is much."""

    @classmethod
    def over(
        cls,
        database: Database,
        *,
        ordinal: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        longest_step: float = float("inf"),
    ) -> Self:
        """Begin to write and read, in a running event loop. `longest_step` is the clock's, which must tick then."""
        clock = ServedClock(database, monotonic=monotonic, longest_step=longest_step)
        return cls(
            database,
            Owner(ordinal, database.store_id),
            clock,
            Writer(database, clock, wall=wall),
            Reader(database),
            Reader(database, name="store-recount"),
        )

    def read(self, query: Callable[[Connection], T]) -> Coroutine[Any, Any, T]:
        """As `Reader.run`, of what is short."""
        return self.reader.run(query)

    def write(
        self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False
    ) -> Coroutine[Any, Any, T]:
        """As `Writer.run`."""
        return self.writer.run(operation, frees=frees, waits=waits)

    def free(
        self, operation: Callable[[Transaction], T], *, waits: bool = False
    ) -> Coroutine[Any, Any, tuple[T, list[str]]]:
        """As `Writer.free`."""
        return self.writer.free(operation, waits=waits)

    def locked(self) -> str | None:
        """Whose lock keeps all writes waiting, where one has for longer than they wait."""
        since = self.writer.locked_since
        held = 0.0 if since is None else time.monotonic() - since
        if held < PATIENCE:
            return None
        return f"the store has been locked by {named_holder(self.database.path)} for {held:.0f} s"

    async def close(self) -> None:
        """End what was begun; the file stays open."""
        self.recounting.close()
        self.reader.close()
        await self.writer.close()
