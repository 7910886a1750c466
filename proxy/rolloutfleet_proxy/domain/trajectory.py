"""How turns become trajectories, and what is counted as having become of both. Pure.

A trajectory is ready, then leased and acknowledged, or discarded; its turns share its fate, but for orphans, which
are discarded one by one when it closes, and for those that the disk has damaged. A session's own fate follows from
those of its trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet_proxy.domain.branching import BranchReason
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, LEASED, LIVE
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.session import DELETED, OPEN
from rolloutfleet_proxy.domain.turn import Extras

READY: Final = "ready"
"""A closed trajectory that training may take. Its turns count as live."""

DAMAGED: Final = "damaged"
"""A closed one that the disk has changed something of, or what it extends: nobody gets it. Its turns count as live."""

IMPORTING: Final = "importing"
"""On its way in from a dump: not counted yet."""
ELSEWHERE: Final = "elsewhere"
"""Not here; only turns of it are that imported ones extend."""

BY_REWARD: Final = "reward"
BY_CLOSE: Final = "close"

VOID: Final = "void"
"""A turn that was discarded by itself. As long as `live`, so that an UPDATE changes one page of a long row, and not all
of it: to discard needs room on a disk that is full. Older rows say `discarded`."""

EVALUATION: Final = "evaluation"
"""Of a session that is not to be trained: no trainer gets it. It is a status in exports, and why it was discarded."""

# Why something was discarded, beside `deleted`.
EMPTY: Final = "empty"
ORPHAN: Final = "orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """A turn as the rule of orphans sees it."""

    number: int
    parent: int | None
    request: bytes
    """Digest chain of the request's messages."""
    reasonings: tuple[tuple[int, bytes], ...]
    """(message index, digest) of the reasoning that its request added."""
    lineage: str
    """Its label."""
    wanted: bool
    """Somebody received it or rewarded it, or it is of an earlier trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTurn:
    """A turn as an export has it, without its tokens. A parent's number is lower than its children's."""

    number: int
    name: str
    parent: int | None
    prompt_tokens: int
    """Of the whole prompt."""
    output_tokens: int
    reward: float | None
    finish_reason: str
    mixed_cache: bool
    branch_reason: BranchReason | None = None
    lineage: Lineage = MAIN
    extras: Extras = field(default_factory=Extras)
    """Those that an export shows."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def trajectory_name(session: str, number: int) -> str:
    """The trajectory_id that users see."""
    return f"{session}-trajectory-{number}"


def orphans(turns: Sequence[Kin]) -> set[int]:
    """Numbers of the turns that nobody received and nobody extended, with a later sibling of equal history.

    Such a turn is what a lost answer leaves behind: its caller asked again and went on from the second answer.
    """
    extended = {turn.parent for turn in turns}
    newest: dict[tuple[Any, ...], int] = {}
    for turn in turns:
        asked = _asked(turn)
        newest[asked] = max(turn.number, newest.get(asked, 0))
    return {
        turn.number
        for turn in turns
        if not turn.wanted and turn.number not in extended and turn.number < newest[_asked(turn)]
    }


def fate(*, state: str, turns: int, trajectories: Sequence[tuple[str, str | None]]) -> tuple[str, str]:
    """(term, reason) that a session counts under; the reason is '' unless it was discarded.

    `trajectories` are (state, reason), newest first. An ended session has no open turns: each is of a trajectory, or
    discarded with the session.
    """
    states = {held for held, _ in trajectories}
    if LEASED in states:
        return LEASED, ""
    if state == OPEN or not states.isdisjoint((READY, DAMAGED, IMPORTING)):
        return LIVE, ""
    if ACKNOWLEDGED in states:
        return ACKNOWLEDGED, ""
    if state == DELETED:
        return DISCARDED, DELETED
    if not turns:
        return DISCARDED, EMPTY
    return DISCARDED, next((reason for _, reason in trajectories if reason), DISCARDED)


def _asked(turn: Kin) -> tuple[Any, ...]:
    return turn.parent, turn.request, turn.reasonings, turn.lineage
