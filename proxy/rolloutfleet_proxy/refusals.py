"""What a call is answered because of what became of its session, or of the disk."""

from collections.abc import Sequence
from typing import Final

from rolloutfleet.dumps import dump_names
from rolloutfleet.errors import SESSION_CLOSED, SESSION_DELETED, SESSION_RECLAIMED, STORE_FAILED, STORE_FULL
from rolloutfleet_proxy.errors import ApiError
from rolloutfleet_proxy.sessions.sessions import DELETED, Session
from rolloutfleet_proxy.sessions.tombstones import RECLAIMED, REST, RETIRED, STALE, UNCLAIMED, Gone
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull

_WHY: Final = {
    STALE: "it was not used for too long",
    UNCLAIMED: "it had ended, and nobody took what it left",
    RETIRED: "the storage of its proxy was about to go",
}
_NAMED: Final = 10
"""Dumps that a message names at the most."""


def ended(session: Session) -> ApiError:
    """410: the session has been closed or deleted, and its rows are still there."""
    if session.state == DELETED:
        return ApiError(410, SESSION_DELETED, f"Session {session.name} has been deleted.")
    if session.imported:
        message = f"Session {session.name} was reclaimed. What it left came back from its dumps, for training alone."
        return ApiError(410, SESSION_RECLAIMED, message)
    return ApiError(410, SESSION_CLOSED, f"Session {session.name} has been closed.")


def gone(tombstone: Gone) -> ApiError:
    """410: the session's rows are gone. Of a reclaimed one the error also holds `reason` and `dumps`, its files."""
    if tombstone.reason in RECLAIMED:
        return _reclaimed(tombstone)
    code = SESSION_DELETED if tombstone.reason == DELETED else SESSION_CLOSED
    return ApiError(410, code, f"Session {tombstone.name} is gone: {tombstone.reason}.")


def _reclaimed(tombstone: Gone) -> ApiError:
    names = dump_names(
        tombstone.name,
        trajectories=[number for number in tombstone.dumped if number != REST],
        active=REST in tombstone.dumped,
    )
    kept = f"It was dumped to {_some(names)}." if names else "Nothing of it was dumped."
    return ApiError(
        410,
        SESSION_RECLAIMED,
        f"Session {tombstone.name} was reclaimed: {_WHY[tombstone.reason]}. {kept}",
        details={"reason": tombstone.reason, "dumps": names},
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def not_written(error: StoreFull | StoreBroken) -> ApiError:
    """507 where the disk is full, 500 where it fails otherwise; nothing of the request was kept."""
    if isinstance(error, StoreFull):
        return ApiError(507, STORE_FULL, f"Nothing was recorded: {error}.", should_retry=False)
    return ApiError(500, STORE_FAILED, f"Nothing was recorded: {error}.", should_retry=False)
