"""A checksum of each row, so that what a disk has changed of one since is found when it is read.

SQLite keeps none of the pages of its file. Triggers of `schema` keep these, by a function that each connection gets
here. Turns that an earlier version wrote are given theirs bit by bit (`filling`); until then nothing is said against
them.
"""

import sqlite3
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from rolloutfleet_proxy.store.transaction import Transaction

WRONG: Final = -1
"""What no checksum is. A row that was not as it was written when it was changed keeps this: a change must not make it
good."""

_encode = msgspec.msgpack.Encoder().encode


def checksum(*values: bytes | str | float | None) -> int:
    """CRC-32 (that of zlib) of a row's values as a msgpack array.

    It finds every change within 32 bits that lie together, and all but one in 2**32 of others.
    """
    return crc32(_encode(values))


def install(connection: sqlite3.Connection) -> None:
    """Let SQL call `checksum`."""
    connection.create_function("row_checksum", -1, checksum, deterministic=True)


class Guarded(NamedTuple):
    """A table whose rows have their checksum in a column."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    """The others."""

    def of(self, row: str = "") -> str:
        """SQL of a row's checksum; `row` is how its columns are qualified."""
        return call((*self.key, *self.columns), row)


def call(columns: tuple[str, ...], row: str = "") -> str:
    """SQL of the checksum of columns; `row` is how they are qualified."""
    return f"row_checksum({', '.join(row + column for column in columns)})"


GUARDED: Final = {
    "facts": Guarded(("name",), ("value",)),
    "ledger": Guarded(("kind", "term", "reason"), ("n",)),
    "sessions": Guarded(
        ("id",),
        (
            *("name", "key_hash", "group_name", "task_id", "metadata", "limits", "agent_may", "stale_after", "state"),
            *("fate", "reason", "turns", "tokens", "trajectories", "created_at", "touched", "ended", "imported_at"),
            *("sampling", "branches", "output_tokens", "version_min", "version_max", "rewarded", "reward"),
            *("reward_turn", "last_activity_at", "episode_turns", "outcome", "outcome_reason", "met_limit"),
            *("await_reward", "train", "place", "quorum", "deadline"),
        ),
    ),
    "trajectories": Guarded(
        ("session", "number"),
        (
            *("closed_by", "reward_turn", "turns", "state", "reason", "frozen", "lease", "marked", "closed_at"),
            "waits_until",
        ),
    ),
    "leases": Guarded(("id",), ("name", "request", "statuses", "state", "expires", "changed")),
    "leased": Guarded(("lease", "session", "number"), ("session_name", "acknowledged", "leased_at", "acknowledged_at")),
    "shards": Guarded(
        ("id",), ("name", "file", "dtype", "shape", "bytes", "digest", "session", "lease", "expires", "created_at")
    ),
    "idempotency": Guarded(("id",), ("scope", "key", "body", "answer", "answered")),
    "imports": Guarded(("id",), ("name", "digest", "imported")),
    "boots": Guarded(("id",), ("time", "reason", "drain", "rss_before", "rss_after")),
    "tombstones": Guarded(("id",), ("name", "key_hash", "group_name", "reason", "dumped", "trajectory", "buried")),
    "dump_files": Guarded(("file",), ("since",)),
    "keeping": Guarded(("session",), ("head",)),
    "annotations": Guarded(("id",), ("session", "turn", "name", "content")),
}
"""All but `turns`, and those that only name what is to be removed. Who adds a column makes the triggers anew."""

TOKENS: Final = (
    *("session", "number", "name", "parent", "run", "mixed_cache", "start", "length", "prompt_tokens", "created_at"),
    *("finish_reason", "versions", "prompt_ids", "output_ids", "logprobs"),
)
TEXT: Final = (
    *("session", "number", "history", "request", "body", "idempotency_key", "matching", "output", "messages", "tools"),
    "extras",
)
CHANGING: Final = ("session", "number", "trajectory", "state", "delivered", "reward")
"""What of a turn each of its three checksums is of."""


def _sound(name: str, columns: tuple[str, ...]) -> str:
    return f"coalesce((SELECT {name} = {call(columns, 'turns.')} FROM turn_checksums WHERE turn = turns.id), 1)"


SOUND_TOKENS: Final = _sound("tokens", TOKENS)
"""SQL of whether a turn's tokens are as they were committed."""
SOUND: Final = " AND ".join((SOUND_TOKENS, _sound("text", TEXT), _sound("changing", CHANGING)))
"""SQL of whether all of it is."""

NOT_YET: Final = "without_checksums"
"""The fact that says which turns an earlier version left without theirs."""
_TURNS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 4 << 20


def fill_some(transaction: Transaction) -> None:
    """Give the newest of the turns that have none their checksums."""
    newest = transaction.fact(NOT_YET, 0)
    sizes = transaction.rows(
        "SELECT id, length(prompt_ids) + length(output_ids) + length(logprobs) + length(messages) FROM turns"
        " WHERE id <= ? ORDER BY id DESC LIMIT ?",
        (newest, _TURNS_AT_ONCE),
    )
    taken, nbytes = 0, 0
    for _, size in sizes:
        if taken and nbytes + size > _BYTES_AT_ONCE:
            break
        taken, nbytes = taken + 1, nbytes + size
    if taken:
        oldest = sizes[taken - 1][0]
        transaction.execute(
            f"INSERT OR IGNORE INTO turn_checksums SELECT id, {call(TOKENS)}, {call(TEXT)}, {call(CHANGING)}"
            " FROM turns WHERE id BETWEEN ? AND ?",
            (oldest, newest),
        )
        transaction.set_fact(NOT_YET, oldest - 1)
    else:
        transaction.forget_fact(NOT_YET)
