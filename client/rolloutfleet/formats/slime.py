"""Rollouts as slime and miles take them from `--custom-generate-function-path`: a list of their `Sample`.

Neither is on a package index, so this was written from slime/utils/types.py and slime/agent/trajectory.py (September
2026) and is tested on a data class with the same fields, not on theirs. Samples are copies of the one that slime hands
in, by `dataclasses.replace`: nothing of slime is imported.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats.cut import columns_of, cut
from rolloutfleet.formats.episodes import LEASES, Episodes, leases_of
from rolloutfleet.formats.rollouts import Rollout, training_rows


def samples(rollout: Rollout, sample: Any) -> list[Any]:
    """A copy of `sample` for each row that trains something, the main one last; all with the same `rollout_id`.

    `tokens` is the whole row; `loss_mask` and `rollout_log_probs` are [response_length]; `weight_versions` has the
    version of each stretch of a turn that was sampled with one, as text; `reward` is the row's return or None;
    `status` the session's outcome. `rollout_id` is the sample's own, else its index, so that slime's loss counts the
    rollout once.

    A rollout with nothing to train becomes one sample of two tokens, the second with mask 0, without a reward: FAILED,
    or ABORTED, which keeps slime from asking its reward model.
    """
    shared = {"rollout_id": sample.index if sample.rollout_id is None else sample.rollout_id}
    rows = training_rows(rollout)
    if rows:
        return [replace(sample, **_fields_of(row), **shared, status=_status(sample, rollout)) for row in rows]
    nothing = {"tokens": [0, 0], "response_length": 1, "loss_mask": [0], "rollout_log_probs": [0.0]}
    status = _status(sample, rollout) if rollout else type(sample).Status.FAILED
    return [replace(sample, **nothing, **shared, weight_versions=[], reward=None, status=status)]


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> list[Any]:
    """A rollout of one's own agent, as slime's `--custom-generate-function-path` calls it.

    `args.rolloutfleet` are the fields of `formats.episodes.Episodes` as a dict, which `--custom-config-path` brings;
    the agent's task is `{"task_id", "prompt", "label", "metadata"}` of the sample. What it is handed stays leased until
    `acknowledge`, by what `metadata[LEASES]` names; in evaluation the fleet discards it at once. Raises FleetError;
    what the agent raises makes the rollout a failed one.
    """
    told = {"prompt": sample.prompt, "label": sample.label, "metadata": sample.metadata}
    episodes = Episodes(**args.rolloutfleet, evaluation=evaluation)
    rollout = await episodes.run({"task_id": f"slime-{sample.group_index}", **told}, sampling=sampling_params)
    metadata = {**(sample.metadata or {}), LEASES: [] if evaluation else leases_of(rollout)}
    return samples(rollout, replace(sample, metadata=metadata))


async def acknowledge(args: Any, trained: Iterable[Any]) -> None:
    """The samples' rollouts are trained, and the fleet forgets them. Call it after the step.

    Siblings name the same leases, which are acknowledged once. Raises LeaseLost, FleetError.
    """
    leases = [lease for sample in trained for lease in (sample.metadata or {}).get(LEASES, ())]
    await Episodes(**args.rolloutfleet).acknowledge(leases)


def _fields_of(row: Row) -> dict[str, Any]:
    parts = cut(row)
    return {
        "tokens": columns_of(row)["input_ids"].tolist(),
        "response_length": len(parts.response_ids),
        "loss_mask": parts.response_mask.tolist(),
        "rollout_log_probs": parts.response_logprobs.tolist(),
        "weight_versions": _stretches(row),
        "reward": row.reward,
    }


def _stretches(row: Row) -> list[str]:
    """A version for each stretch of a turn, as slime notes one for each call of its engine."""
    columns = (np.asarray(row.tensors[name]).tolist() for name in ("turn_ids", "versions"))
    return [str(version) for (turn, version), _ in groupby(zip(*columns, strict=True)) if turn >= 0]


def _status(sample: Any, trajectories: Iterable[Trajectory]) -> Any:
    outcomes = [trajectory.outcome for trajectory in trajectories if trajectory.outcome is not None]
    return type(sample).Status[(outcomes or ["completed"])[-1].upper()]
