"""Is this request a retry, and of what? Pure: it looks at a session and decides.

What says that it is one is taken for one: an `Idempotency-Key`, or the marker that SDKs send (`x-stainless-retry-count`
above 0). Claude Code and Codex say nothing when they ask again. So a request is a retry, too, where an equal one has
lost its caller, or the answer to one reached nobody. Each such call or turn serves one request: agents do sample twice.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.digests import digest16
from rolloutfleet_proxy.domain.errors import IdempotencyKeyReused
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.messages import Conversation
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Attempt:
    """What tells a retry from a new request."""

    digest: bytes
    """With a key, of the body; else of what it asks for (`digest_of`). The two are never equal: what has a key is found
    by that alone."""
    idempotency_key: str | None
    marked: bool
    """The SDK says that this is not its first attempt."""


def digest_of(request: TurnRequest, conversation: Conversation, lineage: Lineage) -> bytes:
    """Digest of what a request asks for: its messages and tools by the chain that matching goes by, the images that a
    text stands for there, how it is sampled, and who asks.

    How the answer is sent doesn't count, nor what a dialect strips: a client that asks again may do without a stream.
    """
    how: tuple[Any, ...] = (request.sampling, request.max_tokens, request.calls)
    shown = (request.logprobs, request.top_logprobs, request.token_ids)
    said = (type(request).__name__, request.follows, lineage, how, shown, conversation.reasonings)
    return digest16(conversation.chains[-1], _encode(said), request.images)


def earlier(session: Session, attempt: Attempt) -> Call | int | None:
    """The call in flight to join, the number of the turn to give again, or None for a new turn.

    Raises IdempotencyKeyReused where the key was used with another body.
    """
    if attempt.idempotency_key is not None:
        return _with_key(session, attempt.idempotency_key, attempt.digest)
    call = session.calls.abandoned_with(attempt.digest)
    if call is not None:
        return call
    lost = session.lost_turn(attempt.digest)
    return lost if lost is not None or not attempt.marked else _newest(session, attempt.digest)


def _with_key(session: Session, key: str, body: bytes) -> Call | int | None:
    call = session.calls.with_key(key)
    number = None if call is not None else session.turn_with_key(key)
    known = call.digest if call is not None else session.briefs[number].digest if number is not None else body
    if known != body:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used with another body, or at another API. Send a new key with a new request."
        )
    return call if call is not None else number


def _newest(session: Session, digest: bytes) -> int | None:
    """What a marked retry gets where no answer is known to be lost: something behind the proxy may have lost it."""
    # Only the newest: an older turn was answered, or its caller asked again already.
    number = session.newest_turn_with(digest)
    return None if number is None or session.tree.children(number) else number
