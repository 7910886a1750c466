"""How turns become trajectories, how sessions end, and what is counted as having become of both.

A trajectory is ready, then leased and acknowledged, or discarded; its turns share its fate, but for orphans, which
are discarded one by one when it closes. A session's own fate follows from those of its trajectories. Rows are freed
once every session of a group has ended with nothing left to decide; until then they stay readable.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import DomainError, SessionClosed, SessionDeleted
from rolloutfleet_proxy.sessions.sessions import CLOSED, DELETED, OPEN
from rolloutfleet_proxy.sessions.tombstones import RECLAIMED, bury
from rolloutfleet_proxy.store.transaction import (
    ACKNOWLEDGED,
    DISCARDED,
    LEASED,
    LIVE,
    SESSIONS,
    TURNS,
    Transaction,
)
from rolloutfleet_proxy.turns import lineage
from rolloutfleet_proxy.turns.matching import load_comparable

READY: Final = "ready"
"""A closed trajectory that training may take. Its turns count as live."""

IMPORTING: Final = "importing"
"""On its way in from a dump: not counted yet."""
ELSEWHERE: Final = "elsewhere"
"""Not here; only turns of it are that imported ones extend."""

BY_REWARD: Final = "reward"
BY_CLOSE: Final = "close"

VOID: Final = "void"
"""A turn that was discarded by itself. As long as `live`, so that an UPDATE changes one page of a long row, and not all
of it: to discard needs room on a disk that is full. Older rows say `discarded`."""

# Why something was discarded, beside `deleted`.
EMPTY: Final = "empty"
ORPHAN: Final = "orphan"

_TERM = {READY: LIVE, LEASED: LEASED, ACKNOWLEDGED: ACKNOWLEDGED, DISCARDED: DISCARDED}
"""The term of the ledger that the turns of a trajectory in this state are counted under."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What ending a session did."""

    trajectory_id: str | None
    """The trajectory that closing it made; None where nothing was left to close, and after a delete."""
    freed: tuple[str, ...] = ()
    """Sessions whose rows are gone now: this one and its group, where it was the last."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a session's row says that changes without a call."""

    touched: float
    """Served seconds."""
    trajectories: int
    """Closed so far."""
    leased: int
    """Of these, how many are leased now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """A turn as the rule of orphans sees it."""

    number: int
    parent: int | None
    request: bytes
    """Digest chain of the request's messages."""
    reasonings: tuple[tuple[int, bytes], ...]
    """(message index, digest) of the reasoning that its request added."""
    wanted: bool
    """Somebody received it or rewarded it, or it is of an earlier trajectory."""


def trajectory_name(session: str, number: int) -> str:
    """The trajectory_id that users see."""
    return f"{session}-trajectory-{number}"


def orphans(turns: Sequence[Kin]) -> set[int]:
    """Numbers of the turns that nobody received and nobody extended, with a later sibling of equal history.

    Such a turn is what a lost answer leaves behind: its caller asked again and went on from the second answer.
    """
    extended = {turn.parent for turn in turns}
    newest: dict[tuple[Any, ...], int] = {}
    for turn in turns:
        asked = _asked(turn)
        newest[asked] = max(turn.number, newest.get(asked, 0))
    return {
        turn.number
        for turn in turns
        if not turn.wanted and turn.number not in extended and turn.number < newest[_asked(turn)]
    }


def close_turns(
    transaction: Transaction, session: int, *, closed_by: str, reward_turn: int | None = None
) -> int | None:
    """Make a trajectory of all that is open; returns its number, or None where nothing is open.

    Orphans become discarded. `reward_turn` is the number of the turn that the closing reward was given to.
    """
    turns = _count_open(transaction, session)
    if not turns:
        return None
    turns -= discard_orphans(transaction, session)
    transaction.execute("UPDATE sessions SET trajectories = trajectories + 1 WHERE id = ?", (session,))
    number: int = transaction.rows("SELECT trajectories FROM sessions WHERE id = ?", (session,))[0][0]
    transaction.execute("UPDATE turns SET trajectory = ? WHERE session = ? AND trajectory IS NULL", (number, session))
    transaction.execute(
        "INSERT INTO trajectories (session, number, closed_by, reward_turn, turns, state, closed_at)"
        " VALUES (?, ?, ?, ?, ?, 'ready', ?)",
        (session, number, closed_by, reward_turn, turns, transaction.wall),
    )
    drop_marked(transaction, session, number, lineage.mark(transaction, session, number))
    return number


def close_session(transaction: Transaction, session: int) -> Ended:
    """End a session: what is open becomes a trajectory. Again, it answers the same.

    Calls in flight are the caller's business: none of them can commit from here on. Raises SessionDeleted, and
    SessionClosed where its rows are gone.
    """
    name, state = _session(transaction, session)
    if state == DELETED:
        raise SessionDeleted(f"Session {name} has been deleted.")
    if state == CLOSED:
        return Ended(_closing(transaction, name, session))
    close_turns(transaction, session, closed_by=BY_CLOSE)
    _end(transaction, session, CLOSED)
    return Ended(_closing(transaction, name, session), settle(transaction, session))


def delete_session(transaction: Transaction, session: int) -> Ended:
    """End a session and discard all of it that is neither leased nor acknowledged.

    What is leased is left to its lease: acknowledged it counts, given back it is discarded. Raises SessionDeleted
    where it has been deleted before, SessionClosed where its rows are gone.
    """
    name, state = _session(transaction, session)
    if state == DELETED:
        raise SessionDeleted(f"Session {name} has been deleted.")
    # Rows of turns are long, and stay as they are: what is open of a session that is deleted counts as discarded.
    transaction.move(TURNS, LIVE, DISCARDED, _count_open(transaction, session), reason=DELETED)
    ready = transaction.rows("SELECT number FROM trajectories WHERE session = ? AND state = 'ready'", (session,))
    for (number,) in ready:
        move_trajectory(transaction, session, number, DISCARDED, reason=DELETED)
    _end(transaction, session, DELETED)
    return Ended(None, settle(transaction, session))


def drop_marked(transaction: Transaction, session: int, number: int, mark: lineage.Mark | None) -> bool:
    """Discard a trajectory that nobody holds where a recovery's mark says so; returns whether it did."""
    if mark is None or not mark.drop:
        return False
    move_trajectory(transaction, session, number, DISCARDED, reason=lineage.RECOVERED)
    lineage.count_dropped(transaction, session, number, mark)
    return True


def move_trajectory(
    transaction: Transaction, session: int, number: int, after: str, *, lease: str | None = None, reason: str = ""
) -> None:
    """Give a trajectory another state and count its turns there. `settle` its session afterwards.

    From its first lease on its rewards are frozen.
    """
    before, turns = transaction.rows(
        "SELECT state, turns FROM trajectories WHERE session = ? AND number = ?", (session, number)
    )[0]
    transaction.execute(
        "UPDATE trajectories SET state = ?, lease = ?, reason = ?, frozen = max(frozen, ?)"
        " WHERE session = ? AND number = ?",
        (after, lease, reason or None, after == LEASED, session, number),
    )
    if _TERM[before] != _TERM[after]:
        transaction.move(TURNS, _TERM[before], _TERM[after], turns, reason=reason)


def settle(transaction: Transaction, session: int) -> tuple[str, ...]:
    """Recompute what became of a session and count it there; free its group if that was the last to decide.

    Returns the names of the sessions whose rows were freed.
    """
    state, before, turns, group = transaction.rows(
        "SELECT state, fate, turns, group_name FROM sessions WHERE id = ?", (session,)
    )[0]
    if before == IMPORTING:
        return ()
    held = transaction.rows("SELECT state, reason FROM trajectories WHERE session = ? ORDER BY number DESC", (session,))
    after, reason = fate(state=state, turns=turns, trajectories=held)
    if after != before:
        transaction.move(SESSIONS, before, after, reason=reason)
        transaction.execute("UPDATE sessions SET fate = ?, reason = ? WHERE id = ?", (after, reason or None, session))
    return free_group(transaction, group) if after in (ACKNOWLEDGED, DISCARDED) else ()


def free_group(transaction: Transaction, group: str) -> tuple[str, ...]:
    """Free the rows of a group that has nothing left to decide; returns the names of its sessions, or none."""
    unresolved = transaction.row(
        "SELECT 1 FROM sessions WHERE group_name = ?"
        " AND (state = 'open' OR fate IN ('live', 'leased', 'importing')) LIMIT 1",
        (group,),
    )
    if unresolved:
        return ()
    members = transaction.rows("SELECT id FROM sessions WHERE group_name = ?", (group,))
    return bury(transaction, [session for (session,) in members])


def fate(*, state: str, turns: int, trajectories: Sequence[tuple[str, str | None]]) -> tuple[str, str]:
    """(term, reason) that a session counts under; the reason is '' unless it was discarded.

    `trajectories` are (state, reason), newest first. An ended session has no open turns: each is of a trajectory, or
    discarded with the session.
    """
    states = {held for held, _ in trajectories}
    if LEASED in states:
        return LEASED, ""
    if state == OPEN or READY in states or IMPORTING in states:
        return LIVE, ""
    if ACKNOWLEDGED in states:
        return ACKNOWLEDGED, ""
    if state == DELETED:
        return DISCARDED, DELETED
    if not turns:
        return DISCARDED, EMPTY
    return DISCARDED, next((reason for _, reason in trajectories if reason), DISCARDED)


def figures(connection: sqlite3.Connection, session: int) -> Figures:
    """Raises SessionClosed where the session's rows are gone."""
    row = connection.execute(
        "SELECT touched, trajectories, (SELECT count(*) FROM trajectories WHERE session = sessions.id"
        " AND state = 'leased') FROM sessions WHERE id = ?",
        (session,),
    ).fetchone()
    if row is None:
        raise _gone()
    return Figures(*row)


def closed_before(connection: sqlite3.Connection, name: str) -> Ended | None:
    """What closing a session answered whose rows are gone; None where it was deleted, reclaimed or never known."""
    row = connection.execute("SELECT reason, trajectory FROM tombstones WHERE name = ?", (name,)).fetchone()
    if row is None or row[0] == DELETED or row[0] in RECLAIMED:
        return None
    return Ended(None if row[1] is None else trajectory_name(name, row[1]))


def wait_to_be_claimed(transaction: Transaction, sessions: Iterable[int]) -> None:
    """Let those of the sessions that have ended wait anew for a trainer, as long as if they ended now."""
    transaction.execute(
        "UPDATE sessions SET ended = ? WHERE state != 'open' AND id IN (SELECT value FROM json_each(?))",
        (transaction.served, json.dumps(sorted(sessions))),
    )


def _session(transaction: Transaction, session: int) -> tuple[str, str]:
    row = transaction.row("SELECT name, state FROM sessions WHERE id = ?", (session,))
    if row is None:
        raise _gone()
    return row[0], row[1]


def _gone() -> DomainError:
    return SessionClosed("The session has ended, and all of it has been acknowledged or discarded.")


def _end(transaction: Transaction, session: int, state: str) -> None:
    transaction.execute(
        "UPDATE sessions SET state = ?, ended = coalesce(ended, ?) WHERE id = ?", (state, transaction.served, session)
    )


def _closing(transaction: Transaction, name: str, session: int) -> str | None:
    row = transaction.row("SELECT number FROM trajectories WHERE session = ? AND closed_by = 'close'", (session,))
    return None if row is None else trajectory_name(name, row[0])


def _count_open(transaction: Transaction, session: int) -> int:
    count: int = transaction.rows(
        "SELECT count(*) FROM turns WHERE session = ? AND trajectory IS NULL AND state = 'live'", (session,)
    )[0][0]
    return count


def discard_orphans(transaction: Transaction, session: int, number: int | None = None) -> int:
    """Discard the orphans among what is open, or among turns that came in as trajectory `number`; returns how many."""
    unwanted = transaction.row(
        "SELECT 1 FROM turns WHERE session = ? AND trajectory IS ? AND NOT delivered AND reward IS NULL LIMIT 1",
        (session, number),
    )
    if not unwanted:
        return 0
    found = orphans(_kin(transaction, session, number))
    transaction.executemany(
        f"UPDATE turns SET state = '{VOID}' WHERE session = ? AND number = ?",
        [(session, turn) for turn in sorted(found)],
    )
    transaction.move(TURNS, LIVE, DISCARDED, len(found), reason=ORPHAN)
    return len(found)


def _kin(transaction: Transaction, session: int, open_as: int | None) -> list[Kin]:
    rows = transaction.rows(
        "SELECT number, parent, length, delivered OR reward IS NOT NULL OR trajectory IS NOT ?"
        " FROM turns WHERE session = ? AND state = 'live'",
        (open_as, session),
    )
    digests = load_comparable(transaction, session)
    return [
        Kin(
            number=number,
            parent=parent,
            request=digests[number].request,
            # The last message is the turn's own answer, which its siblings need not share.
            reasonings=tuple(
                (index, digest) for index, digest in digests[number].matching.reasonings if index < length - 1
            ),
            wanted=bool(wanted),
        )
        for number, parent, length, wanted in rows
    ]


def _asked(turn: Kin) -> tuple[Any, ...]:
    return turn.parent, turn.request, turn.reasonings
