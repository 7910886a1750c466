"""What the disk has changed: trajectories that nobody is to get any more, turns that no dump holds, rows of any table.

A row is held against its checksum (`checksums`), and a trajectory's turns against their number, as what SQLite finds
rows by may be damaged, too. What can't be read at all counts as damaged, unless another read may succeed.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rolloutfleet_proxy.domain.trajectory import ELSEWHERE, IMPORTING
from rolloutfleet_proxy.store.checksums import GUARDED, SOUND
from rolloutfleet_proxy.store.database import may_pass
from rolloutfleet_proxy.store.leases import Member

ROWS_AT_ONCE: Final = 64
"""Turns that are looked at in one read."""
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
_NOT_HERE: Final = (IMPORTING, ELSEWHERE)


def is_sound(connection: sqlite3.Connection, member: Member) -> bool:
    """Whether a trajectory is as it was committed, and all that an export of it depends on: what it says of its
    session, and all turns up to its newest, as rewards of earlier ones may be in the returns of its rows.
    """
    try:
        return _row_is_sound(connection, "sessions", (member.session,)) and _turns_are_sound(connection, member)
    except _UNREADABLE as error:
        if may_pass(error):
            raise
        return False


def _turns_are_sound(connection: sqlite3.Connection, member: Member) -> bool:
    session, number = member.session, member.number
    upto = connection.execute(
        "SELECT number FROM turns WHERE session = ?1 AND number <="
        " (SELECT max(number) FROM turns WHERE session = ?1 AND trajectory = ?2) ORDER BY number",
        (session, number),
    ).fetchall()
    kept = connection.execute(
        "SELECT number, turns, state FROM trajectories WHERE session = ? AND number <= ?", (session, number)
    ).fetchall()
    found = connection.execute(
        "SELECT trajectory, count(*) FROM turns WHERE session = ? AND state = 'live' GROUP BY trajectory", (session,)
    )
    live = dict(found.fetchall())
    return (
        all(_row_is_sound(connection, "trajectories", (session, each)) for each, _, _ in kept)
        and all(live.get(each, 0) == turns for each, turns, state in kept if state not in _NOT_HERE)
        and not damaged_turns(connection, session, [each for (each,) in upto])
    )


def damaged_turns(connection: sqlite3.Connection, session: int, numbers: Iterable[int]) -> list[int]:
    """Those of a session's turns that are not as they were committed, and those that extend one that is not, or is not
    among them. `numbers` go up."""
    bad: list[int] = []
    sound: set[int] = set()
    for number in numbers:
        try:
            row = connection.execute(
                f"SELECT parent, {SOUND} FROM turns WHERE session = ? AND number = ?", (session, number)
            ).fetchone()
        except _UNREADABLE as error:
            if may_pass(error):
                raise
            row = None
        if row is None or not row[1] or (row[0] is not None and row[0] not in sound):
            bad.append(number)
        else:
            sound.add(number)
    return bad


def _row_is_sound(connection: sqlite3.Connection, table: str, key: Sequence[int]) -> bool:
    guarded = GUARDED[table]
    row = connection.execute(
        f"SELECT coalesce(checksum = {guarded.of()}, 1) FROM {table}"
        f" WHERE {' AND '.join(f'{column} = ?' for column in guarded.key)}",
        key,
    ).fetchone()
    return row is not None and bool(row[0])


def in_structure(connection: sqlite3.Connection, *, most: int) -> list[str]:
    """What is wrong with the file's pages and with what rows are found by, a sentence each, and no more than so many.

    It takes as long as the file is large; `interrupt` of the connection ends it.
    """
    try:
        rows = connection.execute(f"PRAGMA integrity_check({most})").fetchall()
    except _UNREADABLE as error:
        interrupted = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        return [] if interrupted else [str(error)]
    return [problem for (problem,) in rows if problem != "ok"]


def look_at_turns(connection: sqlite3.Connection, *, after: int) -> tuple[int, int, list[str]] | None:
    """(newest row, how many, a sentence for each that is damaged) of a piece of all turns, from behind row `after`;
    None where there are no more."""
    rows: list[tuple[int]] = []
    try:
        asked = "SELECT id FROM turns WHERE id > ? ORDER BY id LIMIT ?"
        rows = connection.execute(asked, (after, ROWS_AT_ONCE)).fetchall()
        found = connection.execute(
            f"SELECT turns.session, number FROM turns WHERE id BETWEEN ? AND ? AND NOT ({SOUND})",
            (after + 1, rows[-1][0] if rows else after),
        ).fetchall()
        bad = [f"turn {number} of the session in row {session} is not as it was committed" for session, number in found]
    except _UNREADABLE as error:
        return after + ROWS_AT_ONCE, 0, [f"turns behind row {after} can't be read: {error}"]
    return (rows[-1][0], len(rows), bad) if rows else None


def damaged_rows(connection: sqlite3.Connection) -> Iterator[str]:
    """A sentence for each table, but for turns, that has a row which is not as it was written, or can't be read."""
    for table, guarded in GUARDED.items():
        key = ", ".join(guarded.key)
        try:
            for row in connection.execute(f"SELECT {key} FROM {table} WHERE checksum != {guarded.of()} LIMIT 10"):
                yield f"{table}: the row of {key} {', '.join(map(str, row))} is not as it was written"
        except _UNREADABLE as error:
            yield f"{table} can't be read: {error}"
