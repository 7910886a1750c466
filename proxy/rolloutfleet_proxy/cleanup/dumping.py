"""A session's rows as dump files: one for each closed trajectory that nobody took, one for what was still open."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rolloutfleet.dumps import DumpName, StreamedShard, StreamedTensor, StreamedTurn, encode
from rolloutfleet.tensors import REMOTE_TENSOR
from rolloutfleet_proxy.cleanup.choosing import Due, Member
from rolloutfleet_proxy.cleanup.files import DumpWriter
from rolloutfleet_proxy.dumps.reads import TurnNumbers, load_dumped_turn, load_head, load_turn_numbers
from rolloutfleet_proxy.fleet.gathering import Gathered
from rolloutfleet_proxy.ids import Owner

T = TypeVar("T")
Read = Callable[[Callable[[sqlite3.Connection], T]], T]
"""Runs a query in one snapshot; called from a worker thread."""
File = tuple[str, Collection[str], Iterator[bytes]]
"""(name, turn_ids of the whole session, content)."""

_NONE = Gathered()


def dump(
    folder: DumpWriter,
    read: Read[Any],
    chosen: Due,
    *,
    owner: Owner,
    wall: float,
    shards: Mapping[int, Gathered] | None = None,
) -> list[str]:
    """Write the files of the sessions that were chosen; returns their names, none where there are no turns.

    `wall` is in seconds since the epoch; `shards` are what was gathered for sessions, by row id, and go into each of
    their files, which are marked where some could not be had. A turn is read at a time, so a long session is never
    whole in memory. The files are durable once the folder was synced. Where this fails, what had been written is
    removed: raises FolderFull, OSError, DumpConflict.
    """
    written: list[str] = []
    try:
        for session in chosen.sessions:
            gathered = (shards or {}).get(session.id, _NONE)
            for name, turns, pieces in _files(read, session, gathered, reason=chosen.reason, owner=owner, wall=wall):
                folder.write(name, pieces, turns=turns)
                written.append(name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(written)
        raise
    return written


def _files(
    read: Read[Any], session: Member, gathered: Gathered, *, reason: str, owner: Owner, wall: float
) -> Iterator[File]:
    known: Collection[str] = read(partial(turn_ids, session=session.id)) if session.turns else ()
    for number in (*session.ready, None):
        numbers: TurnNumbers = read(partial(load_turn_numbers, session=session.id, number=number))
        if numbers.own:
            head = read(
                partial(load_head, session=session.id, number=number, owner=owner, reason=reason, dumped_at=wall)
            )
            pieces = encode(
                head,
                _turns(read, session.id, numbers),
                _shards(gathered),
                incomplete=[*gathered.gone, *gathered.unreachable],
            )
            yield str(DumpName(session.name, number)), known, pieces


def metadata_with_shards(connection: sqlite3.Connection, sessions: Sequence[int]) -> dict[int, Any]:
    """The metadata of those of the sessions that have shards, or refer to some, by row id."""
    rows = connection.execute(
        "SELECT id, metadata FROM sessions WHERE id IN (SELECT value FROM json_each(?)) AND"
        " (instr(metadata, ?) OR EXISTS (SELECT 1 FROM shards WHERE session = sessions.id))",
        (json.dumps(sessions), REMOTE_TENSOR),
    )
    return {session: None if metadata is None else json.loads(metadata) for session, metadata in rows}


def turn_ids(connection: sqlite3.Connection, session: int) -> frozenset[str]:
    """The turn_id of each of a session's turns, without those that are here only because imported ones extend them."""
    rows = connection.execute(
        "SELECT name FROM turns WHERE session = ?1 AND (trajectory IS NULL OR trajectory NOT IN"
        " (SELECT number FROM trajectories WHERE session = ?1 AND state IN ('elsewhere', 'importing')))",
        (session,),
    )
    return frozenset(name for (name,) in rows)


def _shards(gathered: Gathered) -> Iterator[StreamedShard]:
    for name, tensor in gathered.tensors.items():
        yield StreamedShard(name, StreamedTensor(tensor.form.dtype, tensor.form.shape, tensor.pieces()))


def _turns(read: Read[Any], session: int, numbers: TurnNumbers) -> Iterator[StreamedTurn]:
    context = frozenset(numbers.context)
    for number in numbers.all:
        yield read(partial(load_dumped_turn, session=session, number=number, context=number in context))
