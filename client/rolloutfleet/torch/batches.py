"""Trajectories as one batch of tensors: padded to a rectangle, or packed one row after the other.

What a row's tensors hold is in docs/export.md; this only puts them side by side. A log-probability stands at the token
that it is of, so that a model's logits at position i belong to `logprobs` at i + 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Final

import numpy as np
import torch

from rolloutfleet.rows import RowLike, TrajectoryLike, check_together, tensor_of


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of a row, as it is in a batch."""

    dtype: Any
    padding: float
    """What stands where there is no token."""


COLUMNS: Final[Mapping[str, Column]] = {
    "input_ids": Column(torch.int64, 0),
    "loss_mask": Column(torch.bool, 0),
    "logprobs": Column(torch.float32, 0),
    "versions": Column(torch.int32, -1),
    "turn_ids": Column(torch.int32, -1),
}


def to_batch(
    trajectories: Iterable[TrajectoryLike], *, pad_to_multiple_of: int = 1, pad_token_id: int = 0
) -> dict[str, torch.Tensor]:
    """All rows of the trajectories, padded on the right to the longest, rounded up to a multiple.

    [rows, columns]: `input_ids` int64, `attention_mask` int64 and `position_ids` int64 (0 on padding), `loss_mask`
    bool, `logprobs` float32, `versions` int32 and `turn_ids` int32 (-1 where nothing was sampled).
    [rows]: `rewards` float32, the row's return (NaN where none was given), `rewarded` uint8, 1 where one was,
    `trajectory_index` int64 into the trajectories given, `group_index` int64, equal within a group and counted as they
    come.

    Raises ValueError for a row whose tensors don't belong together, TypeError for one whose tensors are references.
    """
    rows = list(_rows(trajectories))
    length = _rounded(max((row.length for row in rows), default=0), pad_to_multiple_of)
    batch = {
        name: torch.full((len(rows), length), column.padding, dtype=column.dtype) for name, column in COLUMNS.items()
    }
    batch["input_ids"].fill_(pad_token_id)
    batch["attention_mask"] = torch.zeros((len(rows), length), dtype=torch.int64)
    batch["position_ids"] = torch.zeros((len(rows), length), dtype=torch.int64)
    for at, row in enumerate(rows):
        for name in COLUMNS:
            batch[name][at, : row.length] = row.columns[name]
        batch["attention_mask"][at, : row.length] = 1
        batch["position_ids"][at, : row.length] = torch.arange(row.length)
    return batch | _of_rows(rows)


def to_packed(
    trajectories: Iterable[TrajectoryLike], *, pad_to_multiple_of: int = 1, pad_token_id: int = 0
) -> dict[str, torch.Tensor]:
    """All rows of the trajectories one after the other, as variable-length attention takes them.

    [tokens]: `input_ids`, `position_ids` (from 0 in each row), `loss_mask`, `logprobs`, `versions`, `turn_ids`, of the
    types in `to_batch`. `cu_seqlens` int32 [sequences + 1]: where each sequence begins and ends; `max_seqlen` int32 [].
    [rows]: as in `to_batch`.

    Where the tokens are not a multiple of `pad_to_multiple_of`, padding follows as a sequence of its own, which is the
    last of `cu_seqlens` and no row. Raises as `to_batch` does.
    """
    rows = list(_rows(trajectories))
    tokens = sum(row.length for row in rows)
    padding = _rounded(tokens, pad_to_multiple_of) - tokens
    lengths = [row.length for row in rows] + [padding] * (padding > 0)
    batch = {
        name: torch.cat(
            [
                *(row.columns[name] for row in rows),
                torch.full((padding,), pad_token_id if name == "input_ids" else column.padding, dtype=column.dtype),
            ]
        )
        for name, column in COLUMNS.items()
    }
    batch["position_ids"] = torch.cat([torch.arange(length) for length in [*lengths, 0]])
    batch["cu_seqlens"] = torch.tensor([0, *np.cumsum(lengths, dtype=np.int64).tolist()], dtype=torch.int32)
    batch["max_seqlen"] = torch.tensor(max(lengths, default=0), dtype=torch.int32)
    return batch | _of_rows(rows)


@dataclass(frozen=True, slots=True)
class _Row:
    length: int
    columns: Mapping[str, torch.Tensor]
    reward: float | None
    trajectory: int
    group: int


def _rows(trajectories: Iterable[TrajectoryLike]) -> Iterator[_Row]:
    groups: dict[str, int] = {}
    for number, trajectory in enumerate(trajectories):
        group = groups.setdefault(trajectory.group_id, len(groups))
        for row in trajectory.rows:
            whose = trajectory.trajectory_id
            columns = {name: _column(row, name, column, whose) for name, column in COLUMNS.items()}
            check_together(columns, whose=whose)
            yield _Row(len(columns["input_ids"]), columns, row.reward, number, group)


def _column(row: RowLike, name: str, column: Column, whose: str) -> torch.Tensor:
    values = tensor_of(row, name, whose=whose)
    # Copied: arrays may be read-only, and a batch is the trainer's to change.
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
    return tensor.to(column.dtype)


def _of_rows(rows: Sequence[_Row]) -> dict[str, torch.Tensor]:
    return {
        "rewards": torch.tensor([nan if row.reward is None else row.reward for row in rows], dtype=torch.float32),
        "rewarded": torch.tensor([row.reward is not None for row in rows], dtype=torch.uint8),
        "trajectory_index": torch.tensor([row.trajectory for row in rows], dtype=torch.int64),
        "group_index": torch.tensor([row.group for row in rows], dtype=torch.int64),
    }


def _rounded(length: int, multiple: int) -> int:
    if multiple < 1:
        raise ValueError(f"pad_to_multiple_of is {multiple}; it must be at least 1")
    return -(-length // multiple) * multiple
