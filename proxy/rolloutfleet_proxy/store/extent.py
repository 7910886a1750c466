"""How many proxies the fleet has had at the most, as this one knows it: no name has an ordinal from there on.

Kept in the store, and learnt from peers, so that what a proxy that was scaled away still keeps is never called unknown.
"""

import sqlite3
from typing import Final

from rolloutfleet_proxy.store.transaction import Transaction, load_fact

ANY: Final = 1_000_000
"""Above every ordinal: what a store that is older than this knowledge has to assume."""

_FACT = "proxies_ever"


def load(connection: sqlite3.Connection) -> int:
    """What the store knows; 0 for a new one."""
    known = load_fact(connection, _FACT)
    if known is not None:
        return int(known)
    return ANY if connection.execute("SELECT 1 FROM boots LIMIT 1").fetchone() is not None else 0


def save(transaction: Transaction, ever: int) -> None:
    """Keep the larger of what is known and what is learnt."""
    transaction.set_fact(_FACT, max(ever, int(transaction.fact(_FACT, 0))))
