"""What a comparison with a trainer's own classes comes to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rolloutfleet.formats import Rollout, rows_of

TYPES: Final = {"input_ids": np.int64, "loss_mask": np.uint8, "logprobs": np.float32, "versions": np.int32}
Bits = tuple[bytes, ...]
"""A row's columns, and its reward, which is empty where nobody gave one."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One trainer."""

    rollouts: int
    empty: int
    """Rollouts of which nothing is made: failed, without a turn, or without a reward where the trainer needs one."""
    rows: int
    """Rows that are to come out."""
    tokens: int
    equal: int
    """Rows that came out equal to the bit."""
    beyond: int
    """Rows that came out and are none of them."""

    @property
    def holds(self) -> bool:
        return self.rows == self.equal > 0 and self.beyond == 0


def compared(rollouts: Sequence[Rollout], wanted: Iterable[Sequence[Bits]], had: Iterable[Sequence[Bits]]) -> Compared:
    """Compare what is to come out of each rollout with what did, both [rollout][row], in any order of the rows.

    Whatever stands for a row begins with its ids, int64.
    """
    pairs = [(Counter(each), Counter(other)) for each, other in zip(wanted, had, strict=True)]
    return Compared(
        rollouts=len(rollouts),
        empty=sum(not each for each, _ in pairs),
        rows=sum(each.total() for each, _ in pairs),
        tokens=sum(len(row[0]) // 8 for each, _ in pairs for row in each.elements()),
        equal=sum((each & other).total() for each, other in pairs),
        beyond=sum((other - each).total() for each, other in pairs),
    )


def native(rollout: Rollout, *, rewarded: bool = False) -> list[Bits]:
    """The rollout's rows that train something, as the export has them; with `rewarded` those that have a reward."""
    return [
        bits([row.tensors[name] for name in TYPES], row.reward)
        for row in rows_of(rollout)
        if np.any(np.asarray(row.tensors["loss_mask"])) and not (rewarded and row.reward is None)
    ]


def bits(columns: Sequence[Any], reward: Any) -> Bits:
    """A row of its columns, in the order of TYPES. Rewards are numbers of 32 bits, as all trainers have them."""
    pairs = zip(columns, TYPES.values(), strict=True)
    return *(np.asarray(each, kind).tobytes() for each, kind in pairs), _reward(reward)


def _reward(given: Any) -> bytes:
    return b"" if given is None else np.float32(given).tobytes()
