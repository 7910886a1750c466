"""What an operation on the store is given: rows, the durable counters, and the time."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

TURNS = "turns"
SESSIONS = "sessions"

CREATED = "created"
IMPORTED = "imported"
LIVE = "live"
LEASED = "leased"
ACKNOWLEDGED = "acknowledged"
DUMPED = "dumped"
DISCARDED = "discarded"
TERMS = (CREATED, IMPORTED, LIVE, LEASED, ACKNOWLEDGED, DUMPED, DISCARDED)

Row = tuple[Any, ...]


class Transaction:
    """A group's transaction, as one operation of it sees it. Used on the writer thread alone."""

    def __init__(self, connection: sqlite3.Connection, *, served: float, wall: float) -> None:
        self._connection = connection
        self.served = served
        """Seconds that this store has been served, over all its boots: the clock of idleness and leases."""
        self.wall = wall
        """Seconds since the epoch, for people to read."""
        self.deleted = 0, 0
        """Turns, and their bytes, that this operation has deleted; it may delete only so many (`remains`)."""
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        found: Row | None = self._connection.execute(sql, values).fetchone()
        return found

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def count(self, kind: str, term: str, n: int = 1, *, reason: str = "") -> None:
        """Change a durable counter; it is written with this transaction's rows."""
        if n:
            self._counts[kind, term, reason] += n

    def move(self, kind: str, before: str, after: str, n: int = 1, *, reason: str = "") -> None:
        """Count `n` of a kind out of one term and into another (`reason` belongs to `after`)."""
        self.count(kind, before, -n)
        self.count(kind, after, n, reason=reason)

    def fact(self, name: str, default: Any = None) -> Any:
        found = self.row("SELECT value FROM facts WHERE name = ?", (name,))
        return default if found is None else found[0]

    def set_fact(self, name: str, value: Any) -> None:
        self.execute("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))

    def take_counts(self) -> Counter[tuple[str, str, str]]:
        """The changes counted since the last call, which are then forgotten here."""
        taken, self._counts = self._counts, Counter()
        return taken


def write_counts(connection: sqlite3.Connection, counts: Counter[tuple[str, str, str]]) -> None:
    """Add changes to the ledger's rows."""
    connection.executemany(
        "INSERT INTO ledger VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
        [(*key, n) for key, n in counts.items() if n],
    )
