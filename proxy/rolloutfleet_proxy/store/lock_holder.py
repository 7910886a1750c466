"""The process that has a store locked, for people to read.

In WAL mode a writer holds byte 120 of the file beside the log (sqlite.org/walformat.html, 2.3: WAL_WRITE_LOCK), and
Linux says in /proc/locks who holds what. It names no process of another PID namespace.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOCKS: Final = Path("/proc/locks")
_WRITE_LOCK: Final = 120


def holder(lines: Iterable[str], inode: int) -> int | None:
    """The process that holds the write lock of the file of that inode, as lines of /proc/locks have it.

    `35: POSIX  ADVISORY  WRITE 4711 fe:00:1234 120 120`
    """
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, file, first, last] if file.endswith(f":{inode}"):
                if int(first) <= _WRITE_LOCK <= (int(last) if last.isdigit() else _WRITE_LOCK) and int(pid) > 0:
                    return int(pid)
    return None


def named_holder(store: Path) -> str:
    """Who has a store's file locked: `process 4711 (sqlite3)`, where that can be told."""
    try:
        pid = holder(LOCKS.read_text().splitlines(), Path(f"{store}-shm").stat().st_ino)
        return "another program" if pid is None else f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return "another program"
