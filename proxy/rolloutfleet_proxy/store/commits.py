"""The last commits, for those who follow them across a restart: as a life that ends on purpose writes them down.

A turn that was acknowledged has no row any more, but whoever saw it last goes on from it.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from rolloutfleet_proxy.store.transaction import Source, Transaction, load_fact

_KEPT: Final = "last_commits"

Commit = tuple[str, str, str | None]
"""Session, turn and parent, by name."""


class _Kept(msgspec.Struct, frozen=True):
    boot: int | None
    """Of the life that wrote it: what a later one committed is not in it."""
    commits: list[Commit]


def keep(transaction: Transaction, commits: Iterable[Commit]) -> None:
    """Write down the last commits of this life, oldest first, as it ends."""
    kept = _Kept(_last_boot(transaction), list(commits))
    transaction.set_fact(_KEPT, msgspec.json.encode(kept).decode())


def load(connection: sqlite3.Connection, most: int) -> list[Commit]:
    """The newest that were committed here, oldest first. To be asked before this boot is written.

    After a crash, those whose turns are still there.
    """
    written = load_fact(connection, _KEPT)
    if written is not None:
        kept = msgspec.json.decode(written, type=_Kept)
        if kept.boot == _last_boot(connection):
            return kept.commits
    found = connection.execute(
        "SELECT sessions.name, turns.name, parents.name FROM turns JOIN sessions ON sessions.id = turns.session"
        " LEFT JOIN turns AS parents ON parents.session = turns.session AND parents.number = turns.parent"
        " WHERE imported_at IS NULL OR turns.created_at > imported_at ORDER BY turns.id DESC LIMIT ?",
        (most,),
    ).fetchall()
    return found[::-1]


def _last_boot(source: Source) -> int | None:
    found: int | None = source.execute("SELECT max(id) FROM boots").fetchone()[0]
    return found
