"""Files in a folder of dumps, where anything may lie: others write there too.

A dump is a regular file. A link would show what it leads to, a pipe would never end; neither is opened.

Their names follow from ids that a server made, so nothing else can be asked for by name.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps.form import KEPT, Damaged, DumpHead
from rolloutfleet.dumps.reading import read_head
from rolloutfleet.wire import Glance

ACTIVE: Final = "active"
"""What stands for a trajectory's number in the name of the dump of what was still open."""
IMPORTED_MARK: Final = ".imported"
"""Follows the name of a file that a fleet has taken in again."""
CLAIM_MARK: Final = ".importing-"
"""Follows the name of a file that a proxy is taking in; behind it come that proxy's ordinal, `-` and its store's id."""

_NAME = re.compile(r"(s(?:0|[1-9]\d{0,5})-[0-9a-f]{12}-[0-9a-f]{16})-(?:active|trajectory-([1-9]\d{0,8}))\.json")


@dataclass(frozen=True, slots=True)
class DumpName:
    """What a dump's name says; as text `{session_id}-trajectory-{n}.json` or `{session_id}-active.json`."""

    session_id: str
    number: int | None
    """Of the trajectory; None for what was still open."""

    @property
    def ordinal(self) -> int:
        """Of the proxy that the session's id names."""
        return int(self.session_id.partition("-")[0][1:])

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.session_id}-{ACTIVE}.json"
        return f"{self.session_id}-trajectory-{self.number}.json"


def parse_dump_name(name: str) -> DumpName | None:
    """What a file's name says, without any mark behind it; None where it is not a name of a dump."""
    found = _NAME.fullmatch(name)
    return None if found is None else DumpName(found[1], None if found[2] is None else int(found[2]))


def dump_names(session_id: str, *, trajectories: Iterable[int] = (), active: bool = False) -> list[str]:
    """The files that a session is dumped to: one for each of its closed trajectories, one for the rest."""
    return [str(DumpName(session_id, number)) for number in [*trajectories, *([None] if active else [])]]


def kept_name(session_id: str) -> str:
    """The file of a session that is kept to be looked at. It is no dump's name, so nobody imports it."""
    return f"{session_id}-{KEPT}.json"


NAME_LIMIT: Final = 1024
"""Characters of a name that a head may show in a list; a task_id has up to 512."""

_NO_FILE: Final = (errno.ELOOP, errno.ENXIO)
"""What opening a link says that is not followed, and opening a socket."""


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
    group, task = session.group_id, session.task_id
    return Glance(group_id=group, task_id=task, reason=head.reason, dumped_at=head.dumped_at)


def _irregular() -> Damaged:
    return Damaged("it is not a regular file")
