"""Which sessions are stale, and which ended ones nobody claims. Pure decisions over rows and a clock.

Members of a group wait for each other, as scoring needs all of them. Of a group with open members all of those must
be stale, each by its own `stale_after`; of one that has ended as a whole, `unclaimed_after` counts from its last end.
Nothing of a group that is leased or being imported is touched. A session with a call in flight is never stale.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rolloutfleet_proxy.sessions.sessions import OPEN
from rolloutfleet_proxy.sessions.tombstones import RETIRED, STALE, UNCLAIMED
from rolloutfleet_proxy.sessions.trajectories import IMPORTING, READY
from rolloutfleet_proxy.store.transaction import LEASED, Transaction

_IN_USE: Final = (LEASED, IMPORTING)
PAGE: Final = 5000
"""Sessions looked at in one read."""


@dataclass(frozen=True, slots=True)
class Held:
    """A trajectory as it stood when it was looked at."""

    number: int
    state: str
    marked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A session of a group, as it stood when it was looked at: whatever happens to it changes this."""

    id: int
    name: str
    state: str
    touched: float
    """Served seconds at its last call, touch or reward."""
    ended: float | None
    """Served seconds from which it waits to be claimed."""
    stale_after: float | None
    """Its own, in seconds; None: the fleet's."""
    turns: int
    shards: str
    """Tells one state of its shards from another."""
    trajectories: tuple[Held, ...]

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    @property
    def ready(self) -> tuple[int, ...]:
        """Numbers of the trajectories that training might still take."""
        return tuple(held.number for held in self.trajectories if held.state == READY)


@dataclass(frozen=True, slots=True)
class Group:
    """What there is of a group; members that were reclaimed before are no longer in it."""

    name: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the fleet waits."""

    stale_after: float
    unclaimed_after: float
    at_once: bool = False
    """True: for nobody, but for calls in flight and leases; the proxy's storage is about to go."""


@dataclass(frozen=True, slots=True)
class Due:
    """A group of which something is to be reclaimed, and why."""

    group: Group
    reason: str
    sessions: tuple[Member, ...]

    @property
    def may_have_files(self) -> bool:
        """Whether there may be turns to be dumped."""
        return any(session.turns for session in self.sessions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(session.name for session in self.sessions)


def due(group: Group, *, now: float, patience: Patience, busy: Callable[[str], bool]) -> Due | None:
    """What of a group may be reclaimed at `now`, in served seconds. `busy` says whether a session has calls."""
    if any(held.state in _IN_USE for member in group.members for held in member.trajectories):
        return None
    unended = tuple(member for member in group.members if member.is_open)
    if unended:
        stale = all(_is_stale(member, now, patience) and not busy(member.name) for member in unended)
        return Due(group, RETIRED if patience.at_once else STALE, unended) if stale else None
    unclaimed = tuple(member for member in group.members if member.ready)
    complete = max((member.ended or 0.0 for member in group.members), default=now)
    if unclaimed and (patience.at_once or now - complete >= patience.unclaimed_after):
        return Due(group, RETIRED if patience.at_once else UNCLAIMED, unclaimed)
    return None


def _is_stale(member: Member, now: float, patience: Patience) -> bool:
    after = patience.stale_after if member.stale_after is None else member.stale_after
    return patience.at_once or now - member.touched >= after


_LATE = """
SELECT DISTINCT group_name FROM (SELECT * FROM sessions WHERE id > ? ORDER BY id LIMIT ?)
WHERE ? OR CASE state WHEN 'open' THEN touched + coalesce(stale_after, ?) <= ? ELSE fate = 'live' AND ended + ? <= ? END
"""


def look(
    connection: sqlite3.Connection, *, after: int, now: float, patience: Patience
) -> tuple[list[Group], int | None]:
    """(groups with a member late enough, where the next page starts) of a page of sessions from behind row `after`."""
    late = connection.execute(
        _LATE, (after, PAGE, patience.at_once, patience.stale_after, now, patience.unclaimed_after, now)
    ).fetchall()
    last: int | None = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM sessions WHERE id > ? ORDER BY id LIMIT ?)", (after, PAGE)
    ).fetchone()[0]
    return [load_group(connection, name) for (name,) in late], last


def load_group(source: sqlite3.Connection | Transaction, name: str) -> Group:
    """A group's sessions as they are."""
    held: dict[int, list[Held]] = {}
    for session, *trajectory in source.execute(
        "SELECT session, number, trajectories.state, marked FROM trajectories JOIN sessions ON sessions.id = session"
        " WHERE group_name = ? ORDER BY session, number",
        (name,),
    ):
        held.setdefault(session, []).append(Held(*trajectory))
    rows = source.execute(
        "SELECT id, name, state, touched, ended, stale_after, turns, (SELECT count(*) || ' to ' || coalesce(max(id), 0)"
        " FROM shards WHERE session = sessions.id) FROM sessions WHERE group_name = ? ORDER BY id",
        (name,),
    ).fetchall()
    return Group(name, tuple(_member(row, held.get(row[0], ())) for row in rows))


def _member(row: Sequence[object], held: Sequence[Held]) -> Member:
    names = ("id", "name", "state", "touched", "ended", "stale_after", "turns", "shards")
    return Member(**dict(zip(names, row, strict=True)), trajectories=tuple(held))  # type: ignore[arg-type]
