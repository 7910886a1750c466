"""The rows of sessions: made, found by name or key, touched, ended."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.errors import SessionClosed, SessionDeleted
from rolloutfleet_proxy.domain.ledger import CREATED, LIVE, SESSIONS
from rolloutfleet_proxy.domain.outcome import GROUP_DEADLINE, Ending
from rolloutfleet_proxy.domain.sampling import UNSAID, SessionSampling
from rolloutfleet_proxy.domain.session import DELETED, OPEN, Gone, SessionRecord, Started
from rolloutfleet_proxy.ids import GROUP, SESSION, Owner, key_hash
from rolloutfleet_proxy.store import tombstones
from rolloutfleet_proxy.store.transaction import Source, Transaction, insert_statement, named_row

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_COLUMNS: Final = (
    *("name", "key_hash", "group_name", "task_id", "metadata", "limits", "agent_may", "stale_after", "state", "fate"),
    *("created_at", "touched", "ended", "imported_at", "sampling", "branches", "rewarded", "output_tokens"),
    *("last_activity_at", "await_reward", "train"),
)
SUMMARY: Final = "branches, reward, rewarded, output_tokens, version_min, version_max, last_activity_at"
"""Columns that say what a list shows of a session's turns (`summaries`), as they are selected."""
_INSERT: Final = insert_statement("sessions", _COLUMNS)


def insert(transaction: Transaction, record: SessionRecord, *, agent_may: Sequence[str], fate: str) -> int:
    """Make the row of a session, whatever `record.id` says; returns its row id. One that is not open has ended now."""
    inserted = transaction.execute(
        _INSERT,
        (
            *(record.name, record.key_hash, record.group, record.task_id, record.metadata_json),
            *(_encode(record.limits).decode(), _encode(list(agent_may)).decode(), record.stale_after),
            *(record.state, fate, record.created_at, transaction.served),
            None if record.state == OPEN else transaction.served,
            transaction.wall if record.imported else None,
            *(record.sampling_json, 0, 0, 0, transaction.wall, record.await_reward, record.train),
        ),
    )
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def start(
    transaction: Transaction,
    owner: Owner,
    asked: StartSessions,
    *,
    sampling: SessionSampling = UNSAID,
    replaced: SessionRecord | None = None,
) -> tuple[str, list[Started]]:
    """Make a group of sessions, or one in the place of another; returns the group's name and each session's name and
    key.

    `sampling` is what counts of what was asked and what the fleet says.
    """
    group = owner.name(GROUP) if replaced is None else replaced.group
    metadata = _encode(asked.metadata).decode() if asked.metadata else None
    said = sampling.encode()
    started: list[Started] = []
    for _ in range(asked.group_size):
        name, key = owner.name(SESSION), owner.key()
        record = SessionRecord(
            id=0,
            name=name,
            key_hash=key_hash(key),
            group=group,
            task_id=asked.task_id if replaced is None else replaced.task_id,
            metadata_json=metadata,
            limits=asked.limits.model_dump(exclude_none=True),
            agent_may=frozenset(asked.agent_may),
            stale_after=asked.stale_after,
            await_reward=asked.await_reward,
            train=asked.train,
            state=OPEN,
            tokens=0,
            created_at=transaction.wall,
            sampling_json=said,
        )
        record.id = insert(transaction, record, agent_may=asked.agent_may, fate=LIVE)
        started.append(Started(name, key, record))
        if replaced is not None:
            transaction.execute(
                "UPDATE sessions SET (place, quorum, deadline) ="
                " (SELECT coalesce(place, id), quorum, deadline FROM sessions WHERE id = ?) WHERE id = ?",
                (replaced.id, record.id),
            )
    if asked.group is not None:
        transaction.execute(
            "UPDATE sessions SET quorum = ?, deadline = ? WHERE group_name = ?",
            (asked.group.quorum, transaction.served + asked.group.deadline, group),
        )
    transaction.count(SESSIONS, CREATED, len(started))
    transaction.count(SESSIONS, LIVE, len(started))
    return group, started


def replace_keys(transaction: Transaction, owner: Owner, names: Sequence[str]) -> list[Started]:
    """Give sessions new keys; the old ones are void from then on. Raises LookupError, which names one that is gone."""
    started = [Started(name, owner.key()) for name in names]
    for session in started:
        changed = transaction.execute(
            "UPDATE sessions SET key_hash = ? WHERE name = ?", (key_hash(session.key), session.name)
        )
        if not changed.rowcount:
            raise LookupError(session.name)
    return started


_TOUCH: Final = "UPDATE sessions SET touched = ?, last_activity_at = ?"


def touch(transaction: Transaction, session: int, *, also: str = "", values: Sequence[Any] = ()) -> bool:
    """Note that somebody still needs the session, and with it what else changes (`, column = ?`, and its values).

    False where its rows are gone.
    """
    changed = transaction.execute(
        f"{_TOUCH}{also} WHERE id = ?", (transaction.served, transaction.wall, *values, session)
    )
    return changed.rowcount > 0


def end(transaction: Transaction, session: int, state: str) -> None:
    """From now on it waits to be claimed, unless it did before."""
    transaction.execute(
        "UPDATE sessions SET state = ?, ended = coalesce(ended, ?) WHERE id = ?", (state, transaction.served, session)
    )


def load_ending(transaction: Transaction, session: int) -> Ending:
    return Ending(*transaction.rows("SELECT outcome, outcome_reason FROM sessions WHERE id = ?", (session,))[0])


def set_ending(transaction: Transaction, session: int, ending: Ending) -> None:
    transaction.execute("UPDATE sessions SET outcome = ?, outcome_reason = ? WHERE id = ?", (*ending, session))


def wait_to_be_claimed(transaction: Transaction, sessions: Iterable[int]) -> None:
    """Let those of the sessions that have ended wait anew for a trainer, as long as if they ended now."""
    transaction.execute(
        "UPDATE sessions SET ended = ? WHERE state != 'open' AND id IN (SELECT value FROM json_each(?))",
        (transaction.served, json.dumps(sorted(sessions))),
    )


def count_open(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM sessions WHERE state = 'open'").fetchone()
    return int(count)


def load_figures(connection: sqlite3.Connection, session: int) -> dict[str, Any]:
    """What a session's row says that changes without a call, by name: when it was `touched` (in served seconds), its
    `trajectories` (closed so far), how many of these are `leased` now, its `outcome` and `outcome_reason`, and the
    columns of `SUMMARY`.

    Raises SessionClosed where the session's rows are gone.
    """
    row = named_row(
        connection,
        "SELECT touched, trajectories, (SELECT count(*) FROM trajectories WHERE session = sessions.id"
        f" AND state = 'leased') AS leased, outcome, outcome_reason, {SUMMARY} FROM sessions WHERE id = ?",
        (session,),
    )
    if row is None:
        raise gone()
    return row


def gone() -> SessionClosed:
    """What is answered where nobody knows more of a session than that its rows are gone."""
    return SessionClosed("The session has ended, and all of it has been acknowledged or discarded.")


def load_undeleted(transaction: Transaction, session: int, *, gone_message: str | None = None) -> tuple[str, str, int]:
    """(name, state, turns) of a session. Raises SessionDeleted; where its rows are gone SessionClosed, with this
    message or that of `gone`."""
    row = transaction.row("SELECT name, state, turns FROM sessions WHERE id = ?", (session,))
    if row is None:
        raise gone() if gone_message is None else SessionClosed(gone_message)
    name, state, turns = row
    if state == DELETED:
        raise SessionDeleted(f"Session {name} has been deleted.")
    return name, state, turns


_SELECT = (
    "SELECT id, name, key_hash, group_name AS 'group', task_id, metadata AS metadata_json, limits, agent_may,"
    " stale_after, await_reward, train, state, tokens, created_at, sampling AS sampling_json,"
    f" imported_at IS NOT NULL AS imported, outcome_reason IS '{GROUP_DEADLINE}' AS group_closed FROM sessions WHERE "
)


def find(source: Source, *, name: str | None = None, key: bytes | None = None) -> SessionRecord | Gone | None:
    """A session by name or by its key's hash; its tombstone; or None."""
    column, value = ("name", name) if name is not None else ("key_hash", key)
    row = named_row(source, f"{_SELECT} {column} = ?", (value,))
    if row is None:
        return tombstones.find(source, column=column, value=value)
    record = SessionRecord(**row)
    record.limits, record.agent_may = _decode(row["limits"]), frozenset(_decode(row["agent_may"]))
    for name in ("imported", "train", "group_closed"):
        setattr(record, name, bool(row[name]))
    return record
