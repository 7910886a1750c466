"""How much has been committed so far, in a file beside the store's, so that a start can say what of it is missing.

A log whose head is damaged is no log to SQLite: the store opens as it was before, and looks whole. The file is
written without an fsync of its own, and never before the commits that it counts were durable.
"""

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import DiskError
from rolloutfleet_proxy.domain.ledger import CREATED, IMPORTED, SESSIONS, TURNS
from rolloutfleet_proxy.store.store import Connection, Store
from rolloutfleet_proxy.store.transaction import COMMITS, Source, Transaction, load_fact

FILE: Final = "committed.json"
_MISSING: Final = "missing"
_COUNTED: Final = (COMMITS, TURNS, SESSIONS)


def load_missing(source: Source) -> dict[str, int]:
    """How many commits, and turns and sessions among what they made, have gone missing from this store, as far as its
    starts have found out."""
    found: dict[str, int] = json.loads(load_fact(source, _MISSING, "{}"))
    return dict.fromkeys(_COUNTED, 0) | found


class Tally:
    """The file of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file = store.database.folder / FILE
        self._written: dict[str, Any] | None = None
        self._lost: dict[str, int] = {}
        """Parts that are missing by what the file alone says."""

    async def compare(self) -> dict[str, int]:
        """Hold the store against the file, and remember what is missing; returns what is that was not before."""
        counted, noted = await self._store.read(_count), _read(self._file)
        if noted.get("store_id") != self._store.owner.store_id:
            return {}
        missing = {kind: noted[kind] - counted[kind] for kind in _COUNTED if noted[kind] > counted[kind]}
        if missing:
            self._lost = missing
            await self.write()  # Else the next start would count it again.
        return missing

    async def write(self) -> None:
        """Write what is committed by now. Where that fails, the next time will do."""
        if self._lost:
            try:
                await self._store.write(partial(_remember, missing=self._lost))
            except DiskError:
                return
            self._lost = {}
        counted = {"store_id": self._store.owner.store_id, **await self._store.read(_count)}
        if counted != self._written:
            unfinished = self._file.with_suffix(".tmp")
            with contextlib.suppress(OSError):
                unfinished.write_text(json.dumps(counted))
                unfinished.rename(self._file)
                self._written = counted


def _count(connection: Connection) -> dict[str, int]:
    rows = connection.execute("SELECT kind, sum(n) FROM ledger WHERE term IN (?, ?) GROUP BY kind", (CREATED, IMPORTED))
    return {TURNS: 0, SESSIONS: 0, COMMITS: load_fact(connection, COMMITS, 0)} | dict(rows.fetchall())


def _read(file: Path) -> dict[str, Any]:
    """Empty where there is none, or a crash of the machine left no whole one."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict) and all(type(found.get(kind)) is int for kind in _COUNTED):
            return found
    return {}


def _remember(transaction: Transaction, missing: dict[str, int]) -> None:
    before = load_missing(transaction)
    after = {kind: before[kind] + missing.get(kind, 0) for kind in before}
    transaction.set_fact(_MISSING, json.dumps(after))
