"""What became of turns' answers, written with whatever is committed next.

No commit is made for it alone: an answer that has left must not cost the next one a wait for the disk. What a crash
forgets stays under way in its row (`domain.turn.Delivery`): a caller that asks again is given that turn again.
"""

import sqlite3
from collections import deque
from typing import Any, Final, NamedTuple

from rolloutfleet_proxy.domain.turn import Delivery

IS_LOST: Final = f"delivered IN (0, {Delivery.LOST:d})"
"""Whether a row says that nobody got the turn's answer."""
_UPDATE: Final = "UPDATE turns SET delivered = ? WHERE session = ? AND number = ?"


class _Note(NamedTuple):
    delivered: Delivery
    session: int
    number: int
    holder: Any


class Deliveries:
    """Noted by the event loop, written by the writer's thread."""

    def __init__(self) -> None:
        self._noted: deque[_Note] = deque()

    def __bool__(self) -> bool:
        """Whether there is something to write."""
        return bool(self._noted)

    def note(self, session: int, number: int, delivered: Delivery, *, holder: object) -> None:
        """`holder` is what memory has of the session: it is kept until the row says the same."""
        self._noted.append(_Note(delivered, session, number, holder))

    def write(self, connection: sqlite3.Connection) -> int:
        """Write what has been noted, within a transaction that is under way; returns how much that is."""
        notes = [self._noted[index] for index in range(len(self._noted))]
        if notes:
            connection.executemany(_UPDATE, [note[:3] for note in notes])
        return len(notes)

    def written(self, count: int) -> None:
        """So many, the oldest, are on disk."""
        for _ in range(count):
            self._noted.popleft()
