"""Rollouts that are always the same: each kind that an export has, and many by chance from a fixed seed."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np
from tests.unit.client.formats.drawn import KINDS, OUTCOMES, SIX, Turn, rollout, turn

from rolloutfleet.fleet.trajectories import Trajectory

SEED: Final = 31
DRAWN: Final = 200


def _rewarded(turns: Sequence[Turn], *, reward: float | None = 1.0, **said: Any) -> list[Trajectory]:
    """A session whose last turn was given the reward."""
    return rollout([*turns[:-1], replace(turns[-1], reward=reward)], reward=reward, **said)


NAMED: Final[dict[str, list[Trajectory]]] = {
    "a sub-agent and a compaction": _rewarded(SIX, session="s1-a"),
    "several trajectories": _rewarded([*SIX, turn(2, "subagent"), turn(6)], session="s1-b", ends=(3, 5), reward=-0.5),
    "failed": _rewarded(SIX, session="s1-c", outcome="failed", reward=None),
    "failed, with a reward": _rewarded(SIX, session="s1-d", outcome="failed", reward=0.0),
    "without a turn": [],
    "without a reward": _rewarded(SIX, session="s1-e", reward=None),
    "one row": _rewarded(SIX[:2], session="s1-f", outcome="truncated", reward=1 / 3),
    "no main loop": _rewarded([turn(None, "subagent")], session="s1-g", reward=0.25),
}


def fixed() -> list[list[Trajectory]]:
    """All of them."""
    chance = Random(SEED)
    return [*NAMED.values(), *(_drawn(chance, f"s2-{number}") for number in range(DRAWN))]


def _drawn(chance: Random, session: str) -> list[Trajectory]:
    """A session of up to six turns, in up to three trajectories."""
    count = chance.randint(1, 6)
    turns = [
        Turn(
            parent=chance.choice([None, *range(at)]),
            prompt=[_token(chance) for _ in range(chance.randint(1, 40))],
            output=[_sampled(chance) for _ in range(chance.randint(1, 40))],
            kind=chance.choice(KINDS),
        )
        for at in range(count)
    ]
    return _rewarded(
        turns,
        session=session,
        ends=sorted(chance.randint(0, count) for _ in range(chance.randint(0, 2))),
        outcome=chance.choice(OUTCOMES),
        reward=chance.choice([None, chance.gauss(0, 1), chance.gauss(0, 1)]),
    )


def _token(chance: Random) -> int:
    return chance.randrange(2**17)


def _sampled(chance: Random) -> tuple[int, float, int]:
    return _token(chance), float(np.float32(-chance.expovariate(1))), chance.randrange(10)
