"""A policy that only counts: how much reward each way to ask has brought so far. It stands for a model's weights."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

ARMS = (4, 12, 24, 48)
"""Ways to ask: how many tokens the answer may have."""


@dataclass
class Policy:
    """Chooses an arm in proportion to what it is worth, and now and then any."""

    curious: float = 0.1
    tries: dict[int, int] = field(default_factory=lambda: dict.fromkeys(ARMS, 0))
    rewards: dict[int, float] = field(default_factory=lambda: dict.fromkeys(ARMS, 0.0))

    def choose(self, rng: random.Random) -> int:
        untried = [arm for arm in ARMS if not self.tries[arm]]
        if untried or rng.random() < self.curious:
            return rng.choice(untried or ARMS)
        return max(ARMS, key=self.worth)

    def worth(self, arm: int) -> float:
        """The mean reward of an arm."""
        return self.rewards[arm] / max(1, self.tries[arm])

    def learn(self, seen: Iterable[tuple[int, float]]) -> None:
        """Count (arm, reward) of a batch."""
        for arm, reward in seen:
            self.tries[arm] += 1
            self.rewards[arm] += reward


def reward_of(tokens: int) -> float:
    """What the user wants: an answer of two dozen tokens. 1 at best, 0 at worst."""
    return max(0.0, 1.0 - abs(tokens - 24) / 24)
