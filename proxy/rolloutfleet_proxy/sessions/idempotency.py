"""Answers to calls that carry an Idempotency-Key, kept so that the call can be made again without being done again.

An answer is written in the transaction that does what it says, so there is never one without the other. A call that
failed leaves none: made again, it is run anew.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

from pydantic import BaseModel

from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER
from rolloutfleet_proxy.domain.errors import IdempotencyKeyReused, InvalidRequest
from rolloutfleet_proxy.store.transaction import Transaction

Answer = TypeVar("Answer", bound=BaseModel)

KEY_LIMIT: Final = 255
"""Characters of a key."""
KEPT: Final = 100_000
KEPT_SECONDS: Final = 7 * 86400.0
"""Served. Answers are kept up to this number and age, whichever is reached first."""


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call with an Idempotency-Key."""

    scope: str
    """Which endpoint, of what, and by whom: the same key elsewhere is another call."""
    key: str
    body: bytes
    """A digest of what was asked."""


def keyed_call(key: str | None, *, scope: str, body: bytes) -> KeyedCall | None:
    """The call that a header's value makes of `body`, None where there is no header.

    Raises InvalidRequest for a key that is empty, longer than 255 characters, or not printable ASCII.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_LIMIT or not all(" " <= letter <= "~" for letter in key):
        raise InvalidRequest(
            f"An {IDEMPOTENCY_KEY_HEADER} has 1 to {KEY_LIMIT} printable ASCII characters.",
            param=IDEMPOTENCY_KEY_HEADER,
        )
    return KeyedCall(scope, key, blake2b(body, digest_size=16).digest())


def recall(source: Transaction | sqlite3.Connection, call: KeyedCall) -> str | None:
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
    prune(transaction)


def prune(transaction: Transaction) -> None:
    """Forget the oldest answers where there are too many, and those that are too old."""
    transaction.execute(
        "DELETE FROM idempotency WHERE id <= (SELECT max(id) FROM idempotency) - ? OR answered < ?",
        (KEPT, transaction.served - KEPT_SECONDS),
    )


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
