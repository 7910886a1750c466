"""Whether a call is made again, and when. Pure.

Only calls that are safe to make twice are made twice: they only read, or they carry an Idempotency-Key, or the proxy
answers them the second time as the first (docs/api.md). Which of these a call is, its caller knows.
"""

from typing import Final

from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 2.0
LONGEST_RETRY_AFTER: Final = 30.0
"""Seconds. A proxy that asks for more patience is asked again nevertheless: it may be another one by then."""

_LATER: Final = frozenset((408, 429, 503))


def wait_before_retry(failure: FleetError, *, attempt: int, chance: float) -> float | None:
    """Seconds until a call is made again that failed for the `attempt`th time (from 0); None where it can't help.

    `chance` in [0, 1) spreads callers.
    """
    asked_for = None
    if isinstance(failure, Refused):
        if failure.retry_forbidden or failure.status not in _LATER:
            return None
        asked_for = failure.retry_after
    elif not isinstance(failure, Unreachable):
        return None
    backed_off = min(FIRST_WAIT * 2.0 ** min(attempt, 16), LONGEST_WAIT) * (0.75 + 0.25 * chance)
    return max(backed_off, min(asked_for or 0.0, LONGEST_RETRY_AFTER))
