"""Rows as examples of supervised fine-tuning, for TRL's `SFTTrainer` and whatever takes its columns."""

from collections.abc import Iterable
from typing import Any

from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.formats.cut import columns_of
from rolloutfleet.formats.rollouts import by_session, rows_of, trained_tokens


def rows(trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """An example for each row that trains something, session by session, for `datasets.Dataset.from_list`.

    `input_ids`, which tells TRL that nothing is to be tokenised, and `assistant_masks`, 1 on what is trained: it makes
    the labels of them (trl/trainer/sft_trainer.py, 1.16). Beside them `messages` and `tools`, where an export brought
    them, for whoever renders the conversation anew. Which rewards are good enough, choose before.
    """
    made = []
    for row in (row for rollout in by_session(trajectories) for row in rows_of(rollout) if trained_tokens(row)):
        columns = columns_of(row)
        example = {"input_ids": columns["input_ids"].tolist(), "assistant_masks": columns["loss_mask"].tolist()}
        found = {"messages": row.messages, "tools": row.tools}
        made.append(example | {name: value for name, value in found.items() if value is not None})
    return made
