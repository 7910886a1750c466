"""The rows of shards: who holds what, and for how long.

A row is written when its file is durable. When it goes, for whatever reason, a trigger of the schema puts its file on
the list of those to be removed, in the same transaction; `services.shards` removes them after the commit, as often as
it takes.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet.tensors import Form
from rolloutfleet_proxy.domain.errors import SessionDeleted, SessionNotFound, ShardConflict
from rolloutfleet_proxy.store.transaction import Source, Transaction, insert_statement, load_fact

EXPIRED_AT_ONCE: Final = 1000
"""Shards that one transaction frees because their time is up."""

_COLUMNS: Final = ("name", "file", "dtype", "shape", "digest", "session", "expires")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM shards"
_INSERT: Final = insert_statement("shards", (*_COLUMNS, "bytes", "lease", "created_at"))


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor that is kept."""

    name: str
    """The shard_id that users see."""
    file: str
    form: Form
    digest: bytes
    """Of type, shape and bytes."""
    session: int | None = None
    """Row of the session that it goes with."""
    expires: float | None = None
    """Served seconds; None: it goes with its session alone."""


def put(
    transaction: Transaction, name: str, file: str, form: Form, digest: bytes, *, session: str | None, ttl: float | None
) -> bool:
    """Keep a tensor whose file is durable, for a session, for `ttl` seconds, or until the first of both ends.

    Returns False where the same tensor was there already under this name, whose time then runs anew; the file that
    came with it replaces the older one. Raises ShardConflict where the name holds another tensor or belongs to another
    session, SessionNotFound, SessionDeleted.
    """
    owner = None if session is None else _session(transaction, session)
    expires = None if ttl is None else transaction.served + ttl
    before = find(transaction, [name]).get(name)
    if before is None:
        _insert(transaction, Shard(name, file, form, digest, owner, expires), lease=None)
        return True
    if before.digest != digest:
        raise ShardConflict(f"Shard {name!r} is kept with other content: use another id, or delete it first.")
    if before.session != owner:
        raise ShardConflict(f"Shard {name!r} is kept for another owner: a shard has one session, or none.")
    # The newer file is kept: it has just been written, where the older one may have come to harm.
    transaction.execute("UPDATE shards SET file = ?, expires = ? WHERE name = ?", (file, expires, name))
    transaction.execute("INSERT INTO freed_files VALUES (?)", (before.file,))
    return False


def put_for_lease(transaction: Transaction, shards: Iterable[Shard], *, lease: str, ttl: float) -> None:
    """Keep an export's tensors. One that another call put meanwhile stays as it is: equal names are equal tensors."""
    for shard in shards:
        if find(transaction, [shard.name]):
            transaction.execute("INSERT INTO freed_files VALUES (?)", (shard.file,))
        else:
            _insert(transaction, shard, lease=lease)
        keep_longer(transaction, [shard.name], lease=lease, ttl=ttl)


def restore(transaction: Transaction, shards: Iterable[Shard]) -> None:
    """Keep tensors again, as they say; one that is kept already stays. Raises ShardConflict for another one."""
    for shard in shards:
        before = find(transaction, [shard.name]).get(shard.name)
        if before is None:
            _insert(transaction, shard, lease=None)
        elif before.digest != shard.digest:
            raise ShardConflict(f"Shard {shard.name!r} is kept with other content.")
        else:
            transaction.execute("INSERT INTO freed_files VALUES (?)", (shard.file,))


def keep_longer(transaction: Transaction, names: Sequence[str], *, lease: str, ttl: float) -> list[str]:
    """Let the shards of an export, those that are there, live `ttl` seconds from now on; returns their names."""
    rows = transaction.rows(
        "UPDATE shards SET lease = ?, expires = max(coalesce(expires, 0), ?)"
        " WHERE name IN (SELECT value FROM json_each(?)) RETURNING name",
        (lease, transaction.served + ttl, json.dumps(names)),
    )
    return [name for (name,) in rows]


def renew(transaction: Transaction, lease: str, *, ttl: float) -> None:
    """Let all shards that were last exported under a lease live `ttl` seconds from now on."""
    transaction.execute(
        "UPDATE shards SET expires = max(coalesce(expires, 0), ?) WHERE lease = ?", (transaction.served + ttl, lease)
    )


def find(source: Source, names: Sequence[str]) -> dict[str, Shard]:
    """Those of these names that are kept."""
    rows = source.execute(f"{_SELECT} WHERE name IN (SELECT value FROM json_each(?))", (json.dumps(names),))
    return {shard.name: shard for shard in map(_shard, rows)}


def delete(transaction: Transaction, names: Sequence[str]) -> tuple[int, int]:
    """(how many of these there were, their bytes). Those that are not there are no mistake."""
    return _delete(transaction, "name IN (SELECT value FROM json_each(?))", json.dumps(names))


def delete_newer(transaction: Transaction, *, than: int, lease: str) -> None:
    """Take back what an export put behind row `than` before it failed."""
    _delete(transaction, "id > ? AND lease = ?", than, lease)


def newest(connection: sqlite3.Connection) -> int:
    """The newest row there ever was."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'shards'").fetchone()
    return 0 if row is None else int(row[0])


def free_expired(transaction: Transaction) -> int:
    """Free shards whose time is up, a bounded number of them; returns how many."""
    count, _ = _delete(
        transaction,
        "id IN (SELECT id FROM shards WHERE expires <= ? ORDER BY expires LIMIT ?)",
        transaction.served,
        EXPIRED_AT_ONCE,
    )
    return count


def shards_of_session(connection: sqlite3.Connection, session: int) -> list[Shard]:
    """The shards that are tied to a session, given by its row id, in order of their coming.

    Their bytes are read with `Shards.pieces(shard)`, in a worker thread.
    """
    rows = connection.execute(f"{_SELECT} WHERE session = ? ORDER BY id", (session,))
    return [_shard(row) for row in rows]


def held_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of all tensors that are kept, by the running count."""
    return int(load_fact(connection, "shard_bytes", 0))


def known_files(connection: sqlite3.Connection, files: Sequence[str]) -> set[str]:
    """Those of these files that a row holds, or that are to be removed."""
    asked = json.dumps(files)
    rows = connection.execute(
        "SELECT file FROM shards WHERE file IN (SELECT value FROM json_each(?1))"
        " UNION ALL SELECT file FROM freed_files WHERE file IN (SELECT value FROM json_each(?1))",
        (asked,),
    )
    return {file for (file,) in rows}


def pages(connection: sqlite3.Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """(row id, file) of shards in order, from behind row `after`."""
    return connection.execute("SELECT id, file FROM shards WHERE id > ? ORDER BY id LIMIT ?", (after, limit)).fetchall()


def files_of_rows(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, str]:
    """The files that these rows hold, those of them that there are."""
    return dict(
        connection.execute(
            "SELECT id, file FROM shards WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
        ).fetchall()
    )


def delete_row(transaction: Transaction, *, row: int, file: str) -> None:
    """Free the shard of this row, if it still holds this file."""
    _delete(transaction, "id = ? AND file = ?", row, file)


def freed_files(connection: sqlite3.Connection, *, limit: int) -> list[str]:
    """Files that no row holds any more, and that are still to be removed."""
    return [file for (file,) in connection.execute("SELECT file FROM freed_files LIMIT ?", (limit,))]


def forget_freed(transaction: Transaction, files: Iterable[str]) -> None:
    """These files are gone."""
    transaction.executemany("DELETE FROM freed_files WHERE file = ?", ((file,) for file in files))


def _insert(transaction: Transaction, shard: Shard, *, lease: str | None) -> None:
    form = shard.form
    owned = (shard.digest, shard.session, shard.expires, form.nbytes, lease, transaction.wall)
    transaction.execute(_INSERT, (shard.name, shard.file, form.dtype, json.dumps(form.shape), *owned))


def _delete(transaction: Transaction, condition: str, *values: Any) -> tuple[int, int]:
    freed = transaction.rows(f"DELETE FROM shards WHERE {condition} RETURNING bytes", values)
    return len(freed), sum(nbytes for (nbytes,) in freed)


def _shard(row: Sequence[Any]) -> Shard:
    name, file, dtype, shape, digest, session, expires = row
    return Shard(name, file, Form(dtype, tuple(json.loads(shape))), digest, session, expires)


def _session(transaction: Transaction, name: str) -> int:
    row = transaction.row("SELECT id, state FROM sessions WHERE name = ?", (name,))
    if row is None:
        raise SessionNotFound(f"There is no session {name[:80]!r} here.")
    if row[1] == "deleted":
        raise SessionDeleted(f"Session {name} has been deleted.", param="session_id")
    return int(row[0])
