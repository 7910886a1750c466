"""Leases: who may train on which trajectories, until they say so or their time is up.

A lease runs on the served clock, so a proxy that is down uses up nobody's time. It is ended for lateness by `expire`,
in the transaction of whichever lease operation comes next or at a tick. What a lease held stays on record after its
end, because a late acknowledgement still counts unless another lease has the trajectory, and because an export can
be asked for again.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from rolloutfleet.wire import AskExport, ExportStatus
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import (
    AlreadyLeased,
    DomainError,
    GroupNotFound,
    LeaseExpired,
    LeaseNotFound,
    TrajectoryNotFound,
    some,
)
from rolloutfleet_proxy.domain.idempotency import KeyedCall
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, LEASED
from rolloutfleet_proxy.domain.session import DELETED, OPEN, REPLACED
from rolloutfleet_proxy.domain.trajectory import DAMAGED, EVALUATION, READY, trajectory_name
from rolloutfleet_proxy.ids import LEASE, Owner
from rolloutfleet_proxy.store import recoveries, shards
from rolloutfleet_proxy.store.idempotency import recall, remember
from rolloutfleet_proxy.store.sessions import wait_to_be_claimed
from rolloutfleet_proxy.store.trajectories import drop_marked, move_trajectory, settle_all
from rolloutfleet_proxy.store.transaction import Row, Transaction

LEASE_OPEN: Final = "open"
RELEASED: Final = "released"
EXPIRED: Final = "expired"

SHARDS_AFTER_LEASE: Final = 3600.0
"""Seconds that the shards of an export outlive the time that its lease was given."""
ENDED_LEASES: Final = 100_000
ENDED_LEASE_AGE: Final = 7 * 86400.0
"""Served seconds. Leases that ended are kept on record up to this number and age, whichever is reached first."""
_PRUNED_AT_ONCE: Final = 100

Statuses = list[tuple[str, ExportStatus]]


@dataclass(frozen=True, slots=True)
class Member:
    """A trajectory that a lease covers."""

    session: int
    session_name: str
    number: int

    @property
    def trajectory_id(self) -> str:
        return trajectory_name(self.session_name, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an export may read. `lease` and `expires_in` are None where nothing was there to lease."""

    lease: str | None
    expires_in: float | None
    """Seconds served."""
    asked: AskExport
    statuses: Statuses
    members: list[Member]
    """In order of the sessions' start, then of closing."""


def grant(transaction: Transaction, owner: Owner, asked: AskExport, call: KeyedCall | None = None) -> Grant:
    """Lease what is ready of the named sessions, or of a group; else of the oldest groups that are complete.

    A group is complete where each member has ended or has a ready trajectory, and nothing of it is leased, or waits for
    a reward. Groups are taken whole, up to `asked.most` trajectories; a first one that is larger is taken all the same,
    or it would never be. Nothing to lease makes no lease, and is not remembered under the call's key.

    The same call again gets the same lease and trajectories, those acknowledged since left out; given back or
    expired, they are leased again. Raises GroupNotFound, LeaseExpired or AlreadyLeased where the same call can't
    have them again, and IdempotencyKeyReused.
    """
    expire(transaction)
    before = None if call is None else recall(transaction, call)
    if before is not None:
        return _granted_again(transaction, json.loads(before))
    candidates = _candidates(transaction, asked)
    statuses: Statuses = [
        (name, _status(state, ready, waiting, leased, damaged, stone))
        for name, _, state, ready, waiting, leased, damaged, stone in candidates
    ]
    members = _ready(transaction, [session for _, session, _, ready, *_ in candidates if ready])
    if not members:
        return Grant(lease=None, expires_in=None, asked=asked, statuses=statuses, members=[])
    lease = owner.name(LEASE)
    transaction.execute(
        "INSERT INTO leases (name, request, statuses, state, expires, changed) VALUES (?, ?, ?, 'open', ?, ?)",
        (
            lease,
            asked.model_dump_json(by_alias=True),
            json.dumps(statuses),
            transaction.served + asked.lease_seconds,
            transaction.served,
        ),
    )
    transaction.executemany(
        "INSERT INTO leased (lease, session, session_name, number, leased_at) VALUES (?, ?, ?, ?, ?)",
        [(lease, member.session, member.session_name, member.number, transaction.wall) for member in members],
    )
    _take(transaction, lease, members)
    if call is not None:
        remember(transaction, call, json.dumps(lease))
    _prune(transaction)
    failpoints.reach(failpoints.MID_EXPORT)
    return Grant(
        lease=lease,
        expires_in=asked.lease_seconds,
        asked=asked,
        statuses=statuses,
        members=members,
    )


def acknowledge(transaction: Transaction, lease: str, trajectory_ids: Sequence[str] | None = None) -> list[str]:
    """Count trajectories of a lease, all unless named, as trained; returns which. Again, it answers the same.

    Late, after the lease's end, it counts unless another lease has or had them acknowledged since. All or nothing:
    raises LeaseNotFound, TrajectoryNotFound for one that is not of it, AlreadyLeased or LeaseExpired where one was
    leased again or discarded.
    """
    expire(transaction)
    state = _state(transaction, lease)
    named = _named(transaction, lease, trajectory_ids)
    todo = [member for member, done in named if not done]
    _refuse_lost(transaction, lease, todo)
    for member in todo:
        move_trajectory(transaction, member.session, member.number, ACKNOWLEDGED, lease=lease)
    transaction.executemany(
        "UPDATE leased SET acknowledged = 1, acknowledged_at = ? WHERE lease = ? AND session = ? AND number = ?",
        [(transaction.wall, lease, member.session, member.number) for member in todo],
    )
    settle_all(transaction, (member.session for member in todo))
    _close_if_done(transaction, lease, state)
    failpoints.reach(failpoints.MID_ACK)
    return [member.trajectory_id for member, _ in named]


def release(transaction: Transaction, lease: str, trajectory_ids: Sequence[str] | None = None) -> list[str]:
    """Give trajectories of a lease back, all unless named; returns which.

    They can be exported again, with the same ids; of a deleted session they are discarded. What was acknowledged stays
    so. A release again answers the same. Raises LeaseNotFound, TrajectoryNotFound for one that is not of it,
    LeaseExpired where the lease expired or was acknowledged whole.
    """
    expire(transaction)
    state = _state(transaction, lease)
    if state not in (LEASE_OPEN, RELEASED):
        raise _no_longer_holds(lease, state)
    named = [member for member, done in _named(transaction, lease, trajectory_ids) if not done]
    held = _held(transaction, lease)
    _give_back(transaction, [member for member in named if member in held])
    _close_if_done(transaction, lease, state)
    return [member.trajectory_id for member in named]


def withhold(transaction: Transaction, granted: Grant, damaged: Collection[Member]) -> Grant:
    """What of a grant that made a lease is left without trajectories that are damaged. Nobody gets those any more."""
    assert granted.lease is not None
    for member in damaged:
        _give_back(transaction, [member], as_=DAMAGED)
        transaction.execute(
            "DELETE FROM leased WHERE lease = ? AND session = ? AND number = ?",
            (granted.lease, member.session, member.number),
        )
    named = {member.session_name for member in damaged}
    statuses: Statuses = [(name, "damaged" if name in named else status) for name, status in granted.statuses]
    transaction.execute("UPDATE leases SET statuses = ? WHERE name = ?", (json.dumps(statuses), granted.lease))
    members = [member for member in granted.members if member not in damaged]
    if members:
        return replace(granted, statuses=statuses, members=members)
    _set_state(transaction, granted.lease, RELEASED)
    return replace(granted, statuses=statuses, members=[], lease=None, expires_in=None)


def renew(transaction: Transaction, lease: str, *, seconds: float) -> None:
    """Let a lease run for `seconds` from now on. Raises LeaseNotFound, and LeaseExpired for one that ended."""
    expire(transaction)
    state = _state(transaction, lease)
    if state != LEASE_OPEN:
        raise _no_longer_holds(lease, state)
    transaction.execute("UPDATE leases SET expires = ? WHERE name = ?", (transaction.served + seconds, lease))
    shards.renew(transaction, lease, ttl=seconds + SHARDS_AFTER_LEASE)


def count_open(connection: sqlite3.Connection) -> int:
    """How many leases are in force."""
    [(count,)] = connection.execute("SELECT count(*) FROM leases WHERE state = 'open'")
    return int(count)


def expire(transaction: Transaction) -> None:
    """End every lease whose time is up. That may free sessions: deleted ones that were still leased."""
    late = transaction.rows("SELECT name FROM leases WHERE state = 'open' AND expires <= ?", (transaction.served,))
    for (lease,) in late:
        _set_state(transaction, lease, EXPIRED)
        _give_back(transaction, _held(transaction, lease))


# Choosing


_CANDIDATE = f"""
    iif(train = 0, '{EVALUATION}', sessions.state),
    train * (SELECT count(*) FROM trajectories WHERE session = sessions.id AND state = 'ready' AND waits_until <= ?2),
    (SELECT count(*) FROM trajectories WHERE session = sessions.id AND state = 'ready' AND waits_until > ?2),
    (SELECT count(*) FROM trajectories WHERE session = sessions.id AND state = 'leased'),
    (SELECT count(*) FROM trajectories WHERE session = sessions.id AND state = 'damaged')
"""

_NAMED = f"""
SELECT asked.value, sessions.id, {_CANDIDATE},
    EXISTS (SELECT 1 FROM tombstones WHERE name = asked.value)
FROM json_each(?1) AS asked LEFT JOIN sessions ON sessions.name = asked.value ORDER BY asked.key
"""

_OF_GROUPS = f"""
SELECT sessions.name, sessions.id, {_CANDIDATE}, 0
FROM sessions WHERE group_name IN (SELECT value FROM json_each(?1)) ORDER BY coalesce(place, id)
"""

_BURIED_OF_GROUP = """
SELECT name, NULL, NULL, 0, 0, 0, 0, 1 FROM tombstones
WHERE group_name = ?1 AND reason != ?2 AND NOT EXISTS (SELECT 1 FROM sessions WHERE name = tombstones.name)
ORDER BY id
"""

_COMPLETE_GROUPS = """
WITH held AS (
    SELECT session, sum(state = 'ready' AND waits_until <= ?1) AS ready,
        sum(state = 'leased' OR state = 'ready' AND waits_until > ?1) AS taken,
        min(closed_at) FILTER (WHERE state = 'ready') AS closed_at, min(session) AS first
    FROM trajectories WHERE state IN ('ready', 'leased') GROUP BY session
)
SELECT group_name, sum(ready) FROM sessions LEFT JOIN held ON held.session = sessions.id
WHERE train AND group_name IN (SELECT group_name FROM sessions JOIN held ON held.session = sessions.id)
GROUP BY group_name
HAVING sum(ready) > 0 AND total(taken) = 0 AND min(sessions.state != 'open' OR coalesce(ready, 0) > 0)
ORDER BY min(closed_at), min(first)
"""


def _candidates(transaction: Transaction, asked: AskExport) -> list[Row]:
    """(session_id, row id, state, ready, waiting, leased, damaged, buried) of each session that is asked for."""
    if asked.session_ids is not None:
        return transaction.rows(_NAMED, (json.dumps(asked.session_ids), transaction.served))
    if asked.group_id is not None:
        found = transaction.rows(_OF_GROUPS, (json.dumps([asked.group_id]), transaction.served))
        found += transaction.rows(_BURIED_OF_GROUP, (asked.group_id, REPLACED))
        if not found:
            raise GroupNotFound(f"There is no group {asked.group_id!r} here.")
        return found
    groups = _oldest_complete_groups(transaction, asked.most)
    return transaction.rows(_OF_GROUPS, (json.dumps(groups), transaction.served))


def _oldest_complete_groups(transaction: Transaction, most: int) -> list[str]:
    taken: list[str] = []
    trajectories = 0
    for group, ready in transaction.execute(_COMPLETE_GROUPS, (transaction.served,)):
        if taken and trajectories + ready > most:
            break
        taken.append(group)
        trajectories += ready
    return taken


def _status(state: str | None, ready: int, waiting: int, leased: int, damaged: int, buried: int) -> ExportStatus:
    if state is None:
        return "gone" if buried else "unknown"
    if state == EVALUATION:
        return "evaluation"
    if damaged:
        return "damaged"
    if ready:
        return "leased"
    if leased and state != DELETED:
        return "leased_elsewhere"
    return "not_ready" if state == OPEN or waiting else "gone"


def _ready(transaction: Transaction, sessions: Iterable[int]) -> list[Member]:
    rows = transaction.rows(
        "SELECT sessions.id, sessions.name, trajectories.number FROM sessions"
        " JOIN trajectories ON trajectories.session = sessions.id AND trajectories.state = 'ready' AND waits_until <= ?"
        " WHERE sessions.id IN (SELECT value FROM json_each(?)) ORDER BY coalesce(place, id), trajectories.number",
        (transaction.served, json.dumps(list(sessions))),
    )
    return [Member(*row) for row in rows]


# Changing


def _granted_again(transaction: Transaction, lease: str) -> Grant:
    row = transaction.row("SELECT request, statuses, state, expires FROM leases WHERE name = ?", (lease,))
    if row is None:
        raise LeaseExpired(f"Lease {lease} ended too long ago to be returned again.")
    asked = AskExport.model_validate_json(row[0])
    state, expires = row[2:]
    members = [member for member, done in _named(transaction, lease, None) if not done]
    if not members:
        raise _no_longer_holds(lease, ACKNOWLEDGED)
    _refuse_lost(transaction, lease, members)
    held = _held(transaction, lease)
    _take(transaction, lease, [member for member in members if member not in held])
    if state != LEASE_OPEN:
        expires = transaction.served + asked.lease_seconds
        transaction.execute("UPDATE leases SET expires = ? WHERE name = ?", (expires, lease))
        _set_state(transaction, lease, LEASE_OPEN)
    return Grant(
        lease=lease,
        expires_in=expires - transaction.served,
        asked=asked,
        statuses=[(name, status) for name, status in json.loads(row[1])],
        members=members,
    )


def _state(transaction: Transaction, lease: str) -> str:
    row = transaction.row("SELECT state FROM leases WHERE name = ?", (lease,))
    if row is None:
        raise LeaseNotFound(f"There is no lease {lease[:80]!r} here.")
    return str(row[0])


def _named(transaction: Transaction, lease: str, trajectory_ids: Sequence[str] | None) -> list[tuple[Member, bool]]:
    """(member, whether this lease has it acknowledged), in the lease's order, of those named or of all."""
    rows = transaction.rows(
        "SELECT session, session_name, number, acknowledged FROM leased LEFT JOIN sessions ON sessions.id = session"
        " WHERE lease = ? ORDER BY coalesce(place, session), number",
        (lease,),
    )
    members = [(Member(session, name, number), bool(done)) for session, name, number, done in rows]
    if trajectory_ids is None:
        return members
    wanted = set(trajectory_ids)
    foreign = wanted - {member.trajectory_id for member, _ in members}
    if foreign:
        raise TrajectoryNotFound(f"Not of lease {lease}: {some(sorted(foreign))}.")
    return [(member, done) for member, done in members if member.trajectory_id in wanted]


def _held(transaction: Transaction, lease: str) -> set[Member]:
    """What the lease holds now."""
    rows = transaction.rows(
        "SELECT leased.session, session_name, leased.number FROM leased JOIN trajectories"
        " ON trajectories.session = leased.session AND trajectories.number = leased.number"
        " AND trajectories.state = 'leased' AND trajectories.lease = leased.lease WHERE leased.lease = ?",
        (lease,),
    )
    return {Member(*row) for row in rows}


def _refuse_lost(transaction: Transaction, lease: str, members: Iterable[Member]) -> None:
    """Raise AlreadyLeased or LeaseExpired where one of them is no longer this lease's, nor free."""
    again: list[str] = []
    discarded: list[str] = []
    for member in members:
        row = transaction.row(
            "SELECT state, lease FROM trajectories WHERE session = ? AND number = ?", (member.session, member.number)
        )
        if row is not None and (row[0] == READY or row == (LEASED, lease)):
            continue
        taken = (row is not None and row[0] != DISCARDED) or transaction.row(
            "SELECT 1 FROM leased WHERE session = ? AND number = ? AND acknowledged", (member.session, member.number)
        )
        (again if taken else discarded).append(member.trajectory_id)
    if again:
        raise AlreadyLeased(f"Leased again since lease {lease} ended: {some(again)}.")
    if discarded:
        raise LeaseExpired(f"Discarded since lease {lease} ended: {some(discarded)}.")


def _take(transaction: Transaction, lease: str, members: Sequence[Member]) -> None:
    for member in members:
        move_trajectory(transaction, member.session, member.number, LEASED, lease=lease)
    settle_all(transaction, (member.session for member in members))


def _give_back(transaction: Transaction, members: Iterable[Member], *, as_: str = READY) -> None:
    members = sorted(members, key=attrgetter("session", "number"))
    for member in members:
        state = transaction.value("SELECT state FROM sessions WHERE id = ?", (member.session,))
        mark = recoveries.mark(transaction, member.session, member.number)
        if state == DELETED:
            move_trajectory(transaction, member.session, member.number, DISCARDED, reason=DELETED)
        elif not drop_marked(transaction, member.session, member.number, mark):
            move_trajectory(transaction, member.session, member.number, as_)
    wait_to_be_claimed(transaction, {member.session for member in members})
    settle_all(transaction, (member.session for member in members))


def _close_if_done(transaction: Transaction, lease: str, state: str) -> None:
    """End a lease that holds nothing any more; acknowledged whole is what it is called whenever that happened."""
    left = transaction.value("SELECT count(*) FROM leased WHERE lease = ? AND NOT acknowledged", (lease,))
    after = ACKNOWLEDGED if not left else RELEASED if state == LEASE_OPEN and not _held(transaction, lease) else state
    if after != state:
        _set_state(transaction, lease, after)


def _set_state(transaction: Transaction, lease: str, state: str) -> None:
    transaction.execute("UPDATE leases SET state = ?, changed = ? WHERE name = ?", (state, transaction.served, lease))


def _prune(transaction: Transaction) -> None:
    """Forget a few of the leases that ended long ago. Oldest first and few at a time: each new lease does this."""
    old = transaction.rows(
        "SELECT name FROM (SELECT * FROM leases ORDER BY id LIMIT ?) WHERE state != 'open'"
        " AND (id <= (SELECT max(id) FROM leases) - ? OR changed < ?)",
        (_PRUNED_AT_ONCE, ENDED_LEASES, transaction.served - ENDED_LEASE_AGE),
    )
    transaction.executemany("DELETE FROM leased WHERE lease = ?", old)
    transaction.executemany("DELETE FROM leases WHERE name = ?", old)


def _no_longer_holds(lease: str, state: str) -> DomainError:
    return LeaseExpired(f"Lease {lease} no longer holds anything: it was {state}.")
