# mypy: disable-error-code="import-not-found,no-untyped-call,misc"
"""What TRL trains on, compared with what the fleet exported, update by update."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from trl import GRPOTrainer

from rolloutfleet.formats import Rollout, episode_reward, rows_of
from rolloutfleet.formats.trl import rollout as converted

EQUAL: Final = 1e-4
"""Log-probabilities of the same weights are no further apart."""
FAILED: Final = "failed"

Compared = tuple[bytes, bytes, bytes]
"""A row's ids, mask and log-probabilities."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update."""

    version: int
    """The weights that rolled out."""
    reward: float
    """The mean of what the agents got, whoever it was credited to."""
    tokens: int
    """Tokens that were trained."""
    rows: int
    equal: int
    """Rows that are the export's to the bit."""
    rewards: int
    """Rewards that are, None as NaN."""
    failed: int
    """Agents that failed."""
    idle: int
    """Rows that train nothing: no token, no reward, no advantage."""
    furthest: float
    """The largest distance of the engine's log-probabilities from those of `transformers`."""
    seconds: float

    @property
    def problems(self) -> list[str]:
        """What is not as it has to be."""
        wrong = {
            f"only {self.equal} of {self.rows} rows are the export's": self.equal != self.rows,
            f"only {self.rewards} of {self.rows} rewards are the export's": self.rewards != self.rows,
            f"{self.failed} failed, and {self.idle} rows train nothing": self.failed != self.idle,
            f"log-probabilities are {self.furthest:.1e} apart": self.furthest > EQUAL,
        }
        return [f"version {self.version}: {text}" for text, holds in wrong.items() if holds]


@dataclass
class Watch:
    """A process of a run. It stands where rollouts are converted, and in the trainer that `trainer` makes."""

    updates: list[Update] = field(default_factory=list)
    evaluated: int = 0
    """Rollouts of evaluations."""
    _rollouts: list[Rollout] = field(default_factory=list)
    """Of the update that is being made, as the fleet exported them."""
    _rewards: list[float] = field(default_factory=list)
    """Theirs, as TRL has them."""
    _since: float = field(default_factory=time.monotonic)

    def rollout(self, rollouts: Sequence[Rollout], **options: Any) -> dict[str, list[Any]]:
        """`trl.rollout`, seen."""
        self._rollouts = list(rollouts)
        return converted(rollouts, **options)

    def trainer(self, *, shuffle: bool) -> type[Any]:
        """A GRPOTrainer that is seen, and evaluates what it trains on, if at all. With `shuffle` each reward goes to
        somebody else."""
        watch = self

        class Watched(GRPOTrainer):
            def __init__(self, *args: Any, train_dataset: Any, **options: Any) -> None:
                super().__init__(*args, train_dataset=train_dataset, eval_dataset=train_dataset, **options)

            def _calculate_rewards(self, *args: Any) -> Any:
                rewards = super()._calculate_rewards(*args)  # of all processes
                watch._rewards = rewards[:, 0].split(len(watch._rollouts))[self.accelerator.process_index].tolist()
                return rewards[torch.randperm(len(rewards))] if shuffle else rewards

            def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
                if self.model.training:
                    watch.updates.append(watch._update(self.accelerator.unwrap_model(model), inputs))
                else:
                    watch.evaluated += len(watch._rollouts)
                return super().compute_loss(model, inputs, *args, **options)

        return Watched

    def _update(self, model: Any, inputs: dict[str, Any]) -> Update:
        wanted = sorted(exported(rollout, pad=model.config.pad_token_id) for rollout in self._rollouts)
        had = sorted(trained(inputs))
        rewards = np.array([np.nan if (one := episode_reward(each)) is None else one for each in self._rollouts], "f4")
        trains = (inputs["tool_mask"] * inputs["completion_mask"]).sum(1)
        began, self._since = self._since, time.monotonic()
        return Update(
            version=self._rollouts[0][0].version,
            reward=float(np.nanmean(rewards)),
            tokens=int(trains.sum()),
            rows=len(had),
            equal=sum(one == other for one, other in zip(had, wanted, strict=True)),
            rewards=int((rewards.view("u4") == np.array(self._rewards, "f4").view("u4")).sum()),
            failed=sum(each.outcome == FAILED for rollout in self._rollouts for each in rollout),
            idle=int(((trains == 0) & (inputs["advantages"] == 0)).sum()),
            furthest=furthest(model, inputs),
            seconds=self._since - began,
        )


def exported(rollout: Rollout, *, pad: int) -> Compared:
    """A rollout's row; two tokens of padding that train nothing, where its agent failed."""
    [row] = rows_of(rollout)
    if rollout[0].outcome == FAILED:
        return compared([pad, pad], [0, 0], [0.0, 0.0])
    return compared(row.tensors["input_ids"], row.tensors["loss_mask"], row.tensors["logprobs"])


def trained(inputs: dict[str, Any]) -> Iterator[Compared]:
    """The rows that a loss is computed of, without padding. Nothing of a prompt is trained or has a log-probability."""
    prompts, completions = inputs["prompt_mask"].bool(), inputs["completion_mask"].bool()
    for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        before = [0] * int(prompt.sum())
        yield compared(
            [*inputs["prompt_ids"][at][prompt].tolist(), *inputs["completion_ids"][at][completion].tolist()],
            [*before, *inputs["tool_mask"][at][completion].tolist()],
            [*before, *inputs["sampling_per_token_logps"][at][completion].tolist()],
        )


def compared(ids: Any, mask: Any, logprobs: Any) -> Compared:
    return np.asarray(ids, "i8").tobytes(), np.asarray(mask, "u1").tobytes(), np.asarray(logprobs, "f4").tobytes()


def furthest(model: Any, inputs: dict[str, Any]) -> float:
    """The largest distance over all trained tokens, each row computed on its own."""
    most = 0.0
    for at, (prompt, completion) in enumerate(zip(inputs["prompt_mask"], inputs["completion_mask"], strict=True)):
        ids = torch.cat([inputs["prompt_ids"][at][prompt.bool()], inputs["completion_ids"][at][completion.bool()]])
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        said = logits.float().log_softmax(-1).gather(-1, ids[1:, None])[-int(completion.sum()) :, 0]
        apart = (said - inputs["sampling_per_token_logps"][at][completion.bool()]).abs()
        apart = apart[inputs["tool_mask"][at][completion.bool()].bool()]
        most = max(most, float(apart.max()) if len(apart) else 0.0)
    return most
