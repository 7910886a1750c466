"""How many proxies the operator may take down: so many of a fleet, so many in all fleets together. A Deployment that is
being updated counts as one.

Within a fleet every proxy that does not serve takes a slot of `maxUnavailable`, whatever the cause. Over all fleets the
restarts that the operator began take its slots, except one that is stuck, so that it does not block other fleets.

Each fleet decides for itself, from what the others last held and requested. The most urgent cause
(`causes.CAUSES`) comes first, and of these a fleet that has begun a roll: with one slot, fleets roll one after another.
Among equals the fleet that was served most recently comes last.
"""

from collections.abc import Iterable
from typing import Final

from rolloutfleet_operator.policy.observed import OtherFleets, SlotRequest

FORGOTTEN_AFTER: Final = 120.0
"""A fleet that has not renewed its request for so long is not waited for."""


def free_here(*, max_unavailable: int, down: int) -> int:
    """How many more proxies of this fleet may be taken down."""
    return max(0, max_unavailable - down)


def granted(request: SlotRequest, other_fleets: OtherFleets, *, held: int, most: int) -> bool:
    """Whether this fleet, which holds so many of the operator's slots already, gets one more now."""
    if not other_fleets.known:
        return False
    free = most - other_fleets.held - held
    before = [other for other in _fresh(other_fleets.slot_requests, request) if _place(other) < _place(request)]
    return len(before) < free


def to_spare(other_fleets: OtherFleets, *, held: int, most: int, now: float) -> bool:
    """Whether a slot is free that no fleet wants."""
    wanted = any(now - other.renewed <= FORGOTTEN_AFTER for other in other_fleets.slot_requests)
    return other_fleets.known and not wanted and most - other_fleets.held - held > 0


def _fresh(others: Iterable[SlotRequest], own: SlotRequest) -> Iterable[SlotRequest]:
    return (other for other in others if other.fleet != own.fleet and own.renewed - other.renewed <= FORGOTTEN_AFTER)


def _place(request: SlotRequest) -> tuple[int, bool, float, str]:
    return (request.priority, not request.begun, request.since, request.fleet)
