"""Trajectories side by side: nothing lost, nothing moved, padding told from tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fleet.rows import BRANCHED, said, trajectory
from tests.unit.client.fleet.rows import row as trained

from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.torch import to_batch, to_packed

TYPES = {
    "input_ids": np.int64,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
    "turn_ids": np.int32,
}


@dataclass
class Row:
    tensors: dict[str, Any]
    reward: float | None = 1.0


@dataclass
class Trajectory:
    rows: Sequence[Row]
    group_id: str = "g"
    trajectory_id: str = "t"
    turns: Sequence[Any] = field(default_factory=list)


def row_of(tokens: int, seed: int, reward: float | None) -> Row:
    drawn = np.random.default_rng(seed)
    mask = drawn.integers(0, 2, tokens).astype(np.uint8)
    tensors: dict[str, Any] = {
        "input_ids": drawn.integers(0, 2**40, tokens),
        "loss_mask": mask,
        "logprobs": np.where(mask == 1, -drawn.random(tokens), 0),
        "versions": np.where(mask == 1, drawn.integers(0, 9, tokens), -1),
        "turn_ids": np.where(mask == 1, drawn.integers(0, 3, tokens), -1),
    }
    held = {name: value.astype(TYPES[name]) for name, value in tensors.items()}
    for value in held.values():
        value.flags.writeable = False
    return Row(held, reward)


REWARDS = st.none() | st.floats(-10, 10, width=32)
ROWS = st.builds(row_of, st.integers(0, 9), st.integers(0, 99), REWARDS)
TRAJECTORIES = st.lists(st.builds(Trajectory, st.lists(ROWS, max_size=3), st.sampled_from("abc")), max_size=4)


def rows(trajectories: Sequence[Trajectory]) -> list[tuple[int, str, Row]]:
    return [(at, each.group_id, row) for at, each in enumerate(trajectories) for row in each.rows]


def check_rows(batch: dict[str, torch.Tensor], trajectories: Sequence[Trajectory]) -> None:
    every = rows(trajectories)
    assert batch["rewards"].dtype == torch.float32 and batch["rewarded"].dtype == torch.uint8
    returns = torch.tensor([math.nan if row.reward is None else row.reward for _, _, row in every])
    assert torch.equal(batch["rewards"].nan_to_num(), returns.nan_to_num())
    assert torch.equal(batch["rewards"].isnan(), returns.isnan())
    assert batch["rewarded"].tolist() == [row.reward is not None for _, _, row in every]
    assert batch["trajectory_index"].tolist() == [at for at, _, _ in every]
    groups = list(dict.fromkeys(each.group_id for each in trajectories))
    assert batch["group_index"].tolist() == [groups.index(group) for _, group, _ in every]


@given(TRAJECTORIES, st.integers(1, 8), st.integers(0, 5))
def test_padded(trajectories: list[Trajectory], multiple: int, pad: int) -> None:
    batch = to_batch(trajectories, pad_to_multiple_of=multiple, pad_token_id=pad)
    every = rows(trajectories)
    longest = max((len(row.tensors["input_ids"]) for _, _, row in every), default=0)
    shape = (len(every), -(-longest // multiple) * multiple)
    for name in ("input_ids", "attention_mask", "position_ids", "loss_mask", "logprobs", "versions", "turn_ids"):
        assert tuple(batch[name].shape) == shape
    for at, (_, _, row) in enumerate(every):
        tokens = len(row.tensors["input_ids"])
        for name, dtype in TYPES.items():
            got = batch[name][at, :tokens]
            np.testing.assert_array_equal(got.numpy().astype(dtype), row.tensors[name], strict=True)
        assert batch["attention_mask"][at].tolist() == [1] * tokens + [0] * (shape[1] - tokens)
        assert batch["position_ids"][at].tolist() == [*range(tokens), *[0] * (shape[1] - tokens)]
        assert set(batch["input_ids"][at, tokens:].tolist()) <= {pad}
        assert not batch["loss_mask"][at, tokens:].any() and not batch["logprobs"][at, tokens:].any()
        assert set(batch["versions"][at, tokens:].tolist()) | set(batch["turn_ids"][at, tokens:].tolist()) <= {-1}
    check_rows(batch, trajectories)


@given(TRAJECTORIES, st.integers(1, 8), st.integers(0, 5))
def test_packed(trajectories: list[Trajectory], multiple: int, pad: int) -> None:
    batch = to_packed(trajectories, pad_to_multiple_of=multiple, pad_token_id=pad)
    every = rows(trajectories)
    lengths = [len(row.tensors["input_ids"]) for _, _, row in every]
    padding = -sum(lengths) % multiple
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["cu_seqlens"].diff().tolist() == lengths + [padding] * (padding > 0)
    assert batch["max_seqlen"].item() == max([*lengths, padding], default=0)
    assert batch["position_ids"].tolist() == [at for length in [*lengths, padding] for at in range(length)]
    ends = np.cumsum(lengths).tolist()
    for name, dtype in TYPES.items():
        assert len(batch[name]) == sum(lengths) + padding
        for length, end, (_, _, row) in zip(lengths, ends, every, strict=True):
            got = batch[name][end - length : end]
            np.testing.assert_array_equal(got.numpy().astype(dtype), row.tensors[name], strict=True)
        behind = {"input_ids": pad, "versions": -1, "turn_ids": -1}.get(name, 0)
        assert batch[name][sum(lengths) :].tolist() == [behind] * padding
    check_rows(batch, trajectories)


def test_types() -> None:
    batch = to_batch([Trajectory([row_of(3, 1, None)])])
    assert {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in batch.items()} == {
        "input_ids": "int64",
        "attention_mask": "int64",
        "position_ids": "int64",
        "loss_mask": "bool",
        "logprobs": "float32",
        "versions": "int32",
        "turn_ids": "int32",
        "rewards": "float32",
        "rewarded": "uint8",
        "trajectory_index": "int64",
        "group_index": "int64",
    }
    packed = to_packed([Trajectory([row_of(3, 1, None)])])
    assert set(packed) == set(batch) - {"attention_mask"} | {"cu_seqlens", "max_seqlen"}
    assert all(packed[name].dtype == batch[name].dtype for name in set(packed) & set(batch))


def test_lists_and_tensors_are_taken_as_arrays_are() -> None:
    arrays = row_of(5, 3, 1.0)
    lists = Row({name: value.tolist() for name, value in arrays.tensors.items()})
    tensors = Row({name: torch.tensor(value.tolist()) for name, value in arrays.tensors.items()})
    ours, *others = ({**to_batch([Trajectory([row])])} for row in (arrays, lists, tensors))
    for other in others:
        assert all(torch.equal(ours[name], other[name]) for name in ours)


def test_a_batch_is_the_trainers_to_change() -> None:
    row = row_of(4, 1, 1.0)
    before = row.tensors["input_ids"].copy()
    for make in (to_batch, to_packed):
        make([Trajectory([row])])["input_ids"].fill_(7)
    np.testing.assert_array_equal(row.tensors["input_ids"], before)


def test_what_does_not_belong_together_is_named() -> None:
    for make in (to_batch, to_packed):
        short = row_of(4, 1, 1.0)
        short.tensors["versions"] = short.tensors["versions"][:3]
        with pytest.raises(ValueError, match=r"traj-7.*'versions': 3"):
            make([Trajectory([short], trajectory_id="traj-7")])
        without = row_of(4, 1, 1.0)
        del without.tensors["logprobs"]
        with pytest.raises(ValueError, match=r"traj-7 has no logprobs; it has input_ids"):
            make([Trajectory([without], trajectory_id="traj-7")])
        square = row_of(4, 1, 1.0)
        square.tensors["input_ids"] = np.zeros((2, 2), np.int64)
        with pytest.raises(ValueError, match=r"input_ids of traj-7 is \[2, 2\]"):
            make([Trajectory([square], trajectory_id="traj-7")])
        with pytest.raises(ValueError, match="pad_to_multiple_of is 0"):
            make([], pad_to_multiple_of=0)
        away = Row({"input_ids": RemoteTensor("a", "http://a", (4,), "int64")})
        with pytest.raises(TypeError, match="localize"):
            make([Trajectory([away])])


def test_feedback_takes_tensors_as_they_are() -> None:
    learnt = torch.tensor([9, 1, 2, 9, 3.0], dtype=torch.bfloat16, requires_grad=True)
    other = torch.tensor([4, 5, 6], dtype=torch.float64)
    assert said(BRANCHED, x=[learnt, other]) == {"a/x": [1.0, 2.0], "b/x": [3.0], "c/x": [4.0, 5.0, 6.0]}
    assert said(BRANCHED, index=1, x=other) == {"c/x": [4.0, 5.0, 6.0]}
    assert said(trajectory(trained(0, 0)), x=[learnt[:2]]) == {"a/x": [9.0, 1.0]}
