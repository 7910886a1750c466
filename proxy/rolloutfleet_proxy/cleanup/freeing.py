"""Reclaimed sessions leave the store: counted, buried, and their rows deleted, all in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rolloutfleet_proxy.cleanup.choosing import Due, Member, load_group
from rolloutfleet_proxy.cleanup.retention import note
from rolloutfleet_proxy.sessions.sessions import CLOSED
from rolloutfleet_proxy.sessions.tombstones import REST, bury
from rolloutfleet_proxy.sessions.trajectories import fate, free_group, wait_to_be_claimed
from rolloutfleet_proxy.store.transaction import (
    ACKNOWLEDGED,
    DISCARDED,
    DUMPED,
    LIVE,
    SESSIONS,
    TURNS,
    Transaction,
)

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


def free(transaction: Transaction, chosen: Due, *, files: Sequence[str] | None, since: float | None = None) -> Freed:
    """Free the sessions that were chosen. Their turns are in `files` by now; None: they are discarded.

    `since` is when this sweep began, in served seconds, where files are kept by age. Raises Spared where the group is
    not as it was chosen.
    """
    dumped = files is not None
    if load_group(transaction, chosen.group.name) != chosen.group:
        raise Spared
    turns = 0
    went = {}
    for session in chosen.sessions:
        held = _held(transaction, session)
        turns += _count(transaction, session, sum(held.values()), dumped=dumped)
        went[session.id] = list(held) if dumped else []
    names = bury(transaction, went, reclaimed=chosen.reason, dumped=went)
    if any(session.is_open for session in chosen.sessions):
        # Those that ended before have waited for these; only from now on for a trainer.
        wait_to_be_claimed(transaction, [member.id for member in chosen.group.members])
    names += free_group(transaction, chosen.group.name)
    if files and since is not None:
        note(transaction, files, since=since)
    reclaimed = tuple((session.id, session.turns) for session in chosen.sessions)
    return Freed(names, sum(session.is_open for session in chosen.sessions), turns, reclaimed)


def _held(transaction: Transaction, session: Member) -> dict[int, int]:
    """Turns that count as live, by the number of their trajectory; `REST` for those of none."""
    rows = transaction.rows(
        "SELECT coalesce(trajectory, ?) AS held, count(*) FROM turns WHERE session = ? AND state = 'live'"
        " AND (trajectory IS NULL OR trajectory IN (SELECT number FROM trajectories WHERE session = turns.session"
        " AND state = 'ready')) GROUP BY held ORDER BY held",
        (REST, session.id),
    )
    return dict(rows)


def _count(transaction: Transaction, session: Member, turns: int, *, dumped: bool) -> int:
    """Count a session and its live turns as what becomes of them; returns how many turns."""
    acknowledged = any(held.state == ACKNOWLEDGED for held in session.trajectories)
    reasons = transaction.rows(
        "SELECT state, reason FROM trajectories WHERE session = ? ORDER BY number DESC", (session.id,)
    )
    if not turns:
        term, reason = fate(state=CLOSED, turns=session.turns, trajectories=reasons)
    elif dumped:
        term, reason = DUMPED, ""
    else:
        term, reason = (ACKNOWLEDGED, "") if acknowledged else (DISCARDED, NO_DUMP_PATH)
    transaction.move(SESSIONS, LIVE, term, reason=reason)
    if dumped:
        transaction.move(TURNS, LIVE, DUMPED, turns)
    else:
        transaction.move(TURNS, LIVE, DISCARDED, turns, reason=NO_DUMP_PATH)
    return turns
