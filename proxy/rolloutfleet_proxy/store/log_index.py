"""The index of the log: a file beside it, whose pages SQLite maps and its connections share as memory.

SQLite makes that file longer by one byte in each 4 KiB, so that every page of it has room on the disk. Where a file
system's blocks are smaller than that, as ext4's are on a disk of less than 512 MB, only a part of the page gets its
room. The rest is asked for when SQLite writes there: on a disk that is full, the process then ends with SIGBUS. So
the file gets all of its blocks before SQLite opens it. The first connection would empty it again, unless another has
it open; the lock by which that is told is held here, too. (sqlite.org/walformat.html, 2.3: WAL-Index Locks)
"""

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

PAGE: Final = 4096
"""Bytes: in each of them SQLite writes one."""
LONGEST: Final = 512 << 20
"""Bytes of the log whose index gets its blocks; larger disks have larger blocks, if nobody chose otherwise."""
_REGION: Final = 32 << 10
"""Bytes by which SQLite makes the file longer."""
_PAGES_INDEXED: Final = 4062
"""Pages of the log that the first region is for; further ones are for a few more."""
_IN_USE: Final = 128
"""The byte that each connection keeps locked: the dead man's switch."""


def size_for(disk: int) -> int:
    """Bytes of the index of a log that takes all of a disk of so many, or is the longest."""
    return _REGION * (min(disk, LONGEST) // PAGE // _PAGES_INDEXED + 1)


def hold(file: Path) -> int | None:
    """Give the index its blocks. Returns a descriptor, to be closed behind the last connection: closed earlier, it
    takes SQLite's own locks with it. None where the file system's blocks are large enough, and where it has no such
    locks: SQLite makes the file by itself, then.

    Raises OSError where there is no room.
    """
    disk = os.statvfs(file.parent)
    if disk.f_frsize >= PAGE:
        return None
    index = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        # Somebody may be reading the store: then the index is in use, and stays as it is.
        with contextlib.suppress(BlockingIOError, PermissionError):
            _lock(index, fcntl.F_WRLCK)
            os.ftruncate(index, 0)
        os.posix_fallocate(index, 0, size_for(disk.f_blocks * disk.f_frsize))
        _lock(index, fcntl.F_RDLCK)
    except OSError as error:
        os.close(index)
        if error.errno == errno.ENOSPC:
            raise
        return None
    return index


def _lock(index: int, kind: int) -> None:
    """Lock the byte of those in use. The lock is the descriptor's, not the process's: SQLite heeds it here as well."""
    fcntl.fcntl(index, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, _IN_USE, 1, 0))
