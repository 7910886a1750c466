"""Trained sessions of which a copy is kept: they go when they are acknowledged, but for what is still to be copied.

Like what `remains` holds, nobody finds their turns, and no sum counts them. Who acknowledges waits for no copy.
"""

import sqlite3
from typing import Final, NamedTuple

from rolloutfleet.dumps.form import DumpedSession
from rolloutfleet_proxy.domain.keeping import is_drawn
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED
from rolloutfleet_proxy.domain.session import DELETED
from rolloutfleet_proxy.store import remains
from rolloutfleet_proxy.store.dumped_session import load_session
from rolloutfleet_proxy.store.transaction import Transaction

MOST_WAITING: Final = 4096
"""Sessions that wait to be copied; of more that come, no copy is made."""


class Waiting(NamedTuple):
    """A session that is to be copied."""

    session: int
    """Its row's id."""
    head: DumpedSession | None
    """None: there was no room to copy it, so it is only to be let go of."""


class KeptTurn(NamedTuple):
    number: int
    turn_id: str
    discarded: bool


def note(transaction: Transaction, session: int) -> bool:
    """Note that a session which is about to go is to be copied, if it was trained and is drawn; its turns and their
    annotations then have to stay until `let_go`. Returns whether it is."""
    if not transaction.keep_fraction:
        return False
    row = transaction.row(
        "SELECT name FROM sessions WHERE id = ? AND fate = ? AND state != ?", (session, ACKNOWLEDGED, DELETED)
    )
    if row is None or not is_drawn(row[0], transaction.keep_fraction):
        return False
    has_room = not transaction.in_reserve and transaction.value("SELECT count(*) FROM keeping") < MOST_WAITING
    head = load_session(transaction, session).model_dump_json() if has_room else None
    transaction.execute("INSERT INTO keeping (session, head) VALUES (?, ?)", (session, head))
    return True


def load_next(connection: sqlite3.Connection) -> Waiting | None:
    """The oldest session that waits, of those that are only to be let go of first; None where none does."""
    asked = "SELECT session, head FROM keeping ORDER BY head IS NOT NULL, session LIMIT 1"
    row = connection.execute(asked).fetchone()
    if row is None:
        return None
    return Waiting(row[0], None if row[1] is None else DumpedSession.model_validate_json(row[1]))


def load_turns(connection: sqlite3.Connection, session: int) -> list[KeptTurn]:
    """All turns of a session that waits, in order of commit."""
    rows = connection.execute(
        "SELECT number, name, state != 'live' FROM turns WHERE session = ? ORDER BY number", (session,)
    )
    return [KeptTurn(number, name, bool(discarded)) for number, name, discarded in rows]


def let_go(transaction: Transaction, session: int) -> None:
    """Whatever came of the copy: the turns go."""
    transaction.execute("DELETE FROM keeping WHERE session = ?", (session,))
    remains.leave(transaction, session)
