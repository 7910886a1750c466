"""Logs of the processes that tests start: what a test that fails shows of them."""

import os
from pathlib import Path
from typing import Final

LINES: Final = 20
MOST_BYTES: Final = 1 << 16
"""Read from the end of a log: its last lines, however long it is."""

_started: list[Path] = []
_running: set[Path] = set()


def started(log: Path) -> None:
    """Note a process that has just been started. A log may be a folder, of a process that starts others."""
    _started.append(log)
    _running.add(log)


def ended(log: Path) -> None:
    """Note that a process is not there for later tests."""
    _running.discard(log)


def so_far() -> int:
    """How many have been started: what `tails` is given, to tell a test's own processes from those before."""
    return len(_started)


def tails(since: int) -> list[tuple[Path, str]]:
    """Last lines of each log, once: of processes that were started since, and of those before that still run."""
    chosen = [log for number, log in enumerate(_started) if number >= since or log in _running]
    files = [file for log in chosen for file in (sorted(log.glob("*.log")) if log.is_dir() else [log])]
    return [(file, tail) for file in dict.fromkeys(files) if (tail := _tail(file))]


def _tail(file: Path) -> str:
    """Empty: nothing is there, or no more."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-LINES:])
    except OSError:
        return ""
