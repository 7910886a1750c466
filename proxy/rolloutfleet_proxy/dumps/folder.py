"""The folder of dumps: what lies in it, and the renames by which a file is taken out of it once.

    {name}                              can be imported
    {name}.importing-{ordinal}-{store}  that proxy is importing it, or died while it did
    {name}.imported                     has been imported; kept as long as dumps are kept, and never read again

A rename is atomic, so of several proxies over one folder one gets the file. Everything else in the folder is ignored.
"""

import contextlib
import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps import CLAIM_MARK, IMPORTED_MARK, DumpName, Glance, glance, open_dump, parse_dump_name
from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec import DUMP_ROOT
from rolloutfleet.wire import DumpState
from rolloutfleet_proxy.ids import Owner

READY: Final = "ready"
IMPORTING: Final = "importing"
IMPORTED: Final = "imported"


class NotClaimed(Exception):
    """The file could not be claimed: `state` says what it is instead, None that it is not there."""

    def __init__(self, name: str, state: DumpState | None) -> None:
        super().__init__(name)
        self.name = name
        self.state = state


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


class DumpFolder:
    """A folder of dumps as one proxy sees it. All of it reads or writes the disk: call it from a worker thread."""

    def __init__(self, path: Path | None, own: Owner) -> None:
        self._path = path
        self._claim = f"{CLAIM_MARK}{own.ordinal}-{own.store_id}"

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
        if os.path.lexists(self._path / str(name)):
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
        return [] if self._path is None else list(self._path.glob(f"{name}{CLAIM_MARK}*"))

    def ready_file(self, name: DumpName) -> Path:
        """Where it is while it can be imported. Raises FileNotFoundError without a folder."""
        return self._in_folder(name, "")

    def claimed_file(self, name: DumpName) -> Path:
        """Where it is while this proxy has claimed it. Raises FileNotFoundError without a folder."""
        return self._in_folder(name, self._claim)

    def _imported(self, name: DumpName) -> Path:
        return self._in_folder(name, IMPORTED_MARK)

    def _in_folder(self, name: DumpName, mark: str) -> Path:
        if self._path is None:
            raise FileNotFoundError(f"{name}: there is no folder of dumps")
        return self._path / f"{name}{mark}"

    def _rename(self, before: Path, after: Path) -> None:
        before.rename(after)
        folder = os.open(before.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _parsed(file: str) -> tuple[DumpName, DumpState] | None:
    plain, claim, _ = file.partition(CLAIM_MARK)
    state: DumpState = IMPORTING if claim else IMPORTED if file.endswith(IMPORTED_MARK) else READY
    name = parse_dump_name(plain.removesuffix(IMPORTED_MARK))
    return None if name is None else (name, state)
