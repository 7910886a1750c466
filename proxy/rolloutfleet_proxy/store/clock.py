"""The store's own count of seconds served: no clock jump and no time with the proxy down counts."""

import sqlite3
import time
from collections.abc import Callable

SAVE_EVERY = 1.0
"""Seconds: a crash loses at most this much of the count, which can only make sessions look younger."""


class ServedClock:
    """Seconds that a store has been served over all its boots. Monotonic, and durable to `SAVE_EVERY`."""

    def __init__(self, connection: sqlite3.Connection, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        row = connection.execute("SELECT value FROM facts WHERE name = 'served'").fetchone()
        self._before: float = row[0] if row else 0.0
        self._monotonic = monotonic
        self._started = monotonic()
        self._saved = float("-inf")

    def now(self) -> float:
        return self._before + (self._monotonic() - self._started)

    def save(self, connection: sqlite3.Connection, served: float) -> None:
        """Write the count with a transaction that is under way, if the last one is old enough."""
        if served - self._saved >= SAVE_EVERY:
            connection.execute(
                "INSERT INTO facts VALUES ('served', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (served,),
            )
            self._saved = served
