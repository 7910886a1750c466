# mypy: disable-error-code="import-not-found,no-untyped-call"
"""The transformer that learns, in torch: fresh weights, log-probabilities, a GRPO update, checkpoints.

GRPO (https://arxiv.org/abs/2402.03300): the advantage of a rollout is its reward against its group's mean, in units of
the group's spread, and the ratio to the sampling policy is clipped.
"""

from pathlib import Path
from typing import Any, Final, Self

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

LEARNING_RATE: Final = 1e-2
CLIP: Final = 0.2
EPOCHS: Final = 2
ROWS_AT_ONCE: Final = 16
SMALL: Final = 1e-4

Batch = dict[str, Any]

logging.disable_progress_bar()


class Policy:
    """A model and its optimiser."""

    def __init__(self, model: Any) -> None:
        self.model = model.float().eval()
        self._optimiser = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    @classmethod
    def fresh(cls, config: Path, *, seed: int) -> Self:
        """Random weights for a configuration."""
        torch.manual_seed(seed)
        # Tied to the embedding, the output layer would mostly repeat the token just read.
        return cls(Qwen3ForCausalLM(Qwen3Config.from_pretrained(config, tie_word_embeddings=False)))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """A checkpoint."""
        return cls(Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32))

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def moved(self, *, seed: int, by: float) -> None:
        """Shift every weight at random, so that two versions can't be taken for each other."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(by * torch.randn_like(parameter))

    def logprobs(self, batch: Batch) -> Any:
        """Of each token after the first, given those before it: float32 [rows, columns - 1]."""
        ids = batch["input_ids"]
        output = self.model(
            input_ids=ids, attention_mask=batch["attention_mask"], position_ids=batch["position_ids"], use_cache=False
        )
        return output.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)

    def scored(self, batch: Batch) -> Any:
        """The same as they are now, each under its token: float32 [rows, columns], 0 under the first."""
        with torch.no_grad():
            found = torch.cat([self.logprobs(part) for part in _parts(batch)])
        return torch.nn.functional.pad(found, (1, 0))

    def update(self, batch: Batch, advantages: Any) -> None:
        """Some steps of the optimiser. `advantages` float32 [rows]."""
        tokens = int(batch["loss_mask"].sum())
        for _ in range(EPOCHS):
            self._optimiser.zero_grad()
            for part in _parts(batch | {"advantages": advantages}):
                mask = part["loss_mask"][:, 1:]
                ratio = (self.logprobs(part) - part["logprobs"][:, 1:]).exp()[mask]
                advantage = part["advantages"][:, None].expand_as(mask)[mask]
                gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                (-gain.sum() / tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimiser.step()


def furthest(batch: Batch, ours: Any) -> float:
    """The largest distance between the engine's log-probabilities and others, over what was sampled."""
    apart = (ours - batch["logprobs"]).abs()[batch["loss_mask"]]
    return float(apart.max()) if apart.numel() else 0.0


def advantages_of(rewards: Any, groups: Any) -> Any:
    """Of each row against its group: float32 [rows], like `rewards`."""
    found = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        own = rewards[members]
        found[members] = (own - own.mean()) / (own.std(unbiased=False) + SMALL)
    return found


def _parts(batch: Batch) -> list[Batch]:
    """A few rows at a time, which bounds the memory."""
    rows = len(batch["input_ids"])
    return [
        {name: value[at : at + ROWS_AT_ONCE] for name, value in batch.items()} for at in range(0, rows, ROWS_AT_ONCE)
    ]
