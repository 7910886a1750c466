"""Who may be taken down by our own hand: so many proxies of a fleet, so many in all fleets together.

Within a fleet every proxy that does not serve takes a slot of `maxUnavailable`, whatever the cause. Over all fleets the
restarts that the operator began take its slots, save one that is stuck: a fleet that can't go on holds up no other.

Each fleet decides for itself, from what the others last said that they hold and want. The most urgent cause
(`causes.CAUSES`) comes first, and of these a fleet that has begun a roll: with one slot, fleets roll one after another.
Among equals the one waits longest that was served longest ago.
"""

from collections.abc import Iterable
from typing import Final

from rolloutfleet_operator.policy.observed import Elsewhere, Want

FORGOTTEN_AFTER: Final = 120.0
"""A fleet that has not said for so long that it waits is not waited for."""


def free_here(*, max_unavailable: int, down: int) -> int:
    """How many more proxies of this fleet may be taken down."""
    return max(0, max_unavailable - down)


def granted(want: Want, elsewhere: Elsewhere, *, held: int, most: int) -> bool:
    """Whether this fleet, which holds so many of the operator's slots already, gets one more now."""
    if not elsewhere.known:
        return False
    free = most - elsewhere.held - held
    before = [other for other in _fresh(elsewhere.wants, want) if _place(other) < _place(want)]
    return len(before) < free


def to_spare(elsewhere: Elsewhere, *, held: int, most: int, now: float) -> bool:
    """Whether a slot is free that no fleet wants."""
    wanted = any(now - other.said <= FORGOTTEN_AFTER for other in elsewhere.wants)
    return elsewhere.known and not wanted and most - elsewhere.held - held > 0


def _fresh(others: Iterable[Want], own: Want) -> Iterable[Want]:
    return (other for other in others if other.fleet != own.fleet and own.said - other.said <= FORGOTTEN_AFTER)


def _place(want: Want) -> tuple[int, bool, float, str]:
    return (want.priority, not want.begun, want.since, want.fleet)
