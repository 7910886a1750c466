"""An open store as a whole: its file, whose names its rows have, its clock, and who writes and reads it."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store.clock import ServedClock
from rolloutfleet_proxy.store.database import Database
from rolloutfleet_proxy.store.reader import Connection, Reader
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import Writer

T = TypeVar("T")


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
    ) -> Self:
        """Begin to write and read, in a running event loop."""
        clock = ServedClock(database.connect(read_only=True), monotonic=monotonic)
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

    def write(self, operation: Callable[[Transaction], T], *, frees: bool = False) -> Coroutine[Any, Any, T]:
        """As `Writer.run`."""
        return self.writer.run(operation, frees=frees)

    def free(self, operation: Callable[[Transaction], T]) -> Coroutine[Any, Any, tuple[T, list[str]]]:
        """As `Writer.free`."""
        return self.writer.free(operation)

    async def close(self) -> None:
        """End what was begun; the file stays open."""
        self.recounting.close()
        self.reader.close()
        await self.writer.close()
