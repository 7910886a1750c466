"""What is left of sessions that are gone: turns and their annotations, deleted a few at a time.

A session goes in one transaction: its row, its trajectories and its shards are deleted, and a tombstone says why. From
then on nobody finds its turns or what was said of them, and no sum counts them. But their rows are long, and there may
be any number of them. To delete one writes a page or two, which a full disk has room for only within the store's
reserve, and nobody else writes meanwhile. So one operation deletes no more than a piece; it notes the sessions that
have more, and `clear` deletes that piece by piece. The log is brought into the store's file between them, so that it is
written over. A process that dies between two pieces leaves the note to the next one.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import Writer

TURNS_AT_ONCE: Final = 80
"""Turns, or annotations, that one operation deletes at the most. Each writes 2 pages of 4 KiB to the log, and one more
of its checksums', so this fits into half of the reserve of a disk of 24 MB."""
BYTES_AT_ONCE: Final = 16 << 20
"""Of their content, which is read to be deleted: no further turn is deleted with so much."""
REST: Final = 0.02
"""Seconds in which others have the writer, after each piece."""


def piece(sizes: Iterable[int], *, after: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """(turns, their bytes) that one operation deletes of turns of these sizes, in bytes, the first ones first; `after`
    says how much it has deleted before. Its first turn goes whatever the size.
    """
    turns, nbytes = after
    for size in sizes:
        if turns == TURNS_AT_ONCE or (turns and nbytes + size > BYTES_AT_ONCE):
            break
        turns += 1
        nbytes += size
    return turns - after[0], nbytes - after[1]


def leave(transaction: Transaction, session: int) -> None:
    """Delete the turns of a session whose row is gone, and their annotations; where this operation may not delete all,
    note that."""
    if not _delete_some(transaction, session):
        transaction.execute("INSERT INTO freed_sessions VALUES (?)", (session,))


def clear_some(transaction: Transaction) -> bool:
    """Delete a piece of what is left, of as many sessions as it comes to; returns whether that was something."""
    found = transaction.rows("SELECT id FROM freed_sessions ORDER BY id LIMIT ?", (TURNS_AT_ONCE,))
    for (session,) in found:
        if not _delete_some(transaction, session):
            break
        transaction.execute("DELETE FROM freed_sessions WHERE id = ?", (session,))
    return bool(found)


async def clear(writer: Writer) -> None:
    """Delete what is left, piece by piece. Where there is no room for a piece, the rest waits for the next time."""
    with contextlib.suppress(DiskFull):
        while await writer.run(clear_some, frees=True):
            failpoints.reach(failpoints.MID_FREEING)
            await asyncio.sleep(REST)


def _delete_some(transaction: Transaction, session: int) -> bool:
    """Delete annotations, then turns, the newest first, so that none is ever left without the one that it extends;
    returns whether those were all."""
    return all(_delete_rows(transaction, session, *rows) for rows in _ROWS)


def _delete_rows(transaction: Transaction, session: int, table: str, order: str, size: str) -> bool:
    found = transaction.rows(
        f"SELECT {size} FROM {table} WHERE session = ? ORDER BY {order} LIMIT ?", (session, TURNS_AT_ONCE + 1)
    )
    rows, nbytes = piece((size for (size,) in found), after=transaction.deleted)
    transaction.execute(
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE session = ? ORDER BY {order} LIMIT ?)",
        (session, rows),
    )
    transaction.deleted = transaction.deleted[0] + rows, transaction.deleted[1] + nbytes
    return rows == len(found)


_ROWS: Final = (
    ("annotations", "turn DESC, name DESC", "length(content)"),
    (
        "turns",
        "number DESC",
        "length(prompt_ids) + length(output_ids) + length(logprobs) + length(output) + length(messages)"
        " + coalesce(length(tools), 0) + coalesce(length(extras), 0)",
    ),
)
"""(table, order in which its rows go, bytes of one)."""
