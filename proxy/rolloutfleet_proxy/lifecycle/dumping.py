"""A session's rows as dump files: one for each closed trajectory that nobody took, one for what was still open."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from rolloutfleet.dumps import DumpName, StreamedShard, StreamedTensor, StreamedTurn, encode
from rolloutfleet_proxy.domain.stale import Due, GroupMember
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.shards.files import Gathered
from rolloutfleet_proxy.store.dumps import load_dumped_turn, load_head, load_turn_numbers, turn_ids
from rolloutfleet_proxy.store.store import Read

File = tuple[str, Collection[str], Iterator[bytes]]
"""(name, turn_ids of the whole session, content)."""

_NONE = Gathered()


def dump(
    folder: DumpFolder,
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
    read: Read[Any], session: GroupMember, gathered: Gathered, *, reason: str, owner: Owner, wall: float
) -> Iterator[File]:
    known: Collection[str] = read(partial(turn_ids, session=session.id)) if session.turns else ()
    for number in (*session.ready, None):
        numbers: dict[int, bool] = read(partial(load_turn_numbers, session=session.id, number=number))
        if numbers:
            head = read(
                partial(load_head, session=session.id, number=number, owner=owner, reason=reason, dumped_at=wall)
            )
            pieces = encode(
                head,
                streamed_turns(read, session.id, numbers),
                _shards(gathered),
                incomplete=[*gathered.gone, *gathered.unreachable],
            )
            yield str(DumpName(session.name, number)), known, pieces


def _shards(gathered: Gathered) -> Iterator[StreamedShard]:
    for name, tensor in gathered.tensors.items():
        yield StreamedShard(name, StreamedTensor(tensor.form.dtype, tensor.form.shape, tensor.pieces()))


def streamed_turns(read: Read[Any], session: int, numbers: Mapping[int, bool]) -> Iterator[StreamedTurn]:
    """Turns for a file, by their numbers; each is read when it is asked for. `numbers` says whether it is context."""
    for number, context in numbers.items():
        yield read(partial(load_dumped_turn, session=session, number=number, context=context))
