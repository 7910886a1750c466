"""What a call is answered because of what became of its session, or of the disk."""

from rolloutfleet.errors import SESSION_CLOSED, SESSION_DELETED, STORE_FAILED, STORE_FULL
from rolloutfleet_proxy.errors import ApiError
from rolloutfleet_proxy.sessions.sessions import DELETED, Gone, Session
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull


def ended(session: Session) -> ApiError:
    """410: the session has been closed or deleted, and its rows are still there."""
    if session.state == DELETED:
        return ApiError(410, SESSION_DELETED, f"Session {session.name} has been deleted.")
    return ApiError(410, SESSION_CLOSED, f"Session {session.name} has been closed.")


def gone(tombstone: Gone) -> ApiError:
    """410: the session's rows are gone."""
    code = SESSION_DELETED if tombstone.reason == DELETED else SESSION_CLOSED
    return ApiError(410, code, f"Session {tombstone.name} is gone: {tombstone.reason}.")


def not_written(error: StoreFull | StoreBroken) -> ApiError:
    """507 where the disk is full, 500 where it fails otherwise; nothing of the request was kept."""
    if isinstance(error, StoreFull):
        return ApiError(507, STORE_FULL, f"Nothing was recorded: {error}.", should_retry=False)
    return ApiError(500, STORE_FAILED, f"Nothing was recorded: {error}.", should_retry=False)
