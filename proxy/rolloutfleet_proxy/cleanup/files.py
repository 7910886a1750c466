"""The folder of dumps: files appear in it whole and durable, and none is ever overwritten by less."""

import contextlib
import errno
import os
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps import Damaged, DumpedTurn, open_dump, parse_dump_name, read
from rolloutfleet_proxy import failpoints

_UNFINISHED: Final = ".tmp"


class DumpConflict(Exception):
    """A file is there already that holds more than the one to be written; it stays."""


class FolderFull(Exception):
    """The disk has no room for the file; what it would have held is kept until there is."""


class DumpWriter:
    """Writes into the folder of dumps. Several proxies may share one: the names of sessions keep them apart."""

    def __init__(self, path: Path, *, ordinal: int, owed: Callable[[], int] = lambda: 0) -> None:
        """`owed` says how many bytes of the disk are not for dumps, however much room there is."""
        self.path = path
        self._prefix = f".{ordinal}-"
        self._owed = owed

    def write(self, name: str, pieces: Iterable[bytes], *, turns: Container[str]) -> None:
        """Write a file; it is there under its name as a whole or not at all. Durable with the next `sync`.

        `turns` are the turn_ids that it holds. A file of that name is of an earlier attempt that came to nothing, and
        is replaced; one that holds other turns stays, and DumpConflict is raised. Raises FolderFull, OSError.
        """
        unfinished = self.path / f"{self._prefix}{name}{_UNFINISHED}"
        try:
            with _no_room_said(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._write(unfinished, pieces)
            self._check_replaceable(name, turns)
            unfinished.rename(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        failpoints.reach(failpoints.AFTER_RENAME)

    def _write(self, unfinished: Path, pieces: Iterable[bytes]) -> None:
        # A new file, never one that somebody put there, nor where a link of that name leads.
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb", buffering=1 << 20) as file:
            for piece in pieces:
                self._check_room(file, len(piece))
                file.write(piece)
                failpoints.reach(failpoints.MID_DUMP)
            file.flush()
            os.fsync(file.fileno())

    def _check_room(self, file: BinaryIO, nbytes: int) -> None:
        owed = self._owed()
        if owed:
            disk = os.fstatvfs(file.fileno())
            free = disk.f_bavail * disk.f_frsize
            if free < owed + nbytes:
                raise FolderFull(
                    f"the disk of {self.path} has {free} bytes left, and {owed} of them are owed to the store"
                )

    def sync(self) -> None:
        """Make the names of what was written durable. Raises OSError."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are there. Raises OSError."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> int:
        """Remove what a crash left of files being written; returns how many. Raises OSError."""
        left = [name for name in self._names() if name.startswith(self._prefix) and name.endswith(_UNFINISHED)]
        self.remove(left)
        return len(left)

    def dumps(self) -> list[str]:
        """Names of the dumps that nobody imported. Raises OSError."""
        return [name for name in self._names() if parse_dump_name(name) is not None]

    def holds_only(self, name: str, turns: Container[str]) -> bool:
        """Whether every turn of a dump, but for its context, is one of these.

        One that is no dump, or no file, may hold others. Raises OSError.
        """
        with contextlib.suppress(Damaged), open_dump(self.path / name) as file:
            return all(turn in turns for turn in _turn_ids(file))
        return False

    def _check_replaceable(self, name: str, turns: Container[str]) -> None:
        if os.path.lexists(self.path / name) and not self.holds_only(name, turns):
            raise DumpConflict(
                f"{self.path / name} is there already and holds turns that its session here has not; move it away"
            )

    def _names(self) -> list[str]:
        return [path.name for path in self.path.iterdir()] if self.path.exists() else []


@contextlib.contextmanager
def _no_room_said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FolderFull(f"the disk of {folder} is full ({errno.errorcode[error.errno]})") from None


def _turn_ids(file: BinaryIO) -> Iterator[str]:
    return (part.turn_id for part in read(file) if isinstance(part, DumpedTurn) and not part.context)
