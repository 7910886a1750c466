"""What stands in a file for one row of a trajectory: a record that needs no other."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rolloutfleet.fleet.trajectories import TYPES, Trajectory

Record = dict[str, Any]


def records(trajectory: Trajectory) -> Iterator[Record]:
    """A record a row. `turns` are those on the row's path that are the trajectory's own, and `turn_ids` indexes them.

    The five tensors of a row are numpy arrays [tokens], of the types in `rolloutfleet.fleet.trajectories.TYPES`.
    """
    places = {turn.turn_id: place for place, turn in enumerate(trajectory.turns)}
    for index, row in enumerate(trajectory.rows):
        path = [places[name] for name in row.turn_ids if name in places]
        tensors = {name: np.asarray(row.tensors[name]) for name in TYPES}
        tensors["turn_ids"] = _indexed(tensors["turn_ids"], path, turns=len(places))
        yield {
            "trajectory_id": trajectory.trajectory_id,
            "session_id": trajectory.session_id,
            "group_id": trajectory.group_id,
            "task_id": trajectory.task_id,
            "metadata": trajectory.metadata,
            "marked": trajectory.marked,
            "run": trajectory.run,
            "version": trajectory.version,
            "oldest_version": trajectory.oldest_version,
            "row": index,
            "reward": row.reward,
            **tensors,
            "turns": [trajectory.turns[place].model_dump() for place in path],
        }


def _indexed(turn_ids: "np.ndarray[Any, Any]", path: list[int], *, turns: int) -> "np.ndarray[Any, Any]":
    """Indices into the trajectory's turns as indices into the path; -1 stays."""
    # The last entry is where -1 points.
    new = np.full(turns + 1, -1, dtype=np.int32)
    new[path] = np.arange(len(path), dtype=np.int32)
    indexed: np.ndarray[Any, Any] = new[turn_ids]
    return indexed
