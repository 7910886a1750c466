"""How turns become trajectories, how sessions end, and what is counted as having become of both (`domain.trajectory`).

Rows are freed once every session of a group has ended with nothing left to decide; until then they stay readable.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final

from rolloutfleet.wire import CloseSession
from rolloutfleet_proxy.domain.errors import OutcomeFrozen, ReplaceConflict
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, LEASED, LIVE, SESSIONS, TURNS
from rolloutfleet_proxy.domain.outcome import GROUP_DEADLINE, Ending, ending
from rolloutfleet_proxy.domain.recovery import RECOVERED, Mark
from rolloutfleet_proxy.domain.session import CLOSED, DELETED, RECLAIMED, REPLACED
from rolloutfleet_proxy.domain.trajectory import (
    BY_CLOSE,
    DAMAGED,
    IMPORTING,
    ORPHAN,
    READY,
    VOID,
    Kin,
    fate,
    orphans,
    trajectory_name,
)
from rolloutfleet_proxy.store import recoveries, waiting
from rolloutfleet_proxy.store.deliveries import IS_LOST
from rolloutfleet_proxy.store.sessions import end, load_ending, load_undeleted, set_ending
from rolloutfleet_proxy.store.tombstones import bury
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import load_comparable

DEFAULT: Final = CloseSession()

_TERM = {READY: LIVE, DAMAGED: LIVE, LEASED: LEASED, ACKNOWLEDGED: ACKNOWLEDGED, DISCARDED: DISCARDED}
"""The term of the ledger that the turns of a trajectory in this state are counted under."""


def close_turns(
    transaction: Transaction, session: int, *, closed_by: str, reward_turn: int | None = None
) -> int | None:
    """Make a trajectory of all that is open; returns its number, or None where nothing is open.

    Orphans become discarded. `reward_turn` is the number of the turn that the closing reward was given to.
    """
    turns = count_live(transaction, session)
    if not turns:
        return None
    turns -= discard_orphans(transaction, session)
    number: int = transaction.rows(
        "UPDATE sessions SET trajectories = trajectories + 1 WHERE id = ? RETURNING trajectories", (session,)
    )[0][0]
    transaction.execute("UPDATE turns SET trajectory = ? WHERE session = ? AND trajectory IS NULL", (number, session))
    transaction.execute(
        "INSERT INTO trajectories (session, number, closed_by, reward_turn, turns, state, closed_at)"
        " VALUES (?, ?, ?, ?, ?, 'ready', ?)",
        (session, number, closed_by, reward_turn, turns, transaction.wall),
    )
    waiting.begin(transaction, session, number)
    drop_marked(transaction, session, number, recoveries.mark(transaction, session, number))
    return number


def close_session(transaction: Transaction, session: int, asked: CloseSession = DEFAULT) -> str | None:
    """End a session: what is open becomes a trajectory, whose id is returned; None where nothing was left to close.

    Again, it answers the same; another outcome replaces the first until a trainer has had some of the session.

    Calls in flight are the caller's business: none of them can commit from here on. Raises OutcomeFrozen,
    SessionDeleted, and SessionClosed where its rows are gone.
    """
    name, state, _ = load_undeleted(transaction, session)
    if state != CLOSED:
        met_limit = transaction.value("SELECT met_limit FROM sessions WHERE id = ?", (session,))
        set_ending(transaction, session, ending(asked, met_limit=met_limit))
        close_turns(transaction, session, closed_by=BY_CLOSE)
        end(transaction, session, CLOSED)
    elif asked.outcome is not None:
        _change_ending(transaction, session, Ending(asked.outcome, asked.reason))
    row = transaction.row("SELECT number FROM trajectories WHERE session = ? AND closed_by = 'close'", (session,))
    if state != CLOSED:
        settle(transaction, session)
    return None if row is None else trajectory_name(name, row[0])


_LATE: Final = (
    "state = 'open' AND deadline <= :served AND quorum <= (SELECT count(*) FROM sessions AS member"
    " WHERE member.group_name = sessions.group_name AND member.state != 'open')"
)


def load_late_groups(connection: sqlite3.Connection, *, served: float) -> list[str]:
    """Groups whose deadline is over, and of which enough members have ended, but not all."""
    found = connection.execute(f"SELECT DISTINCT group_name FROM sessions WHERE {_LATE}", {"served": served})
    return [group for (group,) in found]


def close_late(transaction: Transaction, group: str) -> list[str]:
    """Close what is open of such a group; returns the names of these sessions."""
    late = transaction.execute(
        f"SELECT id, name FROM sessions WHERE group_name = :group AND {_LATE}",
        {"group": group, "served": transaction.served},
    ).fetchall()
    for session, _ in late:
        close_session(transaction, session, CloseSession(outcome="aborted", reason=GROUP_DEADLINE))
    return [name for _, name in late]


def _change_ending(transaction: Transaction, session: int, after: Ending) -> None:
    """Raises OutcomeFrozen."""
    if load_ending(transaction, session) == after:
        return
    if transaction.row("SELECT 1 FROM trajectories WHERE session = ? AND frozen LIMIT 1", (session,)):
        raise OutcomeFrozen("The session was leased to a trainer, which freezes its outcome.")
    set_ending(transaction, session, after)


def delete_session(transaction: Transaction, session: int) -> None:
    """End a session and discard all of it that is neither leased nor acknowledged.

    What is leased is left to its lease: acknowledged it counts, given back it is discarded. Raises SessionDeleted
    where it has been deleted before, SessionClosed where its rows are gone.
    """
    load_undeleted(transaction, session)
    _discard(transaction, session, reason=DELETED)
    end(transaction, session, DELETED)
    settle(transaction, session)


def discard_replaced(transaction: Transaction, session: int) -> None:
    """End a session whose place in its group another one has taken, discard all of it, and bury it: of its group it is
    no more.

    Raises ReplaceConflict where some of it is leased or acknowledged.
    """
    had = transaction.row(
        "SELECT state FROM trajectories WHERE session = ? AND state IN ('leased', 'acknowledged')", (session,)
    )
    if had is not None:
        raise ReplaceConflict(f"The session can't be replaced: some of it is {had[0]}.")
    _discard(transaction, session, reason=REPLACED)
    if transaction.value("SELECT fate FROM sessions WHERE id = ?", (session,)) == LIVE:
        transaction.move(SESSIONS, LIVE, DISCARDED, reason=REPLACED)
    bury(transaction, [session], reclaimed=REPLACED)


def _discard(transaction: Transaction, session: int, *, reason: str) -> None:
    """Discard what is neither leased nor acknowledged. Of what is open the rows stay as they are, as they are long."""
    transaction.move(TURNS, LIVE, DISCARDED, count_live(transaction, session), reason=reason)
    unclaimed = transaction.rows(
        "SELECT number FROM trajectories WHERE session = ? AND state IN ('ready', 'damaged')", (session,)
    )
    for (number,) in unclaimed:
        move_trajectory(transaction, session, number, DISCARDED, reason=reason)


def drop_marked(transaction: Transaction, session: int, number: int, mark: Mark | None) -> bool:
    """Discard a trajectory that nobody holds where a recovery's mark says so; returns whether it did."""
    if mark is None or not mark.drop:
        return False
    move_trajectory(transaction, session, number, DISCARDED, reason=RECOVERED)
    recoveries.count_dropped(transaction, session, number, mark)
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


def settle(transaction: Transaction, session: int) -> None:
    """Recompute what became of a session and count it there; free its group if that was the last to decide.

    One whose rows are gone already has nothing to settle.
    """
    row = transaction.row("SELECT state, fate, turns, group_name FROM sessions WHERE id = ?", (session,))
    if row is None or row[1] == IMPORTING:
        return
    state, before, turns, group = row
    held = transaction.rows("SELECT state, reason FROM trajectories WHERE session = ? ORDER BY number DESC", (session,))
    after, reason = fate(state=state, turns=turns, trajectories=held)
    if after != before:
        transaction.move(SESSIONS, before, after, reason=reason)
        transaction.execute("UPDATE sessions SET fate = ?, reason = ? WHERE id = ?", (after, reason or None, session))
    if after in (ACKNOWLEDGED, DISCARDED):
        free_group(transaction, group)


def settle_all(transaction: Transaction, sessions: Iterable[int]) -> None:
    """Settle each of them. Settling one member of a group may free all of it."""
    for session in sorted(set(sessions)):
        settle(transaction, session)


def free_group(transaction: Transaction, group: str) -> None:
    """Free the rows of a group that has nothing left to decide."""
    unresolved = transaction.row(
        "SELECT 1 FROM sessions WHERE group_name = ?"
        " AND (state = 'open' OR fate IN ('live', 'leased', 'importing')) LIMIT 1",
        (group,),
    )
    if not unresolved:
        members = transaction.rows("SELECT id FROM sessions WHERE group_name = ?", (group,))
        bury(transaction, [session for (session,) in members])


def closed_before(connection: sqlite3.Connection, name: str) -> tuple[bool, str | None]:
    """(whether a session whose rows are gone was closed, what that answered); not if it went in another way."""
    row = connection.execute("SELECT reason, trajectory FROM tombstones WHERE name = ?", (name,)).fetchone()
    if row is None or row[0] in (DELETED, REPLACED, *RECLAIMED):
        return False, None
    return True, None if row[1] is None else trajectory_name(name, row[1])


def count_live(transaction: Transaction, session: int, number: int | None = None) -> int:
    """How many turns of trajectory `number`, or of what is open, were not discarded by themselves."""
    live = "SELECT count(*) FROM turns WHERE session = ? AND trajectory IS ? AND state = 'live'"
    return int(transaction.value(live, (session, number)))


def discard_orphans(transaction: Transaction, session: int, number: int | None = None) -> int:
    """Discard the orphans among what is open, or among turns that came in as trajectory `number`; returns how many."""
    unwanted = transaction.row(
        f"SELECT 1 FROM turns WHERE session = ? AND trajectory IS ? AND {IS_LOST} AND reward IS NULL LIMIT 1",
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
        f"SELECT number, parent, length, NOT {IS_LOST} OR reward IS NOT NULL OR trajectory IS NOT ?"
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
            lineage=digests[number].matching.lineage.label,
            wanted=bool(wanted),
        )
        for number, parent, length, wanted in rows
    ]
