"""AReaL's tensors, through its own check of an episode and its own batching."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch
from examples.trainers.classes.compared import TYPES, Bits, Compared, bits, compared, native
from examples.trainers.classes.source import definitions

from rolloutfleet.formats import Rollout, areal

DATA, EXECUTOR = "areal/utils/data.py", "areal/infra/workflow_executor.py"
BATCHING: Final = ("concat_padded_tensors", "_pad_cat_dim0", "is_multi_modal_key", "get_batch_size")
HOW: Final = (
    f"concat_padded_tensors, executed from the source of {DATA} alone, as the package imports ray and its engines: a "
    "batch of all episodes, in which the rows have to be; check_trajectory_format of "
    f"{EXECUTOR}, which takes each episode without a warning (a stand-in for the class of its other form)"
)


def compare(rollouts: Sequence[Rollout]) -> Compared:
    """A row of the batch for each row that trains something and has a reward."""
    check = definitions(
        "areal",
        EXECUTOR,
        ("check_trajectory_format",),
        torch=torch,
        # The other form of an episode, which ours is not.
        InteractionWithTokenLogpReward=type("InteractionWithTokenLogpReward", (), {}),
    ).check_trajectory_format
    batching = definitions("areal", DATA, BATCHING, torch=torch, F=torch.nn.functional).concat_padded_tensors
    episodes = [areal.tensors(rollout) for rollout in rollouts]
    for episode in episodes:
        assert check(episode, logger=_Raising("areal"))
    batch = batching([episode for episode in episodes if episode is not None])
    rows = iter([_bits(batch, at) for at in range(len(batch["input_ids"]))])
    had = [[next(rows) for _ in (() if episode is None else episode["input_ids"])] for episode in episodes]
    assert next(rows, None) is None
    return compared(rollouts, [native(rollout, rewarded=True) for rollout in rollouts], had)


class _Raising(logging.Logger):
    """A warning of theirs is an error here."""

    def warning(self, msg: object, *args: object, **_: object) -> None:
        raise ValueError(str(msg) % args)


def _bits(batch: dict[str, Any], at: int) -> Bits:
    there = batch["attention_mask"][at]
    assert not batch["loss_mask"][at][~there].any()
    return bits([batch[name][at][there] for name in TYPES], batch["rewards"][at])
