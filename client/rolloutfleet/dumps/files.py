"""Files in a folder of dumps, where anything may lie: others write there too.

A dump is a regular file. A link would show what it leads to, a pipe would never end; neither is opened.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps.form import Damaged, DumpHead
from rolloutfleet.dumps.reading import read_head

NAME_LIMIT: Final = 1024
"""Characters of a name that a head may show in a list; a task_id has up to 512."""

_NO_FILE: Final = (errno.ELOOP, errno.ENXIO)
"""What opening a link says that is not followed, and opening a socket."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What a list shows of a dump's head. `fault` is why it shows nothing; it is None where nothing is wrong."""

    group_id: str | None = None
    task_id: str | None = None
    reason: str | None = None
    dumped_at: float | None = None
    """Seconds since the epoch."""
    fault: str | None = None


def open_dump(file: Path) -> BinaryIO:
    """Open a regular file, and nothing else. Raises Damaged where it is something else, OSError."""
    try:
        # Without a wait for somebody who writes to it, if it is a pipe.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _irregular() from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular()
    return os.fdopen(descriptor, "rb")


def glance(file: Path) -> Glance:
    """What its first line says, whatever is wrong with it. Raises FileNotFoundError alone."""
    try:
        with open_dump(file) as opened:
            return _shown(read_head(opened))
    except FileNotFoundError:
        raise
    except Damaged as error:
        return Glance(fault=str(error))
    except OSError as error:
        return Glance(fault=f"it can't be read: {error.strerror}")


def _shown(head: DumpHead) -> Glance:
    session = head.session
    if max(len(session.group_id), len(session.task_id or ""), len(head.reason)) > NAME_LIMIT:
        return Glance(fault=f"its first line has a name of more than {NAME_LIMIT} characters")
    return Glance(session.group_id, session.task_id, head.reason, head.dumped_at)


def _irregular() -> Damaged:
    return Damaged("it is no regular file")
