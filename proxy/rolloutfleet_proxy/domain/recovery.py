"""Which tokens are of weights that no longer are, because the trainer went back to an older checkpoint.

A recovery begins run R at version v. What an earlier run made with a version above v is of weights that are given up;
what it made up to v is not, since the new run stands on it. A trajectory with such a token is marked: `newer` where its
run was the one that was left, `older_run` where that was over by then, and dropped or kept as the recovery says.
Turns still open are judged when their trajectory closes, and what is leased when it is given back.
Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

RECOVERED: Final = "recovered"
"""Why a trajectory was discarded that a recovery dropped."""
NEWER: Final = "newer"
OLDER_RUN: Final = "older_run"
DROP: Final = "drop"


@dataclass(frozen=True, slots=True)
class Mark:
    """What recoveries say of a trajectory; `run` is the latest that excludes it."""

    why: str
    run: int
    drop: bool


@dataclass(slots=True)
class Counts:
    """What a recovery did, and does to what closes or is given back later. Of what is kept some may be leased."""

    marked_trajectories: int = 0
    marked_turns: int = 0
    dropped_trajectories: int = 0
    dropped_turns: int = 0
    ended_sessions: int = 0
    """That earlier runs had left open."""


def judge(newest: Iterable[tuple[int, int]], recoveries: Sequence[tuple[int, int, str]]) -> Mark | None:
    """What recoveries say of a trajectory whose tokens are of these runs, each with the newest version that it has of
    it. Recoveries are (run, version, drop or keep), by run. None where nothing is against it.
    """
    newest = list(newest)
    against = [
        (run, newer, made_in, before)
        for before, (run, version, newer) in zip([0, *(run for run, _, _ in recoveries)], recoveries, strict=False)
        for made_in, newest_version in newest
        if made_in < run and newest_version > version
    ]
    if not against:
        return None
    # A run was left by the first recovery after it; all later ones find it over.
    left = any(made_in >= before for _, _, made_in, before in against)
    return Mark(NEWER if left else OLDER_RUN, max(run for run, *_ in against), any(n == DROP for _, n, _, _ in against))
