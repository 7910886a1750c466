"""Dumps made of the rows of a store."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from rolloutfleet.dumps.files import DumpName
from rolloutfleet.dumps.form import DumpedShard, StreamedTurn, encode
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store.dumps import load_dumped_turn, load_head, load_turn_numbers

_times = count()
"""No two dumps are made at one time, so none is the copy of another."""


def dumped(
    connection: sqlite3.Connection,
    owner: Owner,
    session: int,
    number: int | None,
    *,
    shards: Iterable[DumpedShard] = (),
    incomplete: Iterable[str] = (),
) -> tuple[str, bytes]:
    """(name, content) of the dump of a trajectory, or of what is open."""
    head = load_head(connection, session, number, owner=owner, reason="stale", dumped_at=1e9 + next(_times))
    numbers = load_turn_numbers(connection, session, number)

    def turns() -> Iterator[StreamedTurn]:
        for turn, context in numbers.items():
            yield load_dumped_turn(connection, session, turn, context=context)

    content = b"".join(encode(head, turns(), shards, incomplete=incomplete))
    return str(DumpName(head.session.session_id, number)), content


def dump_all(connection: sqlite3.Connection, owner: Owner, session: int, folder: Path, **given: Any) -> list[str]:
    """Write what a session would be dumped to; returns the names."""
    ready = connection.execute(
        "SELECT number FROM trajectories WHERE session = ? AND state = 'ready' ORDER BY number", (session,)
    ).fetchall()
    numbers: list[int | None] = [number for (number,) in ready]
    if load_turn_numbers(connection, session, None):
        numbers.append(None)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in numbers:
        name, content = dumped(connection, owner, session, number, **given)
        (folder / name).write_bytes(content)
        names.append(name)
    return names
