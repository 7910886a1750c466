"""Tinker's datums against those that its cookbook makes of the same turns."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from examples.trainers.classes.compared import Compared, compared

from rolloutfleet.advantages import grpo
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.formats import Rollout, episode_reward, rows_of, tinker

GROUP: Final = 8
HOW: Final = (
    "tinker.Datum, ModelInput and TensorData as installed; tinker_cookbook.rl.data_processing.trajectory_to_data makes "
    "datums of the rows' turns, for the advantages of GRPO in groups of 8; input, targets, log-probabilities, "
    "advantages and mask have to be equal, with types and shapes"
)


def compare(rollouts: Sequence[Rollout]) -> Compared:
    """A datum for each row of an episode that has an advantage."""
    groups = [rollouts[at : at + GROUP] for at in range(0, len(rollouts), GROUP)]
    rewards = [[episode_reward(rollout) for rollout in group] for group in groups]
    _, advantages = grpo(rewards, deviation=False).on_rows(groups)
    had, wanted, given = [], [], iter(advantages)
    for rollout in rollouts:
        rows = rows_of(rollout)
        own = [next(given) for _ in rows]
        had.append([bits(datum) for datum in tinker.datums(rows, own)])
        wanted.append([bits(_theirs(row, each)) for row, each in zip(rows, own, strict=True) if each is not None])
    return compared(rollouts, wanted, had)


def bits(datum: Any) -> tuple[bytes, ...]:
    """All of it; the ids first."""
    ids = np.asarray(datum.model_input.to_ints(), np.int64).tobytes()
    inputs = sorted(datum.loss_fn_inputs.items())
    return ids, *(_told(name, data) for name, data in inputs)


def _told(name: str, data: Any) -> bytes:
    values: bytes = data.to_numpy().tobytes()
    return f"{name} {data.dtype} {data.shape} ".encode() + values


def _theirs(row: Row, advantage: float) -> Any:
    types, completers = import_module("tinker_cookbook.rl.types"), import_module("tinker_cookbook.completers")
    given = import_module("tinker").ModelInput.from_ints
    transitions = [
        types.Transition(
            ob=given(before),
            ac=completers.TokensWithLogprobs(tokens=sampled, maybe_logprobs=logprobs),
            reward=0.0,
            episode_done=False,
        )
        for before, sampled, logprobs in _turns(row)
    ]
    trajectory = types.Trajectory(transitions=transitions, final_ob=given([]))
    [datum] = import_module("tinker_cookbook.rl.data_processing").trajectory_to_data(trajectory, advantage)
    return datum


def _turns(row: Row) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """All that the model had read, what it sampled then and is trained on, and its log-probabilities."""
    ids, logprobs = (np.asarray(row.tensors[name]).tolist() for name in ("input_ids", "logprobs"))
    edges = np.flatnonzero(np.diff(np.asarray(row.tensors["loss_mask"], np.int8), prepend=0, append=0)).tolist()
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        yield ids[:begin], ids[begin:end], logprobs[begin:end]
    if not edges or edges[-1] < len(ids):
        yield ids, [], []
