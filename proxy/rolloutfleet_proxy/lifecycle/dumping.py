"""A session's rows as dump files: one for each closed trajectory that nobody took, one for what was still open."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rolloutfleet.dumps.files import DumpName
from rolloutfleet.dumps.form import DumpHead, StreamedShard, StreamedTensor, StreamedTurn, encode
from rolloutfleet_proxy.domain.stale import Due, GroupMember
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.contents import look
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.shards.files import Gathered
from rolloutfleet_proxy.store.damage import damaged_turns
from rolloutfleet_proxy.store.dumps import Draft, load_dumped_turn, load_head, load_turn_numbers, turn_ids
from rolloutfleet_proxy.store.store import Read

File = tuple[str, Collection[str], Iterator[bytes]]
"""(name, turn_ids of the whole session, content)."""

_NONE = Gathered()


class UnreadableDump(Exception):
    """A file that was written is no whole dump when it is read back; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of dumping sessions."""

    files: list[str] = field(default_factory=list)
    """Their names; none where there are no turns."""
    damaged: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the turns that are in no file, as the disk has damaged them or what they extend, by session's row."""
    drafts: list[Draft] = field(default_factory=list)
    """As `drafts_of` has them."""


def drafts_of(chosen: Due, wall: float) -> list[Draft]:
    """The files that dumping it at `wall` may write."""
    return [Draft(str(DumpName(session.name, number)), wall) for session in chosen.to_dump for number in session.parts]


def dump(
    folder: DumpFolder,
    read: Read[Any],
    chosen: Due,
    *,
    owner: Owner,
    wall: float,
    shards: Mapping[int, Gathered] | None = None,
) -> Written:
    """Write the files of the sessions that were chosen, and read each back.

    `wall` is in seconds since the epoch; `shards` are what was gathered for sessions, by row id, and go into each of
    their files, which are marked where some could not be had. A turn is read at a time, so a long session is never
    whole in memory. The files are durable once the folder was synced. Where this fails, what had been written is
    removed: raises FolderFull, OSError, DumpConflict, UnreadableDump.
    """
    written = Written(drafts=drafts_of(chosen, wall))
    try:
        for session in chosen.to_dump:
            gathered = (shards or {}).get(session.id, _NONE)
            damaged = written.damaged.setdefault(session.id, [])
            asked = partial(_files, read, session, gathered, damaged=damaged)
            for name, turns, pieces in asked(reason=chosen.reason, owner=owner, wall=wall):
                folder.write(name, pieces, turns=turns, check=partial(_check, name=name))
                written.files.append(name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(written.files)
        raise
    return written


def _check(file: Path, name: str) -> None:
    problems = look(file, name).problems
    if problems:
        raise UnreadableDump(f"{name}, read back: {'; '.join(problems)}")


def _files(
    read: Read[Any],
    session: GroupMember,
    gathered: Gathered,
    *,
    damaged: list[int],
    reason: str,
    owner: Owner,
    wall: float,
) -> Iterator[File]:
    """`damaged` gets the numbers of turns that are in none of them."""
    known: Collection[str] = read(partial(turn_ids, session=session.id)) if session.turns else ()
    for number in session.parts:
        numbers: dict[int, bool] = read(partial(load_turn_numbers, session=session.id, number=number))
        bad = read(partial(damaged_turns, session=session.id, numbers=numbers))
        damaged += [turn for turn in bad if not numbers[turn]]
        numbers = {turn: context for turn, context in numbers.items() if turn not in bad}
        if not all(numbers.values()):
            head: DumpHead = read(
                partial(load_head, session=session.id, number=number, owner=owner, reason=reason, dumped_at=wall)
            )
            pieces = encode(
                head.model_copy(update={"damaged": bad}),
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
