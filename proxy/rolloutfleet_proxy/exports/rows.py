"""What training gets of a trajectory: its rows, their returns and their tensors. Pure.

In a row, a token is trained where `loss_mask` is 1: it was sampled for a turn of this trajectory that no earlier row
trains. Every other token is prompt there: log-probability 0, version -1, turn index -1. That holds also for what the
engine sampled for another trajectory, or for a turn that an earlier row trains, so whatever is counted over
log-probabilities, versions or turn indices counts each sampled token once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rolloutfleet.wire import ExportStyle, LineageKind
from rolloutfleet_proxy.domain.trajectory import ExportTurn

TENSORS: Final[Mapping[str, type[np.generic]]] = {
    "input_ids": np.int64,
    "logprobs": np.float32,
    "versions": np.int32,
    "turn_ids": np.int32,
    "loss_mask": np.uint8,
}
"""The tensors of a row, each with one element a token."""

_ON_PROMPT: Final = {"logprobs": 0.0, "versions": -1, "turn_ids": -1, "loss_mask": 0}


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: everything from the root to the end of turn `last`."""

    last: int
    own: tuple[int, ...]
    """Its turns that are of this trajectory, in order; in `individual`, the last alone."""
    trained: frozenset[int]
    """Those of `own` whose output is trained here; none where its session's outcome is not trained."""
    reward: float | None
    """The row's return; None where nothing that it adds up was rewarded."""


def rows(
    turns: Mapping[int, ExportTurn],
    kept: Sequence[int],
    *,
    style: ExportStyle,
    discount: float,
    context: Collection[LineageKind] = (),
) -> list[Row]:
    """The rows of a trajectory whose kept turns are `kept`; `turns` holds them and all they extend.

    `concat`: a row for each leaf, a kept turn that no kept turn extends, in order of commit. Its reward is the return
    at its first own turn, discounted along the row: G = r + discount * G of the next. A turn that several rows share
    trains in the first. `individual`: a row for each turn, with the return r + discount * mean(G of its children).
    A turn without a reward adds nothing, and where no turn has one there is no return.

    Turns of lineages of the kinds in `context` are trained in no row, and a row that trains none is left out; what a
    row that ends in such a turn shares with one that ends in a trained turn is trained in the latter.
    """
    kept = sorted(kept)
    trainable = {number for number in kept if turns[number].lineage.kind not in context}
    children: dict[int, list[int]] = {number: [] for number in kept}
    for number in kept:
        parent = turns[number].parent
        if parent in children:
            children[parent].append(number)
    if style == "individual":
        returns = _returns(turns, children, discount)
        return [Row(number, (number,), frozenset((number,)), returns[number]) for number in kept if number in trainable]
    made = []
    untrained = set(trainable)
    # What a fork that is context shares with a trained row is trained there, with the return that it led to.
    leaves = [number for number in kept if not children[number]]
    for leaf in sorted(leaves, key=lambda leaf: leaf not in trainable):
        own = tuple(number for number in path(turns, leaf) if number in children)
        trained = untrained.intersection(own)
        untrained -= trained
        if trained:
            made.append(Row(leaf, own, frozenset(trained), _return_along(turns, own, discount)))
    return sorted(made, key=attrgetter("last"))


def return_of(
    turns: Mapping[int, ExportTurn], kept: Sequence[int], number: int, *, style: ExportStyle, discount: float
) -> float | None:
    """The return of the row that trains a rewarded turn, of the trajectory whose kept turns are `kept`."""
    made = rows(turns, kept, style=style, discount=discount)
    return next(row.reward for row in made if number in row.trained)


def credited(made: Iterable[Row], reward: float | None) -> list[Row]:
    """The rows, where those without a return have this one."""
    return [replace(row, reward=reward) if row.reward is None else row for row in made]


def untrained(made: Iterable[Row]) -> list[Row]:
    """The rows, with no token to train."""
    return [replace(row, trained=frozenset()) for row in made]


def path(turns: Mapping[int, ExportTurn], last: int) -> list[int]:
    """The numbers of the turns from the root to `last`. Raises KeyError where one is not there."""
    found = []
    at: int | None = last
    while at is not None:
        found.append(at)
        at = turns[at].parent
    return found[::-1]


def input_ids(turns: Mapping[int, ExportTurn], row: Row, ids: Mapping[int, bytes]) -> npt.NDArray[np.int64]:
    """All of a row's tokens; `ids` holds each turn's new prompt and output as int32."""
    tokens = b"".join(ids[number] for number in path(turns, row.last))
    return np.frombuffer(tokens, np.int32).astype(np.int64)


def of_trained(
    name: str, turns: Mapping[int, ExportTurn], row: Row, values: Mapping[int, Any]
) -> npt.NDArray[np.generic]:
    """One of the other tensors of a row. `values` holds, for each trained turn, one value or one an output token."""
    tensor = np.full(turns[row.last].tokens, _ON_PROMPT[name], TENSORS[name])
    for number in row.trained:
        turn = turns[number]
        tensor[turn.prompt_tokens : turn.tokens] = values[number]
    return tensor


def _return_along(turns: Mapping[int, ExportTurn], own: Sequence[int], discount: float) -> float | None:
    if all(turns[number].reward is None for number in own):
        return None
    total = 0.0
    for number in reversed(own):
        total = (turns[number].reward or 0.0) + discount * total
    return total


def _returns(
    turns: Mapping[int, ExportTurn], children: Mapping[int, list[int]], discount: float
) -> dict[int, float | None]:
    returns: dict[int, float] = {}
    rewarded: set[int] = set()
    """Those that have a reward, or that a rewarded turn extends."""
    for number in sorted(children, reverse=True):
        behind = [returns[child] for child in children[number]]
        returns[number] = (turns[number].reward or 0.0) + (discount * sum(behind) / len(behind) if behind else 0.0)
        if turns[number].reward is not None or not rewarded.isdisjoint(children[number]):
            rewarded.add(number)
    return {number: returned if number in rewarded else None for number, returned in returns.items()}
