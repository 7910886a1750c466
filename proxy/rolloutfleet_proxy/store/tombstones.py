"""What is left of a session whose rows are gone: its name and key, why it is gone, and which dumps it went to."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rolloutfleet_proxy.domain.outcome import GROUP_DEADLINE
from rolloutfleet_proxy.domain.session import GROUP_CLOSED, Gone
from rolloutfleet_proxy.store import keeping, remains
from rolloutfleet_proxy.store.transaction import Source, Transaction

TOMBSTONES: Final = 100_000
TOMBSTONE_AGE: Final = 7 * 86400.0
"""Served seconds. Tombstones are kept up to this number and age, whichever is reached first."""

_OF_A_SESSION: Final = (("shards", "session"), ("trajectories", "session"), ("sessions", "id"))
"""(table, column) of the rows that go with a session at once, whatever the number of its turns."""
_REASON: Final = (
    f"CASE WHEN state = 'deleted' THEN state WHEN outcome_reason = '{GROUP_DEADLINE}' THEN '{GROUP_CLOSED}'"
    " ELSE coalesce(reason, fate) END"
)


def find(source: Source, *, column: str, value: str | bytes | None) -> Gone | None:
    """The tombstone of this `name` or `key_hash`."""
    row = source.execute(f"SELECT name, reason, dumped FROM tombstones WHERE {column} = ?", (value,)).fetchone()
    return None if row is None else Gone(row[0], row[1], tuple(json.loads(row[2])))


def bury(
    transaction: Transaction,
    sessions: Iterable[int],
    *,
    reclaimed: str | None = None,
    dumped: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """Delete the rows of sessions, by row id, and leave tombstones.

    Of turns there may be many: those that this operation may not delete any more are left to `remains`, and those that
    are to be copied to `keeping`.

    Their reason is `reclaimed`, else what became of each, or that its group's deadline closed it. `dumped` says which
    trajectories went to dumps.
    """
    for session in sessions:
        transaction.execute(
            "INSERT OR REPLACE INTO tombstones (name, key_hash, group_name, reason, dumped, trajectory, buried)"
            " SELECT name, key_hash, group_name,"
            f" coalesce(?, {_REASON}), ?,"
            " (SELECT number FROM trajectories WHERE session = sessions.id AND closed_by = 'close'), ?"
            " FROM sessions WHERE id = ?",
            (reclaimed, json.dumps(list((dumped or {}).get(session, ()))), transaction.served, session),
        )
        transaction.freed.append(transaction.value("SELECT name FROM sessions WHERE id = ?", (session,)))
        is_kept = keeping.note(transaction, session)
        for table, column in _OF_A_SESSION:
            transaction.execute(f"DELETE FROM {table} WHERE {column} = ?", (session,))
        if not is_kept:
            remains.leave(transaction, session)
    prune(transaction)


def prune(transaction: Transaction) -> None:
    """Forget the oldest tombstones where there are too many, and those that are too old."""
    transaction.prune("tombstones", "buried", most=TOMBSTONES, age=TOMBSTONE_AGE)
