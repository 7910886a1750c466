"""What is removed from the folder of dumps: what is too old or too much, the oldest first, and what a crash left there.

Age is counted in seconds served since a sweep wrote a file, or first saw it, so a clock that is set removes nothing.

A crash leaves files half written, and whole ones whose session was not freed. The second kind holds what the store
still has; were it left, it could be imported beside it, or stay when the session goes on and is dumped anew. It is
removed where all of its turns are in the store, and else left to a person.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rolloutfleet.dumps import parse_dump_name
from rolloutfleet_proxy.lifecycle.folder import IMPORTING, DumpFolder, Listed
from rolloutfleet_proxy.store.dumps import never_imported, turn_ids
from rolloutfleet_proxy.store.store import Read
from rolloutfleet_proxy.telemetry import logger

_AT_ONCE: Final = 1000
"""Names that are looked up in one read."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A file in the folder of dumps."""

    file: str
    bytes: int
    since: float
    """Served seconds at the sweep that wrote it, or that first saw it."""


def removable(
    files: Sequence[Kept], *, now: float, age: float | None, most_bytes: int | None, this_sweep: float
) -> list[str]:
    """Which files go, oldest first. What this sweep wrote stays; for bytes' sake, so does what the newest one wrote."""
    newest = min(this_sweep, max((file.since for file in files), default=0.0))
    total = sum(file.bytes for file in files)
    going = []
    for file in sorted(files, key=lambda file: (file.since, file.file)):
        too_old = age is not None and now - file.since >= age and file.since < this_sweep
        too_much = most_bytes is not None and total > most_bytes and file.since < newest
        if too_old or too_much:
            going.append(file.file)
            total -= file.bytes
    return going


def kept(listed: Iterable[Listed], known: Mapping[str, float], *, ordinal: int, now: float) -> list[Kept]:
    """The files that a proxy may remove: its own ordinal's and those it wrote, but for those being imported. What is
    no file, a link or a folder of such a name, is nothing that a proxy wrote.

    `known` says since when it knows a file; an imported one is as old as the dump that it was.
    """
    own = f"s{ordinal}-"
    return [
        Kept(each.file, each.bytes, known.get(each.file, known.get(str(each.name), now)))
        for each in listed
        if each.regular and each.state != IMPORTING and (each.file.startswith(own) or str(each.name) in known)
    ]


def tidy(folder: DumpFolder, read: Read[Any]) -> None:
    """Remove what earlier processes of this proxy left behind. For a worker thread; raises OSError."""
    unfinished = folder.remove_unfinished()
    if unfinished:
        logger.info("removed %d dump files that a crash left half written", unfinished)
    names = folder.dumps()
    for place in range(0, len(names), _AT_ONCE):
        for name, session in _still_there(read, names[place : place + _AT_ONCE]):
            _remove(folder, name, read(partial(turn_ids, session=session)))


def _remove(folder: DumpFolder, name: str, turns: frozenset[str]) -> None:
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


def _still_there(read: Read[Any], names: Sequence[str]) -> list[tuple[str, int]]:
    """(dump, row id) where the dump's session is in the store."""
    sessions = {name: parsed.session_id for name in names if (parsed := parse_dump_name(name))}
    there = read(partial(never_imported, names=set(sessions.values())))
    return [(name, there[session]) for name, session in sessions.items() if session in there]
