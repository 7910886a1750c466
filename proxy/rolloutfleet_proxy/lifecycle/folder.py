"""The folder of dumps: what lies in it, and the renames by which a file is taken out of it once.

    {name}                              can be imported
    {name}.importing-{ordinal}-{store}  that proxy is importing it, or died while it did
    {name}.imported                     has been imported; kept as long as dumps are kept, and never read again

A rename is atomic, so of several proxies over one folder one gets the file. Everything else in the folder is ignored.
Files appear in it whole and durable, and none is ever overwritten by less.
"""

import contextlib
import errno
import heapq
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps.files import CLAIM_MARK, IMPORTED_MARK, DumpName, glance, open_dump, parse_dump_name
from rolloutfleet.dumps.form import Damaged, DumpedTurn
from rolloutfleet.dumps.reading import read, read_head
from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec_for_proxies import DUMP_ROOT
from rolloutfleet.wire import DumpState, Glance
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store.dumps import Draft
from rolloutfleet_proxy.telemetry import logger

READY: Final = "ready"
IMPORTING: Final = "importing"
IMPORTED: Final = "imported"

_UNFINISHED: Final = ".tmp"


class NotClaimed(Exception):
    """The file could not be claimed: `state` says what it is instead, None that it is not there."""

    def __init__(self, name: str, state: DumpState | None) -> None:
        super().__init__(name)
        self.state = state


class DumpConflict(Exception):
    """A file is there already that holds more than the one to be written; it stays."""


class FolderFull(Exception):
    """The disk has no room for the file; what it would have held is kept until there is."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of the folder."""

    file: str
    """Its name, whatever mark is behind the dump's."""
    name: DumpName
    state: DumpState
    bytes: int
    modified: float
    """Seconds since the epoch."""
    regular: bool
    """It is a file, and no link, folder or pipe of that name."""
    head: Glance | None
    """What its first line says; None where that was not read."""


def folder_of(settings: ProxySettings) -> Path | None:
    """Where this proxy's dumps are; None where its sessions are not dumped."""
    path = settings.sessions.dump.path
    if not path:
        return None
    root = settings.dump_dir or settings.state_dir / "dumps"
    return root / path.removeprefix(DUMP_ROOT).lstrip("/")


def is_shared(settings: ProxySettings) -> bool:
    """Whether the resource names the dumps' volume: others may be meant to read it, by its group."""
    return settings.sessions.dump.volume is not None


class DumpFolder:
    """A folder of dumps as one proxy sees it. All of it reads or writes the disk: call it from a worker thread.

    Several proxies may share one: the names of sessions keep them apart.
    """

    def __init__(
        self, path: Path | None, own: Owner, *, owed: Callable[[], int] = lambda: 0, shared: bool = False
    ) -> None:
        """`owed` says how many bytes of the disk are not for dumps, however much room there is. What is written is also
        for the group of a folder that is `shared`."""
        self._path = path
        self._shared = shared
        self._owed = owed
        self._prefix = f".{own.ordinal}-"
        """Of names of files that are being written."""
        self._claim = f"{CLAIM_MARK}{own.ordinal}-{own.store_id}"

    @property
    def path(self) -> Path:
        """Raises FileNotFoundError where nothing is dumped."""
        if self._path is None:
            raise FileNotFoundError("there is no folder of dumps")
        return self._path

    def listed(self, *, after: str, limit: int, state: str | None = None, heads: bool = False) -> list[Listed]:
        """Files in order of their names, from behind the file `after` on. A folder that is not there is empty.

        With `heads` each is opened, and its first line read; what is wrong with one is its own fault.
        """
        entries = (found for found in self._entries() if found[2].name > after and state in (None, found[1]))
        listed = []
        for name, held, file in heapq.nsmallest(limit, entries, key=lambda found: found[2].name):
            with contextlib.suppress(FileNotFoundError):
                seen = file.lstat()
                regular = stat.S_ISREG(seen.st_mode)
                size, head = seen.st_size if regular else 0, glance(file) if heads else None
                listed.append(Listed(file.name, name, held, size, seen.st_mtime, regular, head))
        return listed

    def open(self, name: DumpName) -> BinaryIO | None:
        """The file of this name, whatever its state; None where there is none. Raises Damaged where it is no file."""
        for _ in range(2):
            # A second look, as it may have been renamed during the first.
            for file in self._files(name):
                with contextlib.suppress(FileNotFoundError):
                    return open_dump(file)
        return None

    def state(self, name: DumpName) -> DumpState | None:
        """What may be done with the file of this name; None where there is none."""
        if self._path is None:
            return None
        if os.path.lexists(self.ready_file(name)):
            return READY
        if self._claims(name):
            return IMPORTING
        return IMPORTED if os.path.lexists(self._imported(name)) else None

    def claim(self, name: DumpName) -> None:
        """Take the file for this proxy; `finish` or `give_back` follows. Raises NotClaimed where it can't be had."""
        try:
            self._rename(self.ready_file(name), self.claimed_file(name))
        except FileNotFoundError:
            raise NotClaimed(str(name), self.state(name)) from None

    def finish(self, name: DumpName) -> None:
        """What was claimed has been imported."""
        self._rename(self.claimed_file(name), self._imported(name))

    def give_back(self, name: DumpName) -> None:
        """What was claimed can be imported again. Another file that has its name by now stays; then it stays claimed.

        Raises FileExistsError for that.
        """
        ready, claimed = self.ready_file(name), self.claimed_file(name)
        if os.path.lexists(ready):
            raise FileExistsError(f"{ready} is there again; {claimed} was not put in its place")
        self._rename(claimed, ready)

    def claimed(self) -> list[DumpName]:
        """What this proxy has claimed and neither finished nor given back."""
        return [name for name, _, file in self._entries() if file.name == f"{name}{self._claim}"]

    def _entries(self) -> Iterator[tuple[DumpName, DumpState, Path]]:
        if self._path is None:
            return
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                found = _parsed(entry.name)
                if found is not None:
                    yield *found, Path(entry.path)

    def _files(self, name: DumpName) -> Iterator[Path]:
        if self._path is not None:
            yield self.ready_file(name)
            yield from self._claims(name)
            yield self._imported(name)

    def _claims(self, name: DumpName) -> list[Path]:
        # Names of dumps hold nothing that a pattern takes for more than itself.
        return list(self.path.glob(f"{name}{CLAIM_MARK}*"))

    def ready_file(self, name: DumpName) -> Path:
        """Where it is while it can be imported. Raises FileNotFoundError without a folder."""
        return self.path / str(name)

    def claimed_file(self, name: DumpName) -> Path:
        """Where it is while this proxy has claimed it. Raises FileNotFoundError without a folder."""
        return self.path / f"{name}{self._claim}"

    def _imported(self, name: DumpName) -> Path:
        return self.path / f"{name}{IMPORTED_MARK}"

    def _rename(self, before: Path, after: Path) -> None:
        before.rename(after)
        _sync(before.parent)

    def write(
        self,
        name: str,
        pieces: Iterable[bytes],
        *,
        turns: Container[str],
        check: Callable[[Path], None] = lambda file: None,
    ) -> None:
        """Write a file; it is there under its name as a whole or not at all. Durable with the next `sync`.

        `check` may read it back from the disk, and raise what keeps it from its name.

        `turns` are the turn_ids that it holds. A file of that name is of an earlier attempt that came to nothing, and
        is replaced; one that holds other turns stays, and DumpConflict is raised. Raises FolderFull, OSError.
        """
        unfinished = self.path / f"{self._prefix}{name}{_UNFINISHED}"
        try:
            with _no_room_said(self.path):
                self._make()
                self._write(unfinished, pieces)
            check(unfinished)
            self._check_replaceable(name, turns)
            unfinished.rename(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        failpoints.reach(failpoints.AFTER_RENAME)

    def _make(self) -> None:
        """As `mkdir` with its parents, with the rights that it is to have whatever the process's mask is."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            if self._shared:
                folder.chmod(0o770)

    def _write(self, unfinished: Path, pieces: Iterable[bytes]) -> None:
        # A new file, never one that somebody put there, nor where a link of that name leads.
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb", buffering=1 << 20) as file:
            if self._shared:
                os.fchmod(file.fileno(), 0o660)
            for piece in pieces:
                self._check_room(file, len(piece))
                file.write(piece)
                failpoints.reach(failpoints.MID_DUMP)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                # Whoever reads it back is to get what the disk has, not what is still in memory.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

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
        _sync(self.path)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are there. Raises OSError."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> int:
        """Remove what a crash left of files being written; returns how many. Raises OSError."""
        left = [path.name for path in self.path.glob(f"{self._prefix}*{_UNFINISHED}")]
        self.remove(left)
        return len(left)

    def remove_drafts(self, drafts: Iterable[Draft]) -> None:
        """Remove those of them that are there, durably. Raises OSError."""
        removed = False
        for draft in drafts:
            with contextlib.suppress(FileNotFoundError, Damaged), open_dump(self.path / draft.file) as file:
                if read_head(file).dumped_at == draft.dumped_at:
                    self.remove([draft.file])
                    logger.info("removed dump %s: its session had not been freed", draft.file)
                    removed = True
        if removed:
            self.sync()

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


def _sync(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parsed(file: str) -> tuple[DumpName, DumpState] | None:
    plain, claim, _ = file.partition(CLAIM_MARK)
    state: DumpState = IMPORTING if claim else IMPORTED if file.endswith(IMPORTED_MARK) else READY
    name = parse_dump_name(plain.removesuffix(IMPORTED_MARK))
    return None if name is None else (name, state)


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
