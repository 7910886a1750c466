"""Rows of dumps on their way into the store: laid down unseen, a few at a time, then made to count all at once.

Rows are large, and one transaction over all of them would keep turns waiting that agents wait for. So a trajectory
comes in as `importing`, which nobody exports and no sum counts, and a session that only now comes with that fate.
`arrive` then turns all of them in one short transaction. What never arrived is swept out by `undo`.
"""

import json
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rolloutfleet.dumps.files import DumpName
from rolloutfleet.dumps.form import DumpedSession, DumpHead
from rolloutfleet.wire import ImportedDump
from rolloutfleet_proxy.domain.errors import AlreadyImported, DomainError, ImportConflict
from rolloutfleet_proxy.domain.ledger import IMPORTED, LIVE, SESSIONS, TURNS
from rolloutfleet_proxy.domain.outcome import Ending
from rolloutfleet_proxy.domain.session import CLOSED, SessionRecord
from rolloutfleet_proxy.domain.trajectory import BY_CLOSE, ELSEWHERE, IMPORTING, READY, trajectory_name
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store import annotations, recoveries, rewards, summaries, waiting
from rolloutfleet_proxy.store.dumps import is_draft
from rolloutfleet_proxy.store.sessions import insert, set_ending
from rolloutfleet_proxy.store.trajectories import count_live, discard_orphans, drop_marked, settle_all
from rolloutfleet_proxy.store.transaction import Source, Transaction, insert_statement, load_fact

IMPORTS: Final = 100_000
IMPORT_AGE: Final = 7 * 86400.0
"""Served seconds. What was imported is remembered up to this number and age, whichever is reached first."""

_UNDONE_AT_ONCE: Final = 200

_encode = msgspec.json.Encoder().encode


class TurnRow(msgspec.Struct, frozen=True, array_like=True):
    """A turn as its row, all but its session, and its annotations."""

    context: bool
    number: int
    name: str
    parent: int | None
    trajectory: int | None
    state: str
    delivered: bool
    mixed_cache: bool
    run: int
    start: int
    length: int
    prompt_tokens: int
    reward: float | None
    created_at: float
    finish_reason: str
    history: bytes
    request: bytes
    matching: bytes
    versions: bytes
    prompt_ids: bytes
    output_ids: bytes
    logprobs: bytes
    output: bytes
    messages: bytes
    tools: bytes | None
    extras: bytes | None
    annotations: dict[str, bytes] = {}
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """A trajectory that is laid down unseen."""

    session: int
    number: int
    was_open: bool
    """It was never closed before."""
    name: DumpName
    """Of the dump that it is of."""
    digest: str


def refuse_known(source: Source, head: DumpHead, digest: str) -> None:
    """Raise ImportConflict where what a dump holds is here, or has been imported before."""
    name = _name(head)
    row = source.execute(
        "SELECT id, state, imported_at FROM sessions WHERE name = ?", (head.session.session_id,)
    ).fetchone()
    if row is not None:
        session, state, imported_at = row
        if imported_at is None or state != CLOSED:
            raise _conflict(name, f"session {head.session.session_id} is here, and {state}")
        held = source.execute(
            "SELECT state FROM trajectories WHERE session = ? AND number = ?", (session, _number(head))
        ).fetchone()
        if held is not None and held[0] != ELSEWHERE:
            raise _already(name)
    if has_arrived(source, name, digest):
        raise _already(name)
    if is_draft(source, str(name), head.dumped_at):
        raise _conflict(name, f"session {head.session.session_id} was not freed when it was dumped, and went on")


def has_arrived(source: Source, name: DumpName, digest: str) -> bool:
    """Whether a dump of this name and digest has been imported."""
    found = source.execute("SELECT 1 FROM imports WHERE name = ? AND digest = ?", (str(name), digest)).fetchone()
    return found is not None


def begin(transaction: Transaction, head: DumpHead, digest: str) -> Staged:
    """Lay down a dump's session, where it is not here yet, and its trajectory. Raises ImportConflict."""
    refuse_known(transaction, head, digest)
    number = _number(head)
    session = _session(transaction, head.session, trajectories=number)
    closed = head.trajectory
    rewards.add_episode_turns(transaction, session, _episode_turns(head))
    transaction.execute(
        "INSERT OR REPLACE INTO trajectories (session, number, closed_by, reward_turn, turns, state, frozen, marked,"
        " closed_at) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?)",
        (
            session,
            number,
            BY_CLOSE if closed is None else closed.closed_by,
            None if closed is None else closed.reward_turn,
            IMPORTING,
            False if closed is None else closed.frozen,
            None if closed is None else closed.marked,
            transaction.wall if closed is None else closed.closed_at,
        ),
    )
    return Staged(session, number, closed is None, _name(head), digest)


def add_turns(transaction: Transaction, staged: Staged, turns: Iterable[TurnRow]) -> None:
    """Lay down turns of a staged trajectory, and those that they extend. One that is here already must be the same.

    Raises ImportConflict for another one, and where the session is gone since.
    """
    if transaction.row("SELECT 1 FROM sessions WHERE id = ?", (staged.session,)) is None:
        raise ImportConflict("The session was deleted while it was imported.")
    for turn in turns:
        if turn.context:
            transaction.execute(
                "INSERT OR IGNORE INTO trajectories (session, number, closed_by, turns, state, closed_at)"
                " VALUES (?, ?, '', 0, ?, 0)",
                (staged.session, turn.trajectory, ELSEWHERE),
            )
        else:
            # What was open had no number yet.
            turn = msgspec.structs.replace(turn, trajectory=staged.number)
        if not _there(transaction, staged.session, turn):
            columns = (getattr(turn, name) for name in _TURN)
            transaction.execute(_INSERT_TURN, (staged.session, b"", *columns))
        annotations.restore(transaction, staged.session, turn.number, turn.annotations, turn.note)


def arrive(transaction: Transaction, dumps: Sequence[Staged]) -> list[ImportedDump]:
    """Make staged trajectories count. It may free sessions: a recovery may have nothing left of them.

    Raises ImportConflict where a session was deleted meanwhile.
    """
    arrived = []
    for dump in dumps:
        arrived.append(_arrive(transaction, dump))
        transaction.execute(
            "INSERT OR REPLACE INTO imports (name, digest, imported) VALUES (?, ?, ?)",
            (str(dump.name), dump.digest, transaction.served),
        )
    transaction.prune("imports", "imported", most=IMPORTS, age=IMPORT_AGE)
    summaries.sum_up(transaction, (dump.session for dump in dumps))
    settle_all(transaction, (dump.session for dump in dumps))
    return arrived


def undo(transaction: Transaction) -> bool:
    """Sweep out some of what is staged, of any import; returns whether more is left. It may free sessions."""
    for table in ("annotations", "turns"):
        rows = transaction.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT {table}.id FROM {table} JOIN sessions"
            " ON sessions.id = session WHERE fate = 'importing' LIMIT ?)",
            (_UNDONE_AT_ONCE,),
        )
        if rows.rowcount:
            return True
    # A turn that is left behind in a session that goes on is nobody's: its trajectory is elsewhere.
    kept = transaction.rows(
        "UPDATE trajectories SET state = ?, turns = 0 WHERE state = ?"
        " AND session IN (SELECT id FROM sessions WHERE fate != 'importing') RETURNING session",
        (ELSEWHERE, IMPORTING),
    )
    for table in ("shards", "trajectories"):
        transaction.execute(f"DELETE FROM {table} WHERE session IN (SELECT id FROM sessions WHERE fate = 'importing')")
    transaction.execute("DELETE FROM sessions WHERE fate = 'importing'")
    summaries.sum_up(transaction, (session for (session,) in kept))
    settle_all(transaction, (session for (session,) in kept))
    return False


def _arrive(transaction: Transaction, staged: Staged) -> ImportedDump:
    session, number, name = staged.session, staged.number, staged.name
    row = transaction.row("SELECT name, state, fate FROM sessions WHERE id = ?", (session,))
    if row is None or row[1] != CLOSED:
        raise _conflict(name, f"session {name.session_id} was deleted meanwhile")
    turns = count_live(transaction, session, number)
    if row[2] == IMPORTING:
        transaction.execute("UPDATE sessions SET fate = ? WHERE id = ?", (LIVE, session))
        transaction.count(SESSIONS, IMPORTED)
        transaction.count(SESSIONS, LIVE)
    transaction.count(TURNS, IMPORTED, turns)
    transaction.count(TURNS, LIVE, turns)
    if staged.was_open:
        turns -= discard_orphans(transaction, session, number)
    transaction.execute(
        "UPDATE trajectories SET state = ?, turns = ? WHERE session = ? AND number = ?",
        (READY, turns, session, number),
    )
    waiting.begin(transaction, session, number)
    drop_marked(transaction, session, number, recoveries.mark(transaction, session, number))
    return ImportedDump(name=str(name), session_id=row[0], trajectory_id=trajectory_name(row[0], number), turns=turns)


def _name(head: DumpHead) -> DumpName:
    return DumpName(head.session.session_id, None if head.trajectory is None else head.trajectory.number)


def _episode_turns(head: DumpHead) -> list[int]:
    """Of an earlier version's dump, the turn whose reward closed the trajectory, if one did."""
    if head.session.episode_turns is not None:
        return head.session.episode_turns
    return [] if head.trajectory is None or head.trajectory.reward_turn is None else [head.trajectory.reward_turn]


def _number(head: DumpHead) -> int:
    """What was open becomes the trajectory that closing it would have made."""
    return head.session.trajectories + 1 if head.trajectory is None else head.trajectory.number


def _session(transaction: Transaction, dumped: DumpedSession, *, trajectories: int) -> int:
    """The row id of the session that dumps are of, with so many trajectories or more; its row is made if need be.

    Calls with its key are told that it is gone, as long as the tombstone of its first life has it; there is no other
    way to know the key.
    """
    row = transaction.row("SELECT id FROM sessions WHERE name = ?", (dumped.session_id,))
    session: int = _insert_session(transaction, dumped) if row is None else row[0]
    transaction.execute(
        "UPDATE sessions SET turns = max(turns, ?), tokens = max(tokens, ?), trajectories = max(trajectories, ?)"
        " WHERE id = ?",
        (dumped.turns, dumped.tokens, max(dumped.trajectories, trajectories), session),
    )
    if row is None:
        set_ending(transaction, session, Ending(dumped.outcome, dumped.outcome_reason))
    return session


def _insert_session(transaction: Transaction, dumped: DumpedSession) -> int:
    stone = transaction.row("SELECT key_hash FROM tombstones WHERE name = ?", (dumped.session_id,))
    record = SessionRecord(
        id=0,
        name=dumped.session_id,
        key_hash=secrets.token_bytes(32) if stone is None else stone[0],
        group=dumped.group_id,
        task_id=dumped.task_id,
        metadata_json=None if dumped.metadata is None else _encode(dumped.metadata).decode(),
        limits=dumped.limits,
        agent_may=frozenset(dumped.agent_may),
        stale_after=dumped.stale_after,
        await_reward=dumped.await_reward,
        state=CLOSED,
        tokens=0,
        created_at=dumped.created_at,
        sampling_json=None if dumped.sampling is None else _encode(dumped.sampling).decode(),
        imported=True,
    )
    return insert(transaction, record, agent_may=dumped.agent_may, fate=IMPORTING)


def _there(transaction: Transaction, session: int, turn: TurnRow) -> bool:
    row = transaction.row(
        "SELECT name, trajectory, output_ids, prompt_ids, logprobs FROM turns WHERE session = ? AND number = ?",
        (session, turn.number),
    )
    if row is None:
        return False
    if row != (turn.name, turn.trajectory, turn.output_ids, turn.prompt_ids, turn.logprobs):
        raise ImportConflict(f"Turn {turn.name} is another one here than in the dump.")
    return True


_TURN: Final = tuple(field for field in TurnRow.__struct_fields__ if field not in ("context", "annotations", "note"))
# Retries are told by the digest of a body, and an imported session takes no calls any more.
_INSERT_TURN: Final = insert_statement("turns", ("session", "body", *_TURN))


def _conflict(name: DumpName, why: str) -> DomainError:
    return ImportConflict(f"{name} can't be imported: {why}.", param="names")


def _already(name: DumpName) -> DomainError:
    return AlreadyImported(f"{name} has been imported before.")


_OWNERS: Final = "adopted"


def load_owners(connection: sqlite3.Connection) -> list[Owner]:
    """Whose sessions, other than this proxy's own, may have been imported."""
    return [Owner(ordinal, store_id) for ordinal, store_id in json.loads(load_fact(connection, _OWNERS, "[]"))]


def save_owners(transaction: Transaction, owners: Iterable[Owner]) -> None:
    """Remember them in place of those known before."""
    transaction.set_fact(_OWNERS, json.dumps(sorted([owner.ordinal, owner.store_id] for owner in owners)))


def names_here(connection: sqlite3.Connection, sessions: Sequence[str], groups: Sequence[str]) -> set[str]:
    """Those of these names of sessions and of groups that are here, or left their tombstones here."""
    here: set[str] = set()
    for column, asked in (("name", sessions), ("group_name", groups)):
        for table in ("sessions", "tombstones"):
            found = connection.execute(
                f"SELECT DISTINCT {column} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",
                (json.dumps(asked),),
            )
            here.update(name for (name,) in found)
    return here
