"""Episodes, each an agent's work on a task, and the figures of many. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import numpy as np

from rolloutfleet.fleet.trajectories import Row, Trajectory, sum_given
from rolloutfleet.wire import CloseSession, Outcome, SessionStatus

ABANDONED: Final = CloseSession(outcome="aborted", reason="the rollout was ended")


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """One member of a group: an agent that has worked on a task, in a session of its own."""

    task: Any
    session: Any
    """The session, as the agent had it; of the last attempt."""
    attempt: int = 0
    """The number of times that it was run again."""
    ending: CloseSession = ABANDONED
    """The end that its session was told."""
    error: BaseException | None = None
    """The exception of the agent, or of the function that rewards it."""
    result: Any = None
    """The value that the agent returned."""
    seconds: float = 0.0
    """Of the last attempt."""
    status: SessionStatus | None = None
    """The status of an evaluation's session, which is never exported; None of any other."""
    trajectories: tuple[Trajectory, ...] = ()
    """Its export, leased; none before its group has ended, and none of an evaluation."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of its session, by the fleet's word where it has turns."""
        said = self.ending.outcome or ("completed" if self.error is None else "aborted")
        return next((each.outcome for each in self._told if each.outcome), said)

    @property
    def reason(self) -> str | None:
        """The reason of that."""
        return next((each.outcome_reason for each in self._told if each.outcome), self.ending.reason)

    @property
    def _told(self) -> Sequence[SessionStatus | Trajectory]:
        return self.trajectories if self.status is None else (self.status,)

    @property
    def session_id(self) -> str:
        """Of its session."""
        return str(self.session.session_id)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of its trajectories, in their order."""
        return tuple(row for trajectory in self.trajectories for row in trajectory.rows)

    @property
    def reward(self) -> float | None:
        """The sum of its turns' rewards; of an evaluation, that of the newest of the main loop's rewarded turns. None
        where none was given."""
        return sum_given(each.reward for each in self.trajectories) if self.status is None else self.status.reward

    @property
    def turns(self) -> int:
        """The number of turns in its trajectories, or of an evaluation's session."""
        return sum(len(each.turns) for each in self.trajectories) if self.status is None else self.status.turns

    @property
    def tokens(self) -> int:
        """The tokens of its rows, prompts and context included; of an evaluation, those of its session's turns."""
        return sum(each.tokens for each in self.trajectories) if self.status is None else self.status.tokens

    @property
    def versions(self) -> tuple[int, int] | None:
        """The lowest and the highest weight version of its tokens; None without any, or where these are shards."""
        of_rows = [row.tensors["versions"] for row in self.rows]
        known = [each[each >= 0] for each in of_rows if isinstance(each, np.ndarray)]
        found = np.concatenate(known) if known else np.empty(0)
        return (int(found.min()), int(found.max())) if found.size else None

    @property
    def age(self) -> int | None:
        """Versions that its oldest token was behind the fleet at its export; None without tokens."""
        ages = [each.version - each.oldest_version for each in self.trajectories if each.oldest_version is not None]
        return max(0, *ages) if ages else None


@dataclass(slots=True, kw_only=True, eq=False)
class EpisodeGroup:
    """The episodes of one task."""

    place: int
    """Of its task among the tasks."""
    group_id: str
    task: Any
    episodes: list[Episode] = field(default_factory=list)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def rewards(self) -> list[float | None]:
        """One for each episode."""
        return [episode.reward for episode in self.episodes]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those of all its episodes."""
        return [each for episode in self.episodes for each in episode.trajectories]


def pass_at(k: int, *, members: int, passed: int) -> float:
    """The chance that one of k members has passed, k drawn of those there are without putting back (arXiv:2107.03374).

    NaN where there are fewer than k.
    """
    if members < k:
        return math.nan
    return 1.0 - math.comb(members - passed, k) / math.comb(members, k)


def is_positive(reward: float) -> bool:
    return reward > 0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of an episode that `metrics` needs, without its rows."""

    reward: float | None
    outcome: Outcome
    reason: str | None
    seconds: float
    turns: int
    tokens: int
    age: int | None

    @classmethod
    def of(cls, episode: Episode) -> Self:
        return cls(**{each.name: getattr(episode, each.name) for each in fields(cls)})


def metrics(groups: Sequence[Sequence[Figures]], *, passes: Callable[[float], bool]) -> dict[str, float]:
    """Figures for a logger. A mean of nothing is left out.

    `reward` is the mean of those that were given, `pass@K` the mean over groups for K = 1, 2, 4 ... up to the size of
    the smallest group, in which whoever has no reward has not passed. `age` is that of episodes, in weight
    versions.
    """
    episodes = [episode for group in groups for episode in group]
    found: dict[str, float] = {"groups": len(groups), "episodes": len(episodes)}
    found |= {f"outcome/{name}": count for name, count in Counter(each.outcome for each in episodes).items()}
    reasons = Counter(_kind(each.reason) for each in episodes if each.outcome == "failed")
    found |= {f"failed/{name}": count for name, count in reasons.items()}
    ages = [each.age for each in episodes if each.age is not None]
    for name, values in (
        ("reward", [each.reward for each in episodes if each.reward is not None]),
        ("turns", [each.turns for each in episodes if each.turns]),
        ("tokens", [each.tokens for each in episodes if each.turns]),
        ("seconds", [each.seconds for each in episodes]),
        ("age", ages),
    ):
        if values:
            found[name] = sum(values) / len(values)
    if ages:
        found["age/most"] = max(ages)
    smallest = min(map(len, groups), default=0)
    for k in (2**power for power in range(smallest.bit_length())):
        of_groups = [pass_at(k, members=len(group), passed=_passed(group, passes)) for group in groups]
        found[f"pass@{k}"] = sum(of_groups) / len(of_groups)
    return found


def _passed(group: Iterable[Figures], passes: Callable[[float], bool]) -> int:
    return sum(each.reward is not None and passes(each.reward) for each in group)


def _kind(reason: str | None) -> str:
    """The exception's name, or the first words."""
    return (reason or "unknown").partition(":")[0][:60]
