"""Sessions as data: as their rows have them, as they were just made, and what is left of those that are gone. Pure."""

from dataclasses import dataclass
from typing import Final

OPEN: Final = "open"
CLOSED: Final = "closed"
DELETED: Final = "deleted"

STALE: Final = "stale"
"""Reclaimed: open, and nobody used it."""
UNCLAIMED: Final = "unclaimed"
"""Reclaimed: ended, and nobody took what it left."""
RETIRED: Final = "retired"
"""Reclaimed: the storage of its proxy was about to be removed."""
RECLAIMED: Final = frozenset((STALE, UNCLAIMED, RETIRED))

REPLACED: Final = "replaced"
"""Another session has taken its place in its group: why it and its turns are discarded."""

GROUP_CLOSED: Final = "group_closed"
"""Says of what is left of a session that it was closed at its group's deadline."""

REST: Final = 0
"""Stands for a session's unclosed turns where its dumps are listed by trajectory number."""


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """A session as its row has it."""

    id: int
    name: str
    key_hash: bytes
    group: str
    task_id: str | None
    metadata_json: str | None
    """As it is in the row: agents never ask for it, and as text it takes the least and is easily sized."""
    limits: dict[str, int]
    """`turns` and `tokens`, where limited."""
    agent_may: frozenset[str]
    stale_after: float | None
    state: str
    tokens: int
    created_at: float
    await_reward: float | None = None
    """Seconds that its trajectories wait for a reward; None: not at all."""
    train: bool = True
    """False: an evaluation."""
    group_closed: bool = False
    """It was closed at its group's deadline."""
    sampling_json: str | None = None
    """As it is in the row (`domain.sampling.SessionSampling`); None where nothing is said."""
    imported: bool = False
    """It came back from its dumps, and takes no calls."""


@dataclass(frozen=True, slots=True)
class Started:
    """A session just made, with the one copy of its key that leaves the proxy."""

    name: str
    key: str
    record: SessionRecord | None = None
    """None where it was made before, and has a new key now."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A session whose rows are freed; known by its tombstone."""

    name: str
    reason: str
    dumped: tuple[int, ...] = ()
    """Numbers of the trajectories that were dumped, and `REST` where the unclosed turns were."""
