"""Opening a store's folder: one process at a time, one file, known settings."""

import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rolloutfleet_proxy.store import schema

FILE = "store.sqlite3"
LOCK = "lock"


class StoreUnusable(Exception):
    """The store can't be opened; the message says why and what to do."""


class StoreOfAnotherFleet(StoreUnusable):
    """The store was made by another fleet, whose data this one was not told to take over."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Whose store is opened: a fleet by its uid, and the uid of an earlier one whose store it may take over."""

    fleet_uid: str
    adopt: str | None = None


@dataclass(frozen=True, slots=True)
class Database:
    """An open store folder. `connect()` makes further connections to its file."""

    folder: Path
    store_id: str
    lock: int
    """File descriptor that holds the folder's lock; freed by the kernel when the process dies."""

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def connect(self, *, read_only: bool = False) -> sqlite3.Connection:
        return _connect(self.path, read_only=read_only)

    def close(self) -> None:
        os.close(self.lock)


def open_database(folder: Path, belonging: Belonging | None = None) -> Database:
    """Lock the folder, make or migrate its file, give it an id if it is new, and stamp it with its fleet.

    Raises StoreUnusable where another process has the folder, the file is newer than this program, or it is no
    store at all; StoreOfAnotherFleet where it is another fleet's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        with _explained(folder):
            _prepare(folder / FILE)
        with _explained(folder), contextlib.closing(_connect(folder / FILE)) as connection:
            _refuse_newer(folder, schema.version(connection))
            schema.migrate(connection)
            if belonging is not None:
                _stamp(folder, connection, belonging)
            connection.execute("INSERT OR IGNORE INTO facts VALUES ('store_id', ?)", (secrets.token_hex(6),))
            store_id: str = connection.execute("SELECT value FROM facts WHERE name = 'store_id'").fetchone()[0]
    except BaseException:
        os.close(lock)
        raise
    return Database(folder=folder, store_id=store_id, lock=lock)


def store_bytes(folder: Path) -> int:
    """What a store's file takes, with the log before it."""
    return sum(file.stat().st_size for file in folder.glob(f"{FILE}*"))


def _prepare(path: Path) -> None:
    """Let a new file give back the pages that are freed in it (`compacting`); later is too late for that."""
    if not path.exists() or not path.stat().st_size:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    # Autocommit mode: transactions are begun and ended by the writer alone, in plain sight.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA cache_size = -4096")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    else:
        # A checkpoint copies pages under the writer: fewer, larger ones cost less for each turn.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    return connection


def _lock(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreUnusable(
            f"{folder} is in use by another proxy. Stop it first, or give this one another state_dir."
        ) from None
    return lock


def _refuse_newer(folder: Path, found: int) -> None:
    if found > schema.LATEST:
        raise StoreUnusable(
            f"{folder / FILE} has schema version {found}, and this program knows up to {schema.LATEST}. "
            "It was written by a newer rolloutfleet-proxy: run that version or a later one."
        )


def _stamp(folder: Path, connection: sqlite3.Connection, belonging: Belonging) -> None:
    found = connection.execute("SELECT value FROM facts WHERE name = 'fleet_uid'").fetchone()
    if found is not None and found[0] not in (belonging.fleet_uid, belonging.adopt):
        raise StoreOfAnotherFleet(
            f"{folder / FILE} holds data of an earlier fleet of this name, uid {found[0]}. To take it over, set "
            f"proxies.storage.adopt to that uid (`adopt` in a proxy's settings); to begin anew, delete the claim."
        )
    connection.execute("INSERT OR REPLACE INTO facts VALUES ('fleet_uid', ?)", (belonging.fleet_uid,))


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(f"{folder / FILE} can't be opened as a store: {error}") from error
