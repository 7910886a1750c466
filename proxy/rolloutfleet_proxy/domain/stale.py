"""The one rule of which sessions are stale, and which ended ones nobody claims. Pure: over rows and a clock.

Members of a group wait for each other, as scoring needs all of them. Of a group with open members all of those must
be stale, each by its own `stale_after`; of one that has ended as a whole, `unclaimed_after` counts from its last end.
Nothing of a group that is leased or being imported is reclaimed. A session with a call in flight is never stale.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rolloutfleet_proxy.domain.ledger import LEASED
from rolloutfleet_proxy.domain.session import OPEN, RETIRED, STALE, UNCLAIMED
from rolloutfleet_proxy.domain.trajectory import DAMAGED, IMPORTING, READY

_IN_USE: Final = (LEASED, IMPORTING)


@dataclass(frozen=True, slots=True)
class Held:
    """A trajectory as it stood when it was looked at."""

    number: int
    state: str
    marked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
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
    train: int = True
    """0: an evaluation, of which nothing is dumped."""
    annotated: int = 0
    """The newest row of its annotations."""

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    @property
    def unclaimed(self) -> tuple[int, ...]:
        """Numbers of the trajectories that wait for a trainer, or for nobody as they are damaged."""
        return tuple(held.number for held in self.trajectories if held.state in (READY, DAMAGED))

    @property
    def parts(self) -> tuple[int | None, ...]:
        """Parts that may have a dump each: unclaimed trajectories, by number, and what is open, which has none."""
        return (*self.unclaimed, None) if self.turns else ()


class Candidate(NamedTuple):
    """A session of which something may be due: of its group, what the rule asks of each member."""

    group: str
    state: str
    touched: float
    ended: float | None
    stale_after: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """What there is of a group; members that were reclaimed before are no longer in it."""

    name: str
    members: tuple[GroupMember, ...]


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
    sessions: tuple[GroupMember, ...]

    @property
    def may_have_files(self) -> bool:
        """Whether there may be turns to be dumped."""
        return any(session.turns for session in self.to_dump)

    @property
    def to_dump(self) -> tuple[GroupMember, ...]:
        return tuple(session for session in self.sessions if session.train)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(session.name for session in self.sessions)


def is_late(session: Candidate | GroupMember, *, now: float, patience: Patience) -> bool:
    """Whether an open session has not been used, or an ended one not been claimed, for as long as it is waited for.

    `now` is in served seconds. Whether it is due, its group decides.
    """
    if patience.at_once:
        return True
    if session.state == OPEN:
        after = patience.stale_after if session.stale_after is None else session.stale_after
        return now - session.touched >= after
    return now - (session.ended or 0.0) >= patience.unclaimed_after


def shortest_wait(patience: Patience) -> float:
    """Seconds. Of no session is anything due sooner, unless its own `stale_after` is shorter."""
    return float("-inf") if patience.at_once else min(patience.stale_after, patience.unclaimed_after)


def late_groups(candidates: Iterable[Candidate], *, now: float, patience: Patience) -> list[str]:
    """The groups of those that are late: of no others anything is due."""
    return list(dict.fromkeys(each.group for each in candidates if is_late(each, now=now, patience=patience)))


def due(group: Group, *, now: float, patience: Patience, busy: Callable[[str], bool]) -> Due | None:
    """What of a group may be reclaimed at `now`, in served seconds. `busy` says whether a session has calls."""
    if any(held.state in _IN_USE for member in group.members for held in member.trajectories):
        return None
    unended = tuple(member for member in group.members if member.is_open)
    if not all(is_late(member, now=now, patience=patience) for member in unended or group.members):
        return None
    if unended:
        reason = RETIRED if patience.at_once else STALE
        return None if any(busy(member.name) for member in unended) else Due(group, reason, unended)
    unclaimed = tuple(member for member in group.members if member.unclaimed)
    return Due(group, RETIRED if patience.at_once else UNCLAIMED, unclaimed) if unclaimed else None
