"""What an operation on the store is given: rows, the durable counters, and the time."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]
"""Of a statement's placeholders."""


class Transaction:
    """A group's transaction, as one operation of it sees it. Used on the writer thread alone."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        served: float,
        wall: float,
        keep_fraction: float = 0.0,
        in_reserve: bool = False,
    ) -> None:
        self._connection = connection
        self.keep_fraction = keep_fraction
        """Of how many of the sessions that go a copy is kept (`keeping`)."""
        self.in_reserve = in_reserve
        """The disk is full, and this is written in the space that is held for what frees."""
        self.served = served
        """Seconds that this store has been served, over all its boots: the clock of idleness and leases."""
        self.wall = wall
        """Seconds since the epoch, for people to read."""
        self.deleted = 0, 0
        """Turns, and their bytes, that this operation has deleted; it may delete only so many (`remains`)."""
        self.freed: list[str] = []
        """Sessions whose rows this operation has deleted: memory is to forget them once it is committed."""
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """Changes of the durable counters, by kind, term and reason."""

    def execute(self, sql: str, values: Values = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        found: Row | None = self._connection.execute(sql, values).fetchone()
        return found

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row, which is there."""
        return self._connection.execute(sql, values).fetchone()[0]

    def count(self, kind: str, term: str, n: int = 1, *, reason: str = "") -> None:
        """Change a durable counter; it is written with this transaction's rows."""
        if n:
            self.counts[kind, term, reason] += n

    def move(self, kind: str, before: str, after: str, n: int = 1, *, reason: str = "") -> None:
        """Count `n` of a kind out of one term and into another (`reason` belongs to `after`)."""
        self.count(kind, before, -n)
        self.count(kind, after, n, reason=reason)

    def fact(self, name: str, default: Any = None) -> Any:
        return load_fact(self, name, default)

    def set_fact(self, name: str, value: Any) -> None:
        self.execute(
            "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def forget_fact(self, name: str) -> None:
        self.execute("DELETE FROM facts WHERE name = ?", (name,))

    def prune(self, table: str, column: str, *, most: int, age: float) -> None:
        """Forget the oldest rows where there are more than so many, and those that are older than so many served
        seconds, by this column."""
        self.execute(
            f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ? OR {column} < ?",
            (most, self.served - age),
        )


Source = sqlite3.Connection | Transaction
"""What rows are read from: for readers, and in the middle of a transaction."""


def load_fact(source: Source, name: str, default: Any = None) -> Any:
    """A single value, by its name."""
    found = source.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return default if found is None else found[0]


def named_rows(source: Source, sql: str, values: Values = ()) -> Iterator[dict[str, Any]]:
    """What is found, each row by the names that the statement gives its columns."""
    found = source.execute(sql, values)
    names = [name for name, *_ in found.description]
    return (dict(zip(names, row, strict=True)) for row in found)


def named_row(source: Source, sql: str, values: Values = ()) -> dict[str, Any] | None:
    """The only one, if there is any."""
    return next(named_rows(source, sql, values), None)


def insert_statement(table: str, columns: Sequence[str]) -> str:
    """SQL that makes a row of values in the order of these columns."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


COMMITS: Final = "commits"
"""The fact that counts the commits that changed something, so that a start can tell when some are gone (`tally`)."""


def count_commit(connection: sqlite3.Connection) -> None:
    """Count the one that is under way."""
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?, 1) ON CONFLICT DO UPDATE SET value = value + 1", (COMMITS,)
    )


def write_counts(connection: sqlite3.Connection, counts: Counter[tuple[str, str, str]]) -> None:
    """Add changes to the ledger's rows."""
    connection.executemany(
        "INSERT INTO ledger (kind, term, reason, n) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
        [(*key, n) for key, n in counts.items() if n],
    )
