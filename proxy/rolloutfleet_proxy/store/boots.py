"""The durable log of boots: when this store was opened, and why the life before it ended.

A life that ends on purpose writes its last words with its last commit; the next one makes its entry from them. Where
there are none, it was a crash, and the parent may know how.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rolloutfleet.boots import CRASH
from rolloutfleet_proxy.store.transaction import Source, Transaction, named_rows

KEPT: Final = 20
"""Boots that are remembered."""

FIRST: Final = "first"
UNKNOWN: Final = "its end was not recorded"

_LAST_WORDS = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What the parent knows of a worker that died by itself."""

    how: str
    peak_rss: int | None = None
    """Bytes of the worker at its most; nobody measured it at the end."""


def end(transaction: Transaction, *, reason: str, drain: str | None, rss: int | None) -> None:
    """Write what the next boot says of this life. `drain` is the id of the drain that ended it."""
    words = {"reason": reason, "id": drain, "rss": rss}
    transaction.set_fact(_LAST_WORDS, msgspec.json.encode(words).decode())


def ended_by(transaction: Transaction) -> str | None:
    """The id of the drain that ended the life before on purpose, until the next boot is written."""
    words = transaction.fact(_LAST_WORDS)
    drain: str | None = None if words is None else msgspec.json.decode(words)["id"]
    return drain


def begin(transaction: Transaction, *, crash: Crash | None, drain: str | None) -> None:
    """Add a boot. `drain` is the id of one that the life before was in when it died."""
    transaction.execute(
        "INSERT INTO boots (time, reason, drain, rss_before) VALUES (?, ?, ?, ?)",
        (transaction.wall, *_before(transaction, crash, drain)),
    )
    transaction.forget_fact(_LAST_WORDS)
    transaction.execute("DELETE FROM boots WHERE id <= (SELECT max(id) FROM boots) - ?", (KEPT,))


def measured(transaction: Transaction, rss: int) -> None:
    """Note the memory just after this boot."""
    transaction.execute("UPDATE boots SET rss_after = ? WHERE id = (SELECT max(id) FROM boots)", (rss,))


def load(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """The boots, oldest first, as /stats shows them."""
    shown = "SELECT time, reason, drain AS id, rss_before, rss_after FROM boots ORDER BY boots.id"
    return list(named_rows(connection, shown))


def has(source: Source, drain: str) -> bool:
    """Whether a boot followed the drain of that id."""
    return source.execute("SELECT 1 FROM boots WHERE drain = ?", (drain,)).fetchone() is not None


def _before(transaction: Transaction, crash: Crash | None, drain: str | None) -> tuple[str, str | None, int | None]:
    """Reason, drain id and memory of the life before."""
    words = transaction.fact(_LAST_WORDS)
    if words is not None:
        said = msgspec.json.decode(words)
        return said["reason"], said["id"], said["rss"]
    if transaction.row("SELECT 1 FROM boots") is None:
        return FIRST, None, None
    if crash is None:
        return f"{CRASH}: {UNKNOWN}", drain, None
    return f"{CRASH}: {crash.how}", drain, crash.peak_rss
