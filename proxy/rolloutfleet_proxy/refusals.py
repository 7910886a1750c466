"""What a call is answered because of what became of its session."""

from functools import partial
from typing import Final

from rolloutfleet.dumps.files import dump_names
from rolloutfleet_proxy.domain.errors import (
    DomainError,
    GroupClosed,
    SessionClosed,
    SessionDeleted,
    SessionReclaimed,
    some,
)
from rolloutfleet_proxy.domain.session import (
    DELETED,
    GROUP_CLOSED,
    OPEN,
    RECLAIMED,
    REST,
    RETIRED,
    STALE,
    UNCLAIMED,
    Gone,
    SessionRecord,
)
from rolloutfleet_proxy.store import sessions
from rolloutfleet_proxy.store.store import Reader

_WHY: Final = {
    STALE: "it was not used for too long",
    UNCLAIMED: "it had ended, and no trainer exported what was left",
    RETIRED: "the storage of its proxy was about to be removed",
}


async def why_gone(session: SessionRecord, reader: Reader) -> DomainError:
    """Why rows of a session were not found. Where memory does not show it yet, the store is asked."""
    if session.state != OPEN:
        return ended(session)
    found = await reader.run(partial(sessions.find, name=session.name))
    if found is None:
        return sessions.gone()
    return gone(found) if isinstance(found, Gone) else ended(found)


def ended(session: SessionRecord) -> DomainError:
    """The session has been closed or deleted, and its rows are still there."""
    if session.state == DELETED:
        return SessionDeleted(f"Session {session.name} has been deleted.")
    if session.imported:
        message = f"Session {session.name} was reclaimed. What it left came back from its dumps, for training alone."
        return SessionReclaimed(message)
    if session.group_closed:
        return GroupClosed(f"Session {session.name} has been closed at its group's deadline.")
    return SessionClosed(f"Session {session.name} has been closed.")


def gone(tombstone: Gone) -> DomainError:
    """The session's rows are gone. Of a reclaimed one the error also holds `reason` and `dumps`, its files."""
    if tombstone.reason in RECLAIMED:
        return _reclaimed(tombstone)
    kind = {DELETED: SessionDeleted, GROUP_CLOSED: GroupClosed}.get(tombstone.reason, SessionClosed)
    return kind(f"Session {tombstone.name} is gone: {tombstone.reason}.")


def _reclaimed(tombstone: Gone) -> DomainError:
    names = dump_names(
        tombstone.name,
        trajectories=[number for number in tombstone.dumped if number != REST],
        active=REST in tombstone.dumped,
    )
    kept = f"It was dumped to {some(names)}." if names else "Nothing of it was dumped."
    return SessionReclaimed(
        f"Session {tombstone.name} was reclaimed: {_WHY[tombstone.reason]}. {kept}",
        details={"reason": tombstone.reason, "dumps": names},
    )
