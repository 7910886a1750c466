"""Rollouts as TRL's `GRPOTrainer(rollout_func=…)` takes them. Needs no package of TRL.

The fields are those of `_generate` in trl/trainer/grpo_trainer.py, 1.16: lists with one entry a prompt, in the order of
the prompts. Further ones reach reward functions by name.
"""

from collections.abc import Sequence
from typing import Any

from rolloutfleet.formats.cut import cut
from rolloutfleet.formats.rollouts import Rollout, all_but, main_row

Fields = dict[str, list[Any]]


def rollout(rollouts: Sequence[Rollout], *, pad_token_id: int = 0) -> Fields:
    """The answer of a `rollout_func`: for each rollout its main row, as TRL takes one row a prompt.

    `prompt_ids`, `completion_ids`, `logprobs` and `env_mask` (1 on what is trained) are lists of numbers. A reward
    function gets `reward`, the row's return or None; `versions`, of each token of the completion, -1 where the mask is
    0; `left_out_rows` and `left_out_tokens`, the rollout's other rows that train something, and their trained tokens.

    A rollout with nothing to train in its main loop, as a failed one, is one token of padding after another, with
    `env_mask` 0 and reward None: TRL keeps it out of its group's baseline, and its advantage is 0.
    """
    found = [_fields_of(one, pad_token_id) for one in rollouts]
    return {name: [fields[name] for fields in found] for name in (found[0] if found else ())}


def _fields_of(rollout: Rollout, pad: int) -> dict[str, Any]:
    row = main_row(rollout)
    left_out = all_but(rollout, row)
    counts = {"left_out_rows": left_out.rows, "left_out_tokens": left_out.tokens}
    if row is None:
        # TRL reads the last token of each completion, and makes no tensor of integers of an empty prompt.
        empty = {"prompt_ids": [pad], "completion_ids": [pad], "logprobs": [0.0], "env_mask": [0], "versions": [-1]}
        return {**empty, "reward": None, **counts}
    parts = cut(row)
    return {
        "prompt_ids": parts.prompt_ids.tolist(),
        "completion_ids": parts.response_ids.tolist(),
        "logprobs": parts.response_logprobs.tolist(),
        "env_mask": parts.response_mask.tolist(),
        "versions": parts.response_versions.tolist(),
        "reward": row.reward,
        **counts,
    }
