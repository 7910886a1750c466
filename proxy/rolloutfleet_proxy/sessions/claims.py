"""Starts with an Idempotency-Key that were given to another proxy, as there was no room on the one that keeps the key.

Noted before that proxy is asked: from then on it may have started sessions, and nobody else may under this key.
"""

from typing import Final

from rolloutfleet_proxy.sessions.idempotency import prune
from rolloutfleet_proxy.store.transaction import Transaction

_SCOPE: Final = "start elsewhere"
"""In the table of answers to calls with a key, which are kept and forgotten alike."""


class PlacedElsewhere(Exception):
    """A start with this key was given to another proxy, which alone knows what came of it."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(f"placed on proxy {ordinal}")
        self.ordinal = ordinal


def check(transaction: Transaction, key: str) -> None:
    """Raises PlacedElsewhere where another proxy was asked to start sessions under this key."""
    row = transaction.row("SELECT answer FROM idempotency WHERE scope = ? AND key = ?", (_SCOPE, key))
    if row is not None:
        raise PlacedElsewhere(int(row[0]))


def place(transaction: Transaction, *, key: str, ordinal: int) -> None:
    """Note that this proxy is asked next. Any noted before has refused."""
    withdraw(transaction, key=key)
    transaction.execute(
        "INSERT INTO idempotency (scope, key, body, answer, answered) VALUES (?, ?, ?, ?, ?)",
        (_SCOPE, key, b"", str(ordinal), transaction.served),
    )
    prune(transaction)


def withdraw(transaction: Transaction, *, key: str) -> None:
    """Every proxy that was asked has refused: nothing was started under this key."""
    transaction.execute("DELETE FROM idempotency WHERE scope = ? AND key = ?", (_SCOPE, key))
