"""Which kinds of kills there are, in the middle of what, and what is kept of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.timing.kills.journal import ACK, CALL, EXPORT, IMPORT, START

from rolloutfleet_proxy.failpoints import (
    AFTER_ACK,
    AFTER_COMMIT,
    AFTER_DUMP,
    AFTER_ENGINE,
    AFTER_EXPORT,
    AFTER_RENAME,
    AFTER_START,
    BEFORE_ANSWER,
    BEFORE_COMMIT,
    BEFORE_ENGINE,
    IMPORT_CLAIMED,
    IMPORT_COMMITTED,
    IMPORT_FINISHED,
    IMPORT_STAGED,
    IN_TRANSACTION,
    MID_ACK,
    MID_DUMP,
    MID_EXPORT,
    MID_SWEEP,
)


class Kind(StrEnum):
    """What is killed, or in the middle of what."""

    WORKER = "worker"
    PARENT = "parent"
    GATEWAY = "gateway"
    ENGINE = "engine"
    START_UP = "start-up"
    DRAIN = "drain"
    DUMP = "dump"
    IMPORT = "import"
    EXPORT = "export"
    ACK = "acknowledgement"


COMMIT = "commit"
DUMP = "dump"
UNDER_WAY = {
    **dict.fromkeys((BEFORE_ENGINE, AFTER_ENGINE, BEFORE_ANSWER), CALL),
    **dict.fromkeys((IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT), COMMIT),
    AFTER_START: START,
    **dict.fromkeys((MID_DUMP, AFTER_RENAME, AFTER_DUMP, MID_SWEEP), DUMP),
    **dict.fromkeys((IMPORT_CLAIMED, IMPORT_STAGED, IMPORT_COMMITTED, IMPORT_FINISHED), IMPORT),
    **dict.fromkeys((MID_EXPORT, AFTER_EXPORT), EXPORT),
    **dict.fromkeys((MID_ACK, AFTER_ACK), ACK),
}
"""What a process is in the middle of that has stopped at a place."""
AT_WORK = (None, BEFORE_ENGINE, AFTER_ENGINE, IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ANSWER, AFTER_START)
"""None: anywhere, as long as it has calls in flight."""
STARTING = (IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT)
PLACES = {
    Kind.DUMP: (MID_DUMP, AFTER_RENAME, AFTER_DUMP, MID_SWEEP),
    Kind.IMPORT: (IMPORT_CLAIMED, IMPORT_STAGED, IMPORT_COMMITTED, IMPORT_FINISHED),
    Kind.EXPORT: (MID_EXPORT, AFTER_EXPORT),
    Kind.ACK: (MID_ACK, AFTER_ACK),
}
OF_NO_PROXY: Final[Sequence[Kind]] = (Kind.GATEWAY, Kind.ENGINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One that counts."""

    kind: Kind
    target: str
    how: str
    under_way: str
    seen_by: str
    """A failpoint, or whose figures."""
    clients: dict[str, int]
    """Who waited for an answer of the target then, by what they had asked."""

    def __str__(self) -> str:
        waited = ", ".join(f"{number} for {what}" for what, number in self.clients.items()) or "nobody"
        return f"{self.target}, {self.how} ({self.kind}; {self.under_way} seen by {self.seen_by}); waiting: {waited}"
