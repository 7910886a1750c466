"""Disk space that is held so that a full disk can be emptied: a file that holds nothing, given up for what frees.

What frees writes first: rows that go leave changed pages, in the log before the store's file and, at the next
checkpoint, in the file itself. On a disk that others filled to its last byte there is no room for that. The file is
given up before such a write is tried again, and taken again behind it; and whenever a piece of it is missing, as soon
as there is room.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

FILE: Final = "reserve"
MOST: Final = 64 << 20
"""Bytes: what a checkpoint may add to the store's file (`database.MOST_LOGGED`), and several times what is logged when
sessions go (`remains.TURNS_AT_ONCE`), or when a long one is closed, which is about a page for each of its turns."""
SHARE: Final = 0.125
"""Of a small disk."""
_STEP: Final = 64 << 10
"""Bytes of room that are worth taking, unless they are all that is missing."""


def reserve_of(disk: int) -> int:
    """Bytes that are held on a disk of so many."""
    return min(MOST, int(SHARE * disk))


class Reserve:
    """Space on the disk of a store's folder. Used by one thread at a time: the one that opens the store, then the one
    that writes to it; `owed` may be read by all."""

    def __init__(self, file: Path, size: int) -> None:
        self.size = size
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.held = os.fstat(self._file).st_blocks * 512
        if self.held > size:
            self.give_up()
        self.take()

    @classmethod
    def on(cls, folder: Path) -> "Reserve":
        """The reserve of a store's folder, which is made where it is not there. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder / FILE, reserve_of(shutil.disk_usage(folder).total))

    @property
    def owed(self) -> int:
        """Bytes that are missing of it."""
        return max(0, self.size - self.held)

    def give_up(self) -> bool:
        """Let the disk have it; False where nothing of it is left. Room of a freed file is there at once."""
        had = self.held > 0
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            self.held = 0
        return had

    def take(self) -> None:
        """Take what is missing, or as much of it as there is room for."""
        more = min(self.owed, self._room())
        while more >= _STEP or 0 < more == self.owed:
            try:
                os.posix_fallocate(self._file, self.held, more)
            except OSError:
                # Some file systems keep a part, and a disk has less room than it says where blocks are spent on maps.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self.held)
                more //= 2
            else:
                self.held += more
                return

    def close(self) -> None:
        """Leave it to the next process: what it holds is kept."""
        os.close(self._file)

    def _room(self) -> int:
        disk = os.fstatvfs(self._file)
        return disk.f_bavail * disk.f_frsize
