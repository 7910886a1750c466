"""Advantages of episodes, from the rewards of groups that had the same task. Pure.

A group is the rewards of its members, None where a member failed or was given none. An episode has one advantage, which
is laid on all its rows. Sums are of Python's floats, so results don't depend on a device.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isclose, isfinite
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.formats.rollouts import Rollout, rows_of

Group: TypeAlias = Sequence[float | None]
Why = Literal["no reward", "group of one", "equal rewards"]


@dataclass(frozen=True, slots=True)
class Omitted:
    """A member that is not trained."""

    group: int
    member: int
    reason: Why
    """`no reward`: its own is None. `group of one`: no other member has one. `equal rewards`: all others have the same
    but for rounding (a relative 1e-9, or 1e-12 around zero), so that nothing can be learned of it."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """A number for each member of each group."""

    values: tuple[tuple[float | None, ...], ...]
    """None for one that is left out."""
    left_out: tuple[Omitted, ...]

    def on_rows(self, groups: Iterable[Sequence[Rollout]]) -> tuple[list[Row], list[float | None]]:
        """All rows of the groups' rollouts, and for each the advantage of its episode.

        Raises ValueError where the groups are not those of the rewards.
        """
        pairs = [
            (row, value)
            for group, values in zip(groups, self.values, strict=True)
            for rollout, value in zip(group, values, strict=True)
            for row in rows_of(rollout)
        ]
        return [row for row, _ in pairs], [value for _, value in pairs]


def grpo(groups: Iterable[Group], *, deviation: bool = True) -> Advantages:
    """The reward less the group's mean, by the group's standard deviation (of a sample, n - 1): GRPO.

    Shao et al., DeepSeekMath, arXiv:2402.03300. Without `deviation` it is not divided: Liu et al., Understanding
    R1-Zero-Like Training, arXiv:2503.20783. Raises ValueError for a reward that is no finite number.
    """
    return _advantages(groups, (lambda rewards: _by_deviation(_centred(rewards))) if deviation else _centred)


def rloo(groups: Iterable[Group]) -> Advantages:
    """The reward less the mean of the other members': REINFORCE, leave one out.

    Kool et al., Buy 4 REINFORCE Samples, Get a Baseline for Free (2019); Ahmadian et al., Back to Basics,
    arXiv:2402.14740. Raises ValueError for a reward that is no finite number.
    """
    # r - (sum - r) / (n - 1) is (r - mean) * n / (n - 1).
    return _advantages(groups, lambda rewards: [each * len(rewards) / (len(rewards) - 1) for each in _centred(rewards)])


def reinforce_pp(groups: Iterable[Group]) -> Advantages:
    """The reward less the group's mean, normalised over all members of all groups: REINFORCE++ with group baseline.

    Hu et al., REINFORCE++, arXiv:2501.03262: less the batch's mean, by its standard deviation (of a sample, n - 1). In
    the paper each token counts, here each episode. Raises ValueError for a reward that is no finite number.
    """
    centred = _advantages(groups, _centred)
    kept = iter(_by_deviation(_centred([value for group in centred.values for value in group if value is not None])))
    values = tuple(tuple(None if value is None else next(kept) for value in group) for group in centred.values)
    return Advantages(values, centred.left_out)


def _advantages(groups: Iterable[Group], of_group: Callable[[Sequence[float]], list[float]]) -> Advantages:
    values: list[tuple[float | None, ...]] = []
    left_out: list[Omitted] = []
    for number, group in enumerate(groups):
        for member, reward in enumerate(group):
            if reward is not None and not isfinite(reward):
                raise ValueError(f"group {number}, member {member}: reward is {reward}; None says that there is none")
        rewards = [float(reward) for reward in group if reward is not None]
        why = _why_not(rewards)
        found = iter(of_group(rewards)) if why is None else repeat(None)
        values.append(tuple(None if reward is None else next(found) for reward in group))
        reasons = [(member, "no reward" if reward is None else why) for member, reward in enumerate(group)]
        left_out += [Omitted(number, member, reason) for member, reason in reasons if reason is not None]
    return Advantages(tuple(values), tuple(left_out))


def _why_not(rewards: Sequence[float]) -> Why | None:
    """The reason why members with these rewards are left out, all of them; None where they are not."""
    if len(rewards) <= 1:
        return "group of one"
    # Sums of the same rewards may differ by their rounding, which a division by the deviation makes as large as any.
    return "equal rewards" if isclose(min(rewards), max(rewards), abs_tol=1e-12) else None


def _centred(rewards: Sequence[float]) -> list[float]:
    mean = fmean(rewards or [0.0])
    return [reward - mean for reward in rewards]


def _by_deviation(centred: Sequence[float]) -> list[float]:
    deviation = stdev(centred or [0.0, 0.0])
    return [each / deviation for each in centred]
