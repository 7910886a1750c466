"""What a trainer says of turns afterwards: series of numbers, one for each output token, and notes.

Rows of their own: neither turns nor what is counted of them changes, nor when a session is stale.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rolloutfleet.wire import SERIES_A_TURN
from rolloutfleet_proxy.domain.errors import InvalidParameter, TurnNotFound
from rolloutfleet_proxy.store.sessions import load_undeleted
from rolloutfleet_proxy.store.transaction import Source, Transaction

NOTE: Final = ""
"""The name that a note has among the series of its turn."""
_ITEM: Final = 4
"""Bytes of a float32."""
_ALL: Final = 1 << 28
"""More numbers than a series has; SQLite counts their bytes in 31 bits."""


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers for the output tokens of a turn."""

    turn: str
    name: str
    content: bytes | memoryview
    """float32."""

    @property
    def tensor(self) -> str:
        """What it was called where it came."""
        return f"{self.turn}/{self.name}"


@dataclass(frozen=True, slots=True)
class Annotations:
    """What one call brings."""

    series: list[Series]
    notes: dict[str, str]
    """By turn."""

    @property
    def turns(self) -> set[str]:
        return {each.turn for each in self.series} | self.notes.keys()


def annotate(transaction: Transaction, session: int, given: Annotations) -> None:
    """Keep what is given, all of it or nothing; what has the same name is replaced.

    Raises TurnNotFound, InvalidParameter for a series of another length or one too many, and SessionDeleted or
    SessionClosed where the session is gone.
    """
    load_undeleted(transaction, session, gone_message="The session is gone: nothing of it is left to be annotated.")
    turns = _turns(transaction, session, given.turns)
    for each in given.series:
        number, length = _turn(turns, each.turn, param=each.tensor)
        if len(each.content) != _ITEM * length:
            raise InvalidParameter(
                each.tensor,
                f"{each.tensor} has {len(each.content) // _ITEM} numbers; the turn has {length} output tokens.",
            )
        _put(transaction, session, number, each.name, each.content)
    for turn, text in given.notes.items():
        _put(transaction, session, _turn(turns, turn, param="notes")[0], NOTE, text.encode())
    _check_count(transaction, session, {turns[turn][0]: turn for turn in given.turns})


def load(source: Source, session: int, number: int, *, first: int = 0, most: int = _ALL) -> dict[str, bytes]:
    """The series of a turn, by name; of each so many numbers, from number `first` on."""
    rows = source.execute(
        "SELECT name, substr(content, ?, ?) FROM annotations WHERE session = ? AND turn = ? AND name != ?"
        " ORDER BY name",
        (_ITEM * first + 1, _ITEM * most, session, number, NOTE),
    )
    return dict(rows.fetchall())


def load_note(source: Source, session: int, number: int) -> str | None:
    """The note of a turn."""
    found = source.execute(
        "SELECT content FROM annotations WHERE session = ? AND turn = ? AND name = ?", (session, number, NOTE)
    ).fetchone()
    return None if found is None else str(found[0], "utf-8")


def restore(transaction: Transaction, session: int, number: int, series: Mapping[str, bytes], note: str | None) -> None:
    """Keep what a dump has of a turn. What is there already is newer, and stays."""
    contents = {**series, **({} if note is None else {NOTE: note.encode()})}
    transaction.executemany(
        "INSERT OR IGNORE INTO annotations (session, turn, name, content) VALUES (?, ?, ?, ?)",
        [(session, number, name, content) for name, content in contents.items()],
    )


def _turns(transaction: Transaction, session: int, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(number, output tokens) of those of these turns that there are."""
    rows = transaction.rows(
        "SELECT name, number, length(output_ids) / ? FROM turns WHERE session = ?"
        " AND name IN (SELECT value FROM json_each(?))",
        (_ITEM, session, json.dumps(sorted(names))),
    )
    return {name: (number, length) for name, number, length in rows}


def _turn(turns: Mapping[str, tuple[int, int]], name: str, *, param: str) -> tuple[int, int]:
    if name not in turns:
        raise TurnNotFound(f"This session has no turn {name!r}.", param=param)
    return turns[name]


def _put(transaction: Transaction, session: int, number: int, name: str, content: bytes | memoryview) -> None:
    transaction.execute(
        "INSERT OR REPLACE INTO annotations (session, turn, name, content) VALUES (?, ?, ?, ?)",
        (session, number, name, content),
    )


def _check_count(transaction: Transaction, session: int, turns: Mapping[int, str]) -> None:
    over = transaction.row(
        "SELECT turn, count(*) FROM annotations WHERE session = ? AND turn IN (SELECT value FROM json_each(?))"
        " AND name != ? GROUP BY turn HAVING count(*) > ? LIMIT 1",
        (session, json.dumps(list(turns)), NOTE, SERIES_A_TURN),
    )
    if over is not None:
        name = turns[over[0]]
        raise InvalidParameter(name, f"{name} would have {over[1]} series; a turn has at most {SERIES_A_TURN}.")
