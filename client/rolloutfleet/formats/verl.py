"""Rollouts as verl's agent loops return them, and an agent loop of one's own agent.

The fields are those of `AgentLoopOutput` in verl/experimental/agent_loop/agent_loop.py, 0.9.1. Its V1 trainer
(verl/trainer/ppo/v1/agent_loop_tq.py) takes a list of outputs for a rollout, the classic one takes a single output.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.formats.cut import Cut, cut
from rolloutfleet.formats.episodes import LEASES, Episodes, Lease, leases_of
from rolloutfleet.formats.rollouts import LeftOut, Rollout, main_row, trained_tokens, training_rows


def outputs(rollout: Rollout, *, prompt_length: int, response_length: int) -> list[Any]:
    """An `AgentLoopOutput` for each row that trains something, the main one last, for verl's V1 trainer.

    verl gives all outputs of a rollout the reward of the last. None is made of a rollout with nothing to train: verl
    skips an empty list with a warning. Needs the package `verl`.

    An output has at most `prompt_length` tokens of prompt, what is over stands in the response with mask 0, and
    `response_length` tokens of response, what is over is left out; a row none of whose trained tokens is left is no
    output. `extra_fields`, the same for all but the versions: `response_versions`, of each token, -1 where the mask is
    0; `min_global_steps` and `max_global_steps`, the least and the greatest of them; `left_out_rows` and
    `left_out_tokens`, of the whole rollout; `reward_extra_info`, empty.
    """
    return _outputs(rollout, training_rows(rollout), prompt_length, response_length)[0]


def output(rollout: Rollout, *, prompt_length: int, response_length: int) -> Any:
    """One `AgentLoopOutput` of the rollout's main row, for verl's classic trainer; else as `outputs`.

    A rollout with nothing to train in its main loop is a token with mask 0, without a reward.
    """
    row = main_row(rollout)
    made, left_out = _outputs(rollout, [] if row is None else [row], prompt_length, response_length)
    nothing = {"prompt_ids": [0], "response_ids": [0], "response_mask": [0], "response_logprobs": [0.0]}
    return made[0] if made else _make(nothing, left_out)


class FleetAgentLoop:
    """An agent loop whose agent talks to a fleet: `_target_: rolloutfleet.formats.verl.FleetAgentLoop`.

    verl makes one for each rollout, of the entry in `agent_loop_config_path`: beside `name` and `_target_` it has the
    fields of `formats.episodes.Episodes`, and `several: false` for the classic trainer. The agent's task is the row of
    the dataset.
    """

    def __init__(self, trainer_config: Any, *, several: bool = True, **configured: Any) -> None:
        self._limits = trainer_config.config.actor_rollout_ref.rollout
        self._several = several
        # The rest is verl's own: tokenizer, servers, tools. An agent of a fleet needs none of it.
        fields = Episodes.__dataclass_fields__
        self._episodes = Episodes(**{name: value for name, value in configured.items() if name in fields})

    async def run(self, sampling_params: dict[str, Any], **task: Any) -> Any:
        """A rollout. It stays leased until `acknowledge`, whose argument is in `extra_fields[LEASES]`; one without an
        output is acknowledged at once, and an evaluation has been discarded.

        Raises FleetError, which verl counts as a failure of the whole prompt.
        """
        rollout = await self._episodes.run(task, sampling=sampling_params)
        lengths = {"prompt_length": self._limits.prompt_length, "response_length": self._limits.response_length}
        made = outputs(rollout, **lengths) if self._several else [output(rollout, **lengths)]
        leases = [] if self._episodes.evaluation else leases_of(rollout)
        if not made:
            # No output carries the lease, and no step trains on it.
            await self._episodes.acknowledge(leases)
        for each in made:
            each.extra_fields[LEASES] = leases
        return made if self._several else made[0]


async def acknowledge(leases: Sequence[Lease], *, fleet: str | None = None) -> None:
    """The rollouts are trained, and the fleet forgets them. Call it after the step. Raises LeaseLost, FleetError."""
    await Episodes(agent="", fleet=fleet).acknowledge(leases)


def _outputs(
    rollout: Rollout, rows: Sequence[Row], prompt_length: int, response_length: int
) -> tuple[list[Any], LeftOut]:
    """An output for each of these rows that has trained tokens left, and the part of the rollout that is in none."""
    kept = [(row, part) for row in rows if (part := _limited(row, prompt_length, response_length)).response_mask.any()]
    every = training_rows(rollout)
    tokens = sum(map(trained_tokens, every)) - sum(int(part.response_mask.sum()) for _, part in kept)
    left_out = LeftOut(len(every) - len(kept), tokens)
    return [_output(part, row.reward, turns=len(row.turn_ids), left_out=left_out) for row, part in kept], left_out


def _limited(row: Row, prompt_length: int, response_length: int) -> Cut:
    parts = cut(row, longest_prompt=prompt_length)
    return Cut(parts.prompt_ids, *(values[:response_length] for values in parts[1:]))


def _output(parts: Cut, reward: float | None, *, turns: int, left_out: LeftOut) -> Any:
    versions = parts.response_versions[parts.response_mask == 1]
    fields = {
        "prompt_ids": parts.prompt_ids.tolist(),
        "response_ids": parts.response_ids.tolist(),
        "response_mask": parts.response_mask.tolist(),
        "response_logprobs": parts.response_logprobs.tolist(),
        "reward_score": reward,
        # Each turn is a prompt and an answer.
        "num_turns": 2 * turns,
    }
    steps = {"min_global_steps": int(versions.min()), "max_global_steps": int(versions.max())}
    return _make(fields, left_out, response_versions=parts.response_versions.tolist(), **steps)


def _make(fields: dict[str, Any], left_out: LeftOut, **extra: Any) -> Any:
    known = {"left_out_rows": left_out.rows, "left_out_tokens": left_out.tokens, "reward_extra_info": {}}
    kind = import_module("verl.experimental.agent_loop.agent_loop").AgentLoopOutput
    return kind(**fields, metrics={}, extra_fields={**known, **extra})
