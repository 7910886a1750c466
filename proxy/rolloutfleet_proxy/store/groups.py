"""Groups of sessions as the sweep sees them, and how what it reclaims leaves the store. `domain.stale` says what is
due.

A group is counted, buried, and its rows are deleted, all in one transaction.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rolloutfleet.dumps.files import DumpName
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, DUMPED, LIVE, SESSIONS, TURNS
from rolloutfleet_proxy.domain.session import CLOSED, REST
from rolloutfleet_proxy.domain.stale import Candidate, Due, Group, GroupMember, Held
from rolloutfleet_proxy.domain.trajectory import DAMAGED, EVALUATION, fate
from rolloutfleet_proxy.store.dumps import Draft, forget_drafts, note_files
from rolloutfleet_proxy.store.sessions import wait_to_be_claimed
from rolloutfleet_proxy.store.tombstones import bury
from rolloutfleet_proxy.store.trajectories import free_group
from rolloutfleet_proxy.store.transaction import Source, Transaction, named_rows

NO_DUMP_PATH: Final = "no_dump_path"
"""Why turns were discarded for which there was no folder."""


class Spared(Exception):
    """Something happened to the group since it was chosen: nothing of it is freed."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What freeing a group did."""

    names: tuple[str, ...]
    """Sessions whose rows are gone, also those that only waited for the reclaimed ones."""
    were_open: int
    """How many of them were open."""
    turns: int
    """Turns that were dumped, or discarded for want of a folder."""
    reclaimed: tuple[tuple[int, int], ...] = ()
    """(row id, number of its newest turn) of each session that was reclaimed."""


PAGE: Final = 5000
"""Sessions looked at in one read."""

_ROUNDING: Final = 1.0
"""Seconds: more than sums of floats are rounded by."""

_CANDIDATES: Final = """
SELECT group_name, state, touched, ended, stale_after FROM (SELECT * FROM sessions WHERE id > ?1 ORDER BY id LIMIT ?2)
WHERE (state = 'open' OR fate = 'live')
    AND CASE state WHEN 'open' THEN touched ELSE coalesce(ended, 0) END + min(coalesce(stale_after, ?3), ?3) <= ?4
"""


def load_candidates(
    connection: sqlite3.Connection, *, after: int, now: float, shortest_wait: float
) -> tuple[list[Candidate], int | None]:
    """(sessions of which something may be due, where the next page starts) of a page of them from behind row `after`.

    More than are due, at `now` in served seconds: left out are those that left nothing to be claimed, and those that
    have not waited for the shortest time there is, or their own if that is shorter.
    """
    rows = connection.execute(_CANDIDATES, (after, PAGE, shortest_wait, now + _ROUNDING))
    candidates = list(map(Candidate._make, rows))
    last: int | None = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM sessions WHERE id > ? ORDER BY id LIMIT ?)", (after, PAGE)
    ).fetchone()[0]
    return candidates, last


def free(
    transaction: Transaction,
    chosen: Due,
    *,
    files: Sequence[str] | None,
    damaged: Mapping[int, Sequence[int]] = MappingProxyType({}),
    since: float | None = None,
    drafts: Sequence[Draft] = (),
) -> Freed:
    """Free the sessions that were chosen. Their turns are in `files` by now; None: they are discarded.

    `damaged` are numbers of turns that are in none, by session's row. `since` is when this sweep began, in served
    seconds, where files are kept by age. `drafts` are what was noted of the files. Raises Spared where the group is not
    as it was chosen.
    """
    dumped = files is not None
    if load_group(transaction, chosen.group.name) != chosen.group:
        raise Spared
    turns = 0
    went = {}
    for session in chosen.sessions:
        held = _held(transaction, session)
        turns += _count(
            transaction, session, sum(held.values()), dumped=dumped, damaged=len(damaged.get(session.id, ()))
        )
        went[session.id] = [number for number in held if _file(session, number) in (files or ())]
    bury(transaction, went, reclaimed=chosen.reason, dumped=went)
    if any(session.is_open for session in chosen.sessions):
        # Those that ended before have waited for these; only from now on for a trainer.
        wait_to_be_claimed(transaction, [member.id for member in chosen.group.members])
    free_group(transaction, chosen.group.name)
    forget_drafts(transaction, drafts)
    if files and since is not None:
        note_files(transaction, files, since=since)
    reclaimed = tuple((session.id, session.turns) for session in chosen.sessions)
    return Freed(tuple(transaction.freed), sum(session.is_open for session in chosen.sessions), turns, reclaimed)


def load_group(source: Source, name: str) -> Group:
    """A group's sessions as they are."""
    held: dict[int, list[Held]] = {}
    for session, *trajectory in source.execute(
        "SELECT session, number, trajectories.state, marked FROM trajectories JOIN sessions ON sessions.id = session"
        " WHERE group_name = ? ORDER BY session, number",
        (name,),
    ):
        held.setdefault(session, []).append(Held(*trajectory))
    members = named_rows(
        source,
        "SELECT id, name, state, touched, stale_after, turns, train, (SELECT count(*) || ' to ' || coalesce(max(id), 0)"
        " FROM shards WHERE session = sessions.id) AS shards, (SELECT coalesce(max(id), 0) FROM annotations"
        " WHERE session = sessions.id) AS annotated,"
        # No trainer could take what waits for a reward.
        " max(ended, (SELECT coalesce(max(waits_until), 0) FROM trajectories WHERE session = sessions.id"
        " AND trajectories.state = 'ready')) AS ended FROM sessions WHERE group_name = ? ORDER BY id",
        (name,),
    )
    return Group(name, tuple(GroupMember(**row, trajectories=tuple(held.get(row["id"], ()))) for row in members))


def _file(session: GroupMember, number: int) -> str:
    return str(DumpName(session.name, None if number == REST else number))


def _held(transaction: Transaction, session: GroupMember) -> dict[int, int]:
    """Turns that count as live, by the number of their trajectory; `REST` for those of none."""
    rows = transaction.rows(
        "SELECT coalesce(trajectory, ?) AS held, count(*) FROM turns WHERE session = ? AND state = 'live'"
        " AND (trajectory IS NULL OR trajectory IN (SELECT number FROM trajectories WHERE session = turns.session"
        " AND state IN ('ready', 'damaged'))) GROUP BY held ORDER BY held",
        (REST, session.id),
    )
    return dict(rows)


def _count(transaction: Transaction, session: GroupMember, turns: int, *, dumped: bool, damaged: int) -> int:
    """Count a session and its live turns as what becomes of them; returns how many turns."""
    transaction.move(TURNS, LIVE, DISCARDED, damaged, reason=DAMAGED)
    turns -= damaged
    why = EVALUATION if not session.train else None if dumped else NO_DUMP_PATH
    acknowledged = any(held.state == ACKNOWLEDGED for held in session.trajectories)
    reasons = transaction.rows(
        "SELECT state, reason FROM trajectories WHERE session = ? ORDER BY number DESC", (session.id,)
    )
    if not turns and damaged:
        term, reason = (ACKNOWLEDGED, "") if acknowledged else (DISCARDED, DAMAGED)
    elif not turns:
        term, reason = fate(state=CLOSED, turns=session.turns, trajectories=reasons)
    elif why is None:
        term, reason = DUMPED, ""
    else:
        term, reason = (ACKNOWLEDGED, "") if acknowledged else (DISCARDED, why)
    transaction.move(SESSIONS, LIVE, term, reason=reason)
    transaction.move(TURNS, LIVE, DUMPED if why is None else DISCARDED, turns, reason=why or "")
    return turns
