"""A folder of parts that survives a kill at any moment.

A part is written under a hidden name and gets its own once it is on disk. Two kinds of hidden notes say what the fleet
must still be told, so that the next run can tell it:

- `.part-N.taken.json`, on disk before the part has its name and removed once the fleet has heard: what the part holds.
  Its trajectories are acknowledged again; where the part never got its name, the note counts for nothing.
- `.held.json`, there while a run is under way: what is leased and stands in no finished part. It is given back, so that
  it comes again at once.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rolloutfleet.files.forms import FileForm, PartWriter, part_writer
from rolloutfleet.fleet.leases import by_lease
from rolloutfleet.fleet.trajectories import LeasedName, Trajectory

HELD: Final = ".held.json"
LOCK: Final = ".lock"
_PART: Final = re.compile(r"part-(\d{5,})\.(\w+(?:\.jsonl)?)")
_DRAFT: Final = ".part-*.draft"
_NOTE: Final = ".part-*.taken.json"


class FolderInUse(Exception):
    """Another export writes to the folder."""


class WrongFolder(Exception):
    """The folder can't take this export; the message says why."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a finished part holds, until the fleet has heard of it."""

    note: Path
    trajectories: tuple[LeasedName, ...]


class Part:
    """One file that is being written."""

    def __init__(self, folder: Path, number: int, form: FileForm) -> None:
        self.file = folder / f"part-{number:05d}.{form.ending}"
        self.note = folder / f".part-{number:05d}.taken.json"
        self.trajectories: list[LeasedName] = []
        self._draft = folder / f".part-{number:05d}.draft"
        self._writer: PartWriter = part_writer(form, self._draft)

    @property
    def written(self) -> int:
        """Bytes so far, before any compression."""
        return self._writer.written

    def add(self, trajectory: Trajectory) -> None:
        """Raises PartFull, OSError."""
        self._writer.add(trajectory)
        self.trajectories.append(LeasedName(trajectory.trajectory_id, trajectory.lease_id))

    def finish(self) -> Taken:
        """It is durable, under its own name, when this returns. Raises OSError."""
        self._writer.close()
        sync(self._draft)
        _write(self.note, by_lease(self.trajectories), durably=True)
        self._draft.replace(self.file)
        sync(self.file.parent)
        return Taken(self.note, tuple(self.trajectories))

    def discard(self) -> None:
        self._writer.abandon()
        self._draft.unlink(missing_ok=True)


class ExportFolder:
    """One export's at a time; `with` holds it."""

    def __init__(self, folder: Path, form: FileForm) -> None:
        self.folder = folder
        self._form = form
        self._lock: int | None = None
        self._next = 0

    def __enter__(self) -> Self:
        """Raises FolderInUse, WrongFolder, OSError."""
        if self.folder.exists() and not self.folder.is_dir():
            raise WrongFolder(f"{self.folder} is a file; name a folder, which the parts are put in")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take_over(self._lock)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_over(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another export writes to {self.folder}") from None
        for file in self.folder.iterdir():
            found = _PART.fullmatch(file.name)
            if found is None:
                continue
            if found[2] != self._form.ending:
                raise WrongFolder(f"{self.folder} has {found[2]} parts; name another folder for {self._form}")
            self._next = max(self._next, int(found[1]) + 1)
        for draft in self.folder.glob(_DRAFT):
            draft.unlink()

    # What an earlier run left

    def taken(self) -> list[Taken]:
        """Of parts that are finished, and that the fleet may not have heard of. Other notes are removed."""
        found = []
        for note in sorted(self.folder.glob(_NOTE)):
            part = self.folder / f"{note.name.removeprefix('.').removesuffix('.taken.json')}.{self._form.ending}"
            if part.exists():
                found.append(Taken(note, _entries(note)))
            else:
                note.unlink()
        return found

    def held(self) -> tuple[LeasedName, ...]:
        """What an earlier run had leased and not written."""
        return _entries(self.folder / HELD)

    def was_killed(self) -> bool:
        """Whether an earlier run ended without its own doing."""
        return (self.folder / HELD).exists()

    # This run

    def begin(self) -> Part:
        """The next part. Raises OSError, MissingLibrary."""
        part = Part(self.folder, self._next, self._form)
        self._next += 1
        return part

    def hold(self, leased: Mapping[str, Iterable[str]]) -> None:
        """Note what is leased now and in no finished part."""
        _write(self.folder / HELD, {lease: sorted(names) for lease, names in leased.items()}, durably=False)

    def let_go(self) -> None:
        """Nothing is leased any more."""
        (self.folder / HELD).unlink(missing_ok=True)

    def heard(self, taken: Taken) -> None:
        """The fleet knows what stands in this part."""
        taken.note.unlink(missing_ok=True)


def _entries(note: Path) -> tuple[LeasedName, ...]:
    """None where the note is missing or was cut short: what it would have told comes again when its lease ends."""
    try:
        found: Any = json.loads(note.read_text(encoding="utf-8"))
        return tuple(LeasedName(str(name), str(lease)) for lease, names in found.items() for name in names)
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return ()


def _write(file: Path, value: object, *, durably: bool) -> None:
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(json.dumps(value), encoding="utf-8")
    if durably:
        sync(draft)
    draft.replace(file)


def sync(path: Path) -> None:
    """What is in a file, or which files are in a folder, is on disk when this returns. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
