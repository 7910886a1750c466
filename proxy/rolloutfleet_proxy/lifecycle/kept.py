"""The folder of sessions that are kept to be looked at: one file each, in the form of a dump, the oldest removed first.

What lies in it nobody trains and nobody imports, and it may be removed at any time.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from rolloutfleet.dumps.files import kept_name
from rolloutfleet.dumps.form import KEPT, DumpedSession, DumpHead, encode
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.dumping import streamed_turns
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.store.keeping import KeptTurn, load_turns
from rolloutfleet_proxy.store.store import Read

MOST_FILES: Final = 10_000
"""However small they are: with each copy all are looked through."""
_ENDING: Final = kept_name("")


class TooLarge(Exception):
    """The file alone would be larger than all of them may be."""


def kept_folder(settings: ProxySettings) -> Path:
    """Where this proxy's are."""
    return settings.kept_dir or settings.state_dir / "kept"


def keep(
    folder: DumpFolder,
    read: Read[Any],
    session: int,
    head: DumpedSession,
    *,
    owner: Owner,
    wall: float,
    most_bytes: int,
) -> None:
    """Write the file of a session, by its row id; it is durable then. Older ones go where there are too many, or all
    are too large together.

    `wall` is in seconds since the epoch. A turn is read at a time. For a worker thread; where it fails, no file is left
    of it: raises TooLarge, FolderFull, DumpConflict, OSError.
    """
    turns: list[KeptTurn] = read(partial(load_turns, session=session))
    name, ids = kept_name(head.session_id), {turn.turn_id for turn in turns}
    said = DumpHead(
        reason=KEPT, dumped_at=wall, ordinal=owner.ordinal, store_id=owner.store_id, session=head, trajectory=None
    )
    pieces = encode(said, streamed_turns(read, session, {turn.number: turn.discarded for turn in turns}))
    folder.write(name, _bounded(pieces, most_bytes), turns=ids)
    folder.sync()
    folder.remove(_too_much(folder.path, most_bytes, newest=name))


def _bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise TooLarge(f"it is larger than {most} bytes, which all together may have")
        yield piece


def _too_much(path: Path, most: int, *, newest: str) -> list[str]:
    """The oldest files, whose going leaves no more than `most` bytes, and MOST_FILES; the newest alone has no more."""
    with os.scandir(path) as entries:
        files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.name.endswith(_ENDING)]
    found = sorted(
        (name == newest, seen.st_mtime_ns, name, seen.st_size) for name, seen in files if stat.S_ISREG(seen.st_mode)
    )
    total, surplus = sum(size for *_, size in found), len(found) - MOST_FILES
    going: list[str] = []
    for *_, name, size in found:
        if total <= most and len(going) >= surplus:
            break
        going.append(name)
        total -= size
    return going
