"""slime's samples, on a stand-in with the fields of its own class: several rows stay several, of one rollout."""

from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from tests.unit.client.formats.drawn import SIX, column, rollout, rollouts, same, turn

from rolloutfleet.fleet import BadArgument
from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats import slime
from rolloutfleet.formats.rollouts import training_rows


@dataclass
class Sample:
    """A stand-in: these fields of slime/utils/types.py."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    label: str | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)


ASKED = Sample(group_index=2, index=17, prompt="2 + 2?", label="4", metadata={"level": 1})


@given(rollouts())
def test_samples_have_each_row_to_the_bit(drawn: list[Trajectory]) -> None:
    rows = training_rows(drawn)
    made = slime.samples(drawn, ASKED)
    if not rows:
        assert [sample.loss_mask for sample in made] == [[0]]
        return
    assert all(is_of(sample, row) for sample, row in zip(made, rows, strict=True))
    assert {(sample.rollout_id, sample.group_index, sample.label) for sample in made} == {(17, 2, "4")}


def is_of(sample: Sample, row: Row) -> bool:
    begin = len(sample.tokens) - sample.response_length
    turns, versions = column(row, "turn_ids").tolist(), column(row, "versions").tolist()
    stretches = [str(version) for (at, version), _ in groupby(zip(turns, versions, strict=True)) if at >= 0]
    return (
        same(sample.tokens, row, "input_ids")
        and same(sample.loss_mask, row, "loss_mask", begin=begin)
        and same(sample.rollout_log_probs, row, "logprobs", begin=begin)
        and sample.weight_versions == stretches
        and sample.reward == row.reward
    )


def test_samples_of_a_rollout_share_its_id() -> None:
    made = slime.samples(rollout(SIX), ASKED)
    assert [sample.rollout_id for sample in made] == [17, 17, 17]
    given_one = slime.samples(rollout(SIX), Sample(index=17, rollout_id=5))
    assert [sample.rollout_id for sample in given_one] == [5, 5, 5]
    assert ASKED.tokens == []


def test_samples_have_a_version_for_each_stretch_of_a_turn() -> None:
    first = turn(None)
    switched = type(first)(0, [1], [(2, -0.5, 3), (3, -0.5, 4), (4, -0.5, 4)])
    (made,) = slime.samples(rollout([first, switched]), ASKED)
    assert made.weight_versions == ["3", "3", "4"]


@pytest.mark.parametrize("outcome", ["completed", "truncated", "failed", "aborted"])
def test_samples_have_the_outcome_as_status(outcome: Any) -> None:
    assert {sample.status.value for sample in slime.samples(rollout(SIX, outcome=outcome), ASKED)} == {outcome}


def test_samples_of_a_failed_member_are_one_that_is_not_trained() -> None:
    for drawn in ([], rollout(SIX, outcome="failed", reward=None)):
        (made,) = slime.samples(drawn, ASKED)
        assert (made.tokens, made.response_length, made.loss_mask, made.rollout_log_probs) == ([0, 0], 1, [0], [0.0])
        assert (made.reward, made.status, made.rollout_id) == (None, Sample.Status.FAILED, 17)


async def test_generate_names_the_fleet_that_it_does_not_find() -> None:
    args = SimpleNamespace(rolloutfleet={"agent": "agents:solve", "fleet": "/nowhere/fleet.json"})
    with pytest.raises(BadArgument, match="no fleet runs from /nowhere"):
        await slime.generate(args, ASKED, {})
