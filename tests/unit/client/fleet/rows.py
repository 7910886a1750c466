"""Trajectories of rows that say which turn each token is of, and what is told of them."""

from typing import Any

import numpy as np
from safetensors.numpy import load

from rolloutfleet.fleet import Trajectory
from rolloutfleet.fleet.annotating import bodies
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.wire import ExportedTurn


def turn(name: str) -> ExportedTurn:
    return ExportedTurn(turn_id=name, parent_id=None, reward=None, finish_reason="stop", mixed_cache=False, message={})


def row(*turns: int) -> Row:
    """Of these turns of its trajectory, one a token; -1 is not trained."""
    ids = np.array(turns, np.int32)
    return Row((), None, {"turn_ids": ids, "loss_mask": (ids >= 0).astype(np.uint8), "input_ids": ids})


def trajectory(*rows: Row) -> Trajectory:
    return Trajectory(
        trajectory_id="s0-x-trajectory-1",
        session_id="s0-x",
        group_id="g0-x",
        task_id=None,
        metadata={},
        marked=None,
        turns=tuple(map(turn, ("a", "b", "c"))),
        rows=rows,
        run=0,
        version=0,
        lease_id="l0-x",
    )


BRANCHED = trajectory(row(-1, 0, 0, -1, 1), row(-1, -1, -1, 2, 2, 2))
"""Turns a and b in the first row, and c in the second, where a is context."""


def said(of: Trajectory, *, index: int | None = None, notes: Any = None, **series: Any) -> dict[str, list[float]]:
    (body,) = bodies(of, series, row=index, notes=notes or {})
    return {name: values.tolist() for name, values in load(body).items()}
