"""Answers to calls that carry an Idempotency-Key, kept so that the call can be made again without being done again.

An answer is written in the transaction that does what it says, so there is never one without the other. A call that
failed leaves none: made again, it is run anew.

Among them are claims: starts that were given to another proxy, as there was no room on the one that keeps the key. They
are noted before that proxy is asked: from then on it may have started sessions, and nobody else may under this key.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER
from rolloutfleet_proxy.domain.errors import IdempotencyKeyReused
from rolloutfleet_proxy.domain.idempotency import KeyedCall
from rolloutfleet_proxy.store.transaction import Source, Transaction

Answer = TypeVar("Answer", bound=BaseModel)

KEPT: Final = 100_000
KEPT_SECONDS: Final = 7 * 86400.0
"""Served. Answers are kept up to this number and age, whichever is reached first."""


def recall(source: Source, call: KeyedCall) -> str | None:
    """The answer that this call got before, as JSON; None where it was not made, or failed.

    Raises IdempotencyKeyReused where the key came with another body.
    """
    row = source.execute(
        "SELECT body, answer FROM idempotency WHERE scope = ? AND key = ?", (call.scope, call.key)
    ).fetchone()
    if row is None:
        return None
    body, answer = row
    if body != call.body:
        raise IdempotencyKeyReused(f"The {IDEMPOTENCY_KEY_HEADER} {call.key!r} was used before with another body.")
    return str(answer)


def remember(transaction: Transaction, call: KeyedCall, answer: str) -> None:
    """Keep an answer, given as JSON."""
    transaction.execute(
        "INSERT INTO idempotency (scope, key, body, answer, answered) VALUES (?, ?, ?, ?, ?)",
        (call.scope, call.key, call.body, answer, transaction.served),
    )
    transaction.prune("idempotency", "answered", most=KEPT, age=KEPT_SECONDS)


def once(
    transaction: Transaction,
    call: KeyedCall | None,
    kind: type[Answer],
    operation: Callable[[Transaction], Answer],
) -> Answer:
    """What the call was answered before, else what the operation answers now, which is kept."""
    if call is None:
        return operation(transaction)
    before = recall(transaction, call)
    if before is not None:
        return kind.model_validate_json(before)
    answer = operation(transaction)
    remember(transaction, call, answer.model_dump_json())
    return answer


class PlacedElsewhere(Exception):
    """A start with this key was given to another proxy, which alone knows what came of it."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(f"placed on proxy {ordinal}")
        self.ordinal = ordinal


def check_claim(transaction: Transaction, key: str) -> None:
    """Raises PlacedElsewhere where another proxy was asked to start sessions under this key."""
    ordinal = recall(transaction, _start_elsewhere(key))
    if ordinal is not None:
        raise PlacedElsewhere(int(ordinal))


def place_claim(transaction: Transaction, *, key: str, ordinal: int) -> None:
    """Note that this proxy is asked next. Any noted before has refused."""
    withdraw_claim(transaction, key=key)
    remember(transaction, _start_elsewhere(key), str(ordinal))


def withdraw_claim(transaction: Transaction, *, key: str) -> None:
    """Every proxy that was asked has refused: nothing was started under this key."""
    call = _start_elsewhere(key)
    transaction.execute("DELETE FROM idempotency WHERE scope = ? AND key = ?", (call.scope, call.key))


def _start_elsewhere(key: str) -> KeyedCall:
    return KeyedCall("start elsewhere", key, b"")
