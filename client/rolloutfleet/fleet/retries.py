"""Whether a call is made again, and when. Pure.

Only calls that are safe to make twice are made twice: they only read, or they carry an Idempotency-Key, or the proxy
answers them the second time as the first (docs/api.md). Which of these a call is, its caller knows.
"""

from collections.abc import Container
from typing import Final

from rolloutfleet.backoff import Backoff
from rolloutfleet.errors import OWNER_UNREACHABLE
from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable

BACKOFF: Final = Backoff(first=0.1, longest=2.0)
LONGEST_RETRY_AFTER: Final = 30.0
"""Seconds. A proxy that asks for more patience is asked again nevertheless: it may be another one by then."""

NEW_KEYS_AT_ONCE: Final = 8
"""Keys that are tried one after the other without a wait, as each is another proxy's to keep."""

LATER: Final = frozenset((408, 429, 503))
ALSO_SERVER_ERRORS: Final = LATER | {425, 500, 502, 504}
"""For calls whose failures leave nothing behind that another try would meet."""


def wait_before_retry(
    failure: FleetError, *, attempt: int, chance: float, statuses: Container[int] = LATER
) -> float | None:
    """Seconds until a call is made again that failed for the `attempt`th time (from 0); None where it can't help.

    `chance` in [0, 1) spreads callers; `statuses` are those of answers that may be others the next time.
    """
    asked_for = None
    if isinstance(failure, Refused):
        if failure.retry_forbidden or failure.status not in statuses:
            return None
        asked_for = failure.retry_after
    elif not isinstance(failure, Unreachable):
        return None
    backed_off = BACKOFF.after(attempt + 1) * (0.75 + 0.25 * chance)
    return max(backed_off, min(asked_for or 0.0, LONGEST_RETRY_AFTER))


def may_be_done(failure: FleetError) -> bool:
    """Whether a call that failed so may have been done, now or by an earlier one with its Idempotency-Key."""
    if isinstance(failure, Refused):
        return not draws_new_key(failure)
    return not isinstance(failure, Unreachable) or failure.sent


def draws_new_key(failure: FleetError) -> bool:
    """Whether another Idempotency-Key may find a proxy that is up: the one that this key belongs to is not."""
    return isinstance(failure, Refused) and failure.code == OWNER_UNREACHABLE


def wait_before_new_key(wait: float, *, keys: int) -> float:
    """Seconds until a call is made with the next key, after `keys` whose proxy could not be reached.

    `wait` is as long as the same key would have to wait.
    """
    return 0.0 if keys < NEW_KEYS_AT_ONCE else wait
