"""Names of dump files. They follow from ids that a server made, so nothing else can be asked for by name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ACTIVE: Final = "active"
"""What stands for a trajectory's number in the name of the dump of what was still open."""
IMPORTED_MARK: Final = ".imported"
"""Follows the name of a file that a fleet has taken in again."""
CLAIM_MARK: Final = ".importing-"
"""Follows the name of a file that a proxy is taking in; behind it come that proxy's ordinal, `-` and its store's id."""

_NAME = re.compile(r"(s(?:0|[1-9]\d{0,5})-[0-9a-f]{12}-[0-9a-f]{16})-(?:active|trajectory-([1-9]\d{0,8}))\.json")


@dataclass(frozen=True, slots=True)
class DumpName:
    """What a dump's name says."""

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
    """What a file's name says, without any mark behind it; None where it is no name of a dump."""
    found = _NAME.fullmatch(name)
    return None if found is None else DumpName(found[1], None if found[2] is None else int(found[2]))


def trajectory_dump_name(session_id: str, number: int) -> str:
    """`{session_id}-trajectory-{n}.json`"""
    return str(DumpName(session_id, number))


def active_name(session_id: str) -> str:
    """`{session_id}-active.json`"""
    return str(DumpName(session_id, None))


def dump_names(session_id: str, *, trajectories: Iterable[int] = (), active: bool = False) -> list[str]:
    """The files that a session is dumped to: one for each of its closed trajectories, one for the rest."""
    names = [trajectory_dump_name(session_id, number) for number in trajectories]
    return [*names, active_name(session_id)] if active else names
