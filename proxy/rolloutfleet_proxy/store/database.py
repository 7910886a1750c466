"""Opening a store's folder: one process at a time, one file, known settings."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutfleet_proxy.store import checksums, log_index, schema
from rolloutfleet_proxy.store.reserve import Reserve

FILE = "store.sqlite3"
LOCK = "lock"

PAGES = 4 << 20
"""Bytes of the file's pages that a connection keeps in memory, unless said otherwise."""
LASTING = 3
"""Connections that are open as long as the store is: those of the writer and of the two readers."""

MOST_LOGGED: Final = 16 << 20
LOGGED_SHARE: Final = 1 / 32
"""Bytes of log, or a share of a small disk, from which on a checkpoint brings it into the store's file: fewer, larger
ones cost less for each turn, but on a full disk the reserve has to hold what one adds to the file."""
MOST_LOG_KEPT: Final = 64 << 20
BUSY_MS: Final = 1000
"""Milliseconds that SQLite itself waits for a lock that another program has."""
PAGE: Final = 4096
"""Bytes of a page of the store's file."""


class StoreUnusable(Exception):
    """The store can't be opened; the message says why and what to do."""


class StoreOfAnotherFleet(StoreUnusable):
    """The store was made by another fleet, whose data this one was not told to take over."""


class StoreDamaged(StoreUnusable):
    """What is there is no store any more, or none that can be opened."""


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
    pages: int
    """Bytes of pages that each connection keeps at the most."""
    reserve: Reserve | None
    """Space for what frees, on a disk that is full."""
    held: contextlib.ExitStack
    """What is open as long as it is: the folder's lock, which the kernel frees when the process dies, the reserve, and
    what goes with that (`_make`)."""

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def connect(self, *, read_only: bool = False) -> sqlite3.Connection:
        return _connect(self.path, read_only=read_only, pages=self.pages)

    @property
    def cached_bytes(self) -> int:
        """About what the connections keep of the file's pages. SQLite forgets none before it has as many as it may."""
        return LASTING * min(self.pages, store_bytes(self.folder))

    def free_bytes(self) -> int:
        """Of the file's pages that hold nothing; 0 where it can't be read."""
        try:
            with contextlib.closing(self.connect(read_only=True)) as connection:
                [pages] = connection.execute("PRAGMA freelist_count").fetchone()
                [size] = connection.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error:
            return 0
        return int(pages) * int(size)

    def close(self) -> None:
        self.held.close()


def open_database(
    folder: Path,
    belonging: Belonging | None = None,
    *,
    cache_bytes: int = LASTING * PAGES,
    with_reserve: bool = False,
) -> Database:
    """Lock the folder, make or migrate its file, give it an id if it is new, and stamp it with its fleet.

    All lasting connections together keep `cache_bytes` of its pages in memory. With a reserve it opens on a disk that
    is full, too.

    Raises StoreUnusable where another process has the folder, or the file is newer than this program; StoreDamaged
    where it is no store, or none any more; StoreOfAnotherFleet where it is another fleet's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        held.callback(os.close, _lock(folder))
        with _explained(folder):
            reserve = held.enter_context(contextlib.closing(Reserve.on(folder))) if with_reserve else None
            store_id, opened = _open(folder, belonging, reserve)
        held.push(opened)
        return Database(folder, store_id, cache_bytes // LASTING, reserve, held.pop_all())


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether it is that the file is not as SQLite wrote it. Text of it may be part of what SQLite says of it."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another program has what was asked for."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY


def may_pass(error: Exception) -> bool:
    """True where the same read may succeed later: it was the disk, or another program, that refused it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
    )


def no_room(error: sqlite3.Error) -> bool:
    """Whether it was for want of room that the disk refused something."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    # The shared memory beside the log is made larger as that grows, and says so in its own way.
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE


_Made = tuple[str, contextlib.ExitStack]
"""(store_id, what stays open of the file)."""


def _open(folder: Path, belonging: Belonging | None, reserve: Reserve | None) -> _Made:
    """Make what is missing. Opening needs a little room, which a full disk has in reserve."""
    try:
        return _make(folder, belonging, lasting=reserve is not None)
    except (sqlite3.Error, OSError) as error:
        if reserve is None or not _may_be_full(error) or not reserve.give_up():
            raise
    try:
        return _make(folder, belonging, lasting=True)
    finally:
        reserve.take()


def _make(folder: Path, belonging: Belonging | None, *, lasting: bool) -> _Made:
    """`lasting`: the connection stays open as long as the store is, and so does the log's index, where that has to be
    given its blocks (`log_index`). The last connection to close removes the log and the memory that is shared beside
    it, and on a full disk they could not be made again.
    """
    _prepare(folder / FILE)
    with contextlib.ExitStack() as opened:
        index = log_index.hold(folder / f"{FILE}-shm") if lasting else None
        if index is not None:
            opened.callback(os.close, index)
        connection = opened.enter_context(contextlib.closing(_connect(folder / FILE)))
        _refuse_newer(folder, schema.version(connection))
        schema.migrate(connection)
        if schema.is_damaged(connection):
            raise _damaged(folder, "what its tables and triggers are has changed")
        if belonging is not None:
            _stamp(folder, connection, belonging)
        connection.execute("INSERT OR IGNORE INTO facts (name, value) VALUES ('store_id', ?)", (secrets.token_hex(6),))
        store_id: str = connection.execute("SELECT value FROM facts WHERE name = 'store_id'").fetchone()[0]
        return store_id, opened.pop_all() if lasting else contextlib.ExitStack()


def _may_be_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    # To open a file is to make others beside it, of which it is only said that they can't be opened.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)


def store_bytes(folder: Path) -> int:
    """What a store's file takes, with the log before it."""
    return sum(file.stat().st_size for file in folder.glob(f"{FILE}*"))


def _prepare(path: Path) -> None:
    """Let a new file give back the pages that are freed in it (`compacting`); later is too late for that."""
    if not path.exists() or not path.stat().st_size:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def _connect(path: Path, *, read_only: bool = False, pages: int = PAGES) -> sqlite3.Connection:
    # Autocommit mode: transactions are begun and ended by the writer alone, in plain sight.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        _set_up(connection, path, read_only=read_only, pages=pages)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, path: Path, *, read_only: bool, pages: int) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    connection.execute(f"PRAGMA cache_size = -{max(1, pages >> 10)}")  # in KiB
    # Else each page of what is deleted would be written once more, in zeros: to free needs room, then.
    connection.execute("PRAGMA secure_delete = FAST")
    # What a transaction needs to be undone in part would else be a file, on a disk that may be the full one.
    connection.execute("PRAGMA temp_store = MEMORY")
    checksums.install(connection)
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    else:
        share = int(LOGGED_SHARE * shutil.disk_usage(path.parent).total)
        connection.execute(f"PRAGMA wal_autocheckpoint = {max(64, min(MOST_LOGGED, share) // PAGE)}")
        connection.execute(f"PRAGMA journal_size_limit = {max(1 << 20, min(MOST_LOG_KEPT, share))}")


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
    if found is None or found[0] != belonging.fleet_uid:
        connection.execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('fleet_uid', ?)", (belonging.fleet_uid,))


def _damaged(folder: Path, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"{folder / FILE} can't be opened as a store: {why}. Copy the folder before anything else; "
        "what can be done then is in the runbook, under StoreDamaged."
    )


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, OSError) as error:
        if not isinstance(error, OSError) and is_damage(error):
            raise _damaged(folder, str(error)) from error
        raise StoreUnusable(f"{folder / FILE} can't be opened as a store: {error}") from error
