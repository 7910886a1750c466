"""What a crash leaves in the folder of dumps: files half written, and whole ones whose session was not freed.

The second kind holds what the store still has; were it left, it could be imported beside it, or stay when the session
goes on and is dumped anew. It is removed where all of its turns are in the store, and else left to a person.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from rolloutfleet.dumps import parse_dump_name
from rolloutfleet_proxy.cleanup.dumping import turn_ids
from rolloutfleet_proxy.cleanup.files import DumpWriter
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")
Read = Callable[[Callable[[sqlite3.Connection], T]], T]

_AT_ONCE: Final = 1000
"""Names that are looked up in one read."""


def tidy(folder: DumpWriter, read: Read[Any]) -> None:
    """Remove what earlier processes of this proxy left behind. For a worker thread; raises OSError."""
    unfinished = folder.remove_unfinished()
    if unfinished:
        logger.info("removed %d dump files that a crash left half written", unfinished)
    names = folder.dumps()
    for place in range(0, len(names), _AT_ONCE):
        for name, session in read(partial(_still_there, names=names[place : place + _AT_ONCE])):
            _remove(folder, name, read(partial(turn_ids, session=session)))


def _remove(folder: DumpWriter, name: str, turns: frozenset[str]) -> None:
    try:
        ours = folder.holds_only(name, turns)
    except OSError as error:
        logger.warning("dump %s can't be read, and is kept: %s", name, error)
        return
    if ours:
        folder.remove([name])
        logger.info("removed dump %s: its session was not freed, and is dumped again when it is due", name)
    else:
        logger.warning("dump %s holds turns that its session here has not: move it away, or that can't be dumped", name)


def _still_there(connection: sqlite3.Connection, names: Sequence[str]) -> list[tuple[str, int]]:
    """(dump, row id) where the dump's session is in the store."""
    sessions = {name: parsed.session_id for name in names if (parsed := parse_dump_name(name))}
    there = dict(
        connection.execute(
            # Of an imported one, dumps that are still to be imported may hold turns that are here as context.
            "SELECT name, id FROM sessions WHERE imported_at IS NULL AND name IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(set(sessions.values()))),),
        )
    )
    return [(name, there[session]) for name, session in sessions.items() if session in there]
