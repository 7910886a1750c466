"""Rollouts of an export: whose rows they have, in which order, and which row is the main one."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from rolloutfleet.fleet.trajectories import Row, Trajectory, sum_given
from rolloutfleet.grouping import grouped
from rolloutfleet.rows import RowLike, tensor_of

Rollout: TypeAlias = Sequence[Trajectory]
"""The trajectories of one session; none where it ended without a turn."""


class LeftOut(NamedTuple):
    """The part of a rollout that does not reach the trainer."""

    rows: int
    """Rows with something to train."""
    tokens: int
    """Trained tokens, of these rows and of those that were shortened."""


def by_session(trajectories: Iterable[Trajectory], session_ids: Iterable[str] | None = None) -> list[list[Trajectory]]:
    """An export, which comes in any order, as rollouts: one for each of the sessions, in their order.

    A session without a trajectory has an empty one. Without `session_ids` the sessions come in the order of their ids.
    Raises ValueError for a trajectory of a session that is not among them.
    """
    found = grouped(trajectories, attrgetter("session_id"))
    wanted = sorted(found) if session_ids is None else list(session_ids)
    if foreign := found.keys() - set(wanted):
        raise ValueError(f"session_ids: {min(foreign)} has a trajectory here and is not among them")
    return [_in_order(found.get(session_id, [])) for session_id in wanted]


def rows_of(rollout: Rollout) -> list[Row]:
    """The rows of a rollout, in the order in which their last turns were committed.

    Raises ValueError where it has trajectories of several sessions.
    """
    return [row for trajectory in _in_order(rollout) for row in trajectory.rows]


def training_rows(rollout: Rollout) -> list[Row]:
    """Those of its rows that have a token to train; the main one, where there is one, stands last."""
    main = main_row(rollout)
    rows = [row for row in rows_of(rollout) if row is not main and trained_tokens(row)]
    return rows if main is None else [*rows, main]


def main_row(rollout: Rollout) -> Row | None:
    """The row of the last leaf of the main loop; None where no row with a token to train ends in a turn of that."""
    for trajectory in reversed(_in_order(rollout)):
        main = {turn.turn_id for turn in trajectory.turns if turn.lineage.kind == "main"}
        for row in reversed(trajectory.rows):
            if row.turn_ids and row.turn_ids[-1] in main and trained_tokens(row):
                return row
    return None


def trained_tokens(row: RowLike) -> int:
    """The number of tokens that the row trains."""
    return int(np.count_nonzero(np.asarray(tensor_of(row, "loss_mask", whose="this rollout"))))


def all_but(rollout: Rollout, kept: Row | None) -> LeftOut:
    """The part that is not in `kept`, for a trainer that takes one row."""
    others = [row for row in training_rows(rollout) if row is not kept]
    return LeftOut(len(others), sum(map(trained_tokens, others)))


def episode_reward(rollout: Rollout) -> float | None:
    """The sum of the rewards that its turns were given; None where none was, as for one that failed."""
    return sum_given(trajectory.reward for trajectory in _in_order(rollout))


def _in_order(rollout: Rollout) -> list[Trajectory]:
    if len({trajectory.session_id for trajectory in rollout}) > 1:
        raise ValueError("a rollout is one session's, and these are several: make rollouts of them by by_session")
    # A session's trajectories are numbered from 1, without leading zeros: SESSION-trajectory-N.
    return sorted(rollout, key=lambda trajectory: (len(trajectory.trajectory_id), trajectory.trajectory_id))
