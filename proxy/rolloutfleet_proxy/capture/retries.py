"""Is this request a retry, and of what? Pure: it looks at a session and decides.

Only what says that it is a retry is taken for one: an `Idempotency-Key`, or the marker that the OpenAI SDKs send
(`x-stainless-retry-count` above 0). An identical body without either is a new turn, as agents do sample twice.
"""

from dataclasses import dataclass

from rolloutfleet_proxy.domain.errors import IdempotencyKeyReused
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session


@dataclass(frozen=True, slots=True)
class Attempt:
    """What tells a retry from a new request."""

    body: bytes
    """The body's digest."""
    idempotency_key: str | None
    marked: bool
    """The SDK says that this is not its first attempt."""


def earlier(session: Session, attempt: Attempt) -> Call | int | None:
    """The call in flight to join, the number of the turn to give again, or None for a new turn.

    Raises IdempotencyKeyReused where the key was used with another body.
    """
    if attempt.idempotency_key is not None:
        return _with_key(session, attempt.idempotency_key, attempt.body)
    if attempt.marked:
        return _with_body(session, attempt.body)
    return None


def _with_key(session: Session, key: str, body: bytes) -> Call | int | None:
    call = session.calls.with_key(key)
    number = None if call is not None else session.turn_with_key(key)
    known = call.body if call is not None else session.briefs[number].body if number is not None else body
    if known != body:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used with another body. Send a new key with a new request."
        )
    return call if call is not None else number


def _with_body(session: Session, body: bytes) -> Call | int | None:
    call = session.calls.abandoned_with(body)
    if call is not None:
        return call
    # Only the newest: an older turn with this body was answered, or its caller asked again already.
    number = session.newest_turn_with_body(body)
    return None if number is None or session.tree.children(number) else number
