"""Rollouts as AReaL's `RolloutWorkflow.arun_episode` returns them: tensors by name.

The names and types are those of areal/experimental/openai/types.py and areal/workflow/rlvr.py, 1.0.4. AReaL itself is
not imported, as that brings ray and its engines along; PyTorch is.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rolloutfleet.formats.cut import Array, columns_of
from rolloutfleet.formats.rollouts import Rollout, rows_of, trained_tokens
from rolloutfleet.remote_tensors.arrays import import_torch

_TYPES: Final[Mapping[str, tuple[Any, int]]] = {
    "input_ids": (np.int64, 0),
    "loss_mask": (np.int32, 0),
    "logprobs": (np.float32, 0),
    "versions": (np.int32, -1),
    "attention_mask": (np.bool_, 0),
}
"""The type of each tensor, and what stands behind a row that is shorter than others."""


def tensors(rollout: Rollout, *, advantage: float | None = None) -> dict[str, Any] | None:
    """The rows of an episode, each with a place in the batch dimension, as tensors of PyTorch.

    [rows, tokens]: `input_ids` int64, `loss_mask` int32, `logprobs` float32, `versions` int32 (-1 where the mask is 0),
    `attention_mask` bool. [rows]: `rewards` float32, the row's return; with `advantage`, that in its place, for
    `reward_norm` that is off: AReaL's takes fixed slices of rows for groups.

    None, which rejects the episode, where nothing is left to train. Rows that train nothing are left out, and rows
    without a return, unless `advantage` is given: one NaN among the rewards would make all advantages NaN.
    """
    found = arrays(rollout, advantage=advantage)
    if found is None:
        return None
    torch = import_torch()
    return {name: torch.from_numpy(values) for name, values in found.items()}


def arrays(rollout: Rollout, *, advantage: float | None = None) -> dict[str, Array] | None:
    """The same as arrays of numpy."""
    rows = [
        row for row in rows_of(rollout) if trained_tokens(row) and (row.reward is not None or advantage is not None)
    ]
    if not rows:
        return None
    longest = max(row.tokens for row in rows)
    batch = {name: np.full((len(rows), longest), padding, dtype=kind) for name, (kind, padding) in _TYPES.items()}
    for at, row in enumerate(rows):
        for name, values in columns_of(row).items():
            batch[name][at, : row.tokens] = values
        batch["attention_mask"][at, : row.tokens] = True
    rewards = [row.reward if advantage is None else advantage for row in rows]
    return {**batch, "rewards": np.array(rewards, dtype=np.float32)}
