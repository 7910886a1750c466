"""Tinker's datums: a row shifted by one, and no advantage where nothing is trained."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.formats.drawn import SIX, column, rollout, rollouts, same
from tests.unit.client.formats.standins import Datum, install_tinker

from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats import rows_of, tinker

ADVANTAGES = st.none() | st.floats(-5, 5, width=32)


def made_of(rows: list[Row], advantages: list[float | None]) -> list[Datum]:
    with pytest.MonkeyPatch.context() as patched:
        install_tinker(patched)
        return tinker.datums(rows, advantages)


@given(rollouts(), st.data())
def test_datums_are_the_rows_shifted_by_one(drawn: list[Trajectory], data: st.DataObject) -> None:
    rows = rows_of(drawn)
    advantages = [data.draw(ADVANTAGES) for _ in rows]
    trained = [(row, each) for row, each in zip(rows, advantages, strict=True) if each is not None]
    made = made_of(rows, advantages)
    assert len(made) == len(trained)
    for datum, (row, advantage) in zip(made, trained, strict=True):
        inputs = {name: data.array for name, data in datum.loss_fn_inputs.items()}
        assert set(inputs) == {"target_tokens", "logprobs", "advantages", "mask"}
        first = column(row, "input_ids")[:1].tolist()
        assert same(first + inputs["target_tokens"].tolist(), row, "input_ids")
        assert datum.model_input.tokens == column(row, "input_ids")[:-1].tolist()
        assert same(inputs["logprobs"], row, "logprobs", begin=1)
        assert same(inputs["mask"], row, "loss_mask", begin=1)
        assert inputs["advantages"].tolist() == [advantage if bit else 0.0 for bit in inputs["mask"]]
        assert {each.dtype for each in inputs.values()} == {np.dtype(np.int64), np.dtype(np.float32)}
        assert len({len(each) for each in [*inputs.values(), datum.model_input.tokens]}) == 1


def test_datums_predict_each_token_from_those_before_it() -> None:
    (row, *_) = rows_of(rollout(SIX))
    (made,) = made_of([row], [0.5])
    at = int(np.flatnonzero(column(row, "loss_mask"))[0])
    assert made.loss_fn_inputs["target_tokens"].array[at - 1] == column(row, "input_ids")[at]
    assert made.loss_fn_inputs["logprobs"].array[at - 1] == column(row, "logprobs")[at]
    assert made.loss_fn_inputs["advantages"].array[:at].tolist() == [0.0] * (at - 1) + [0.5]


def test_datums_keep_no_memory_of_the_rows() -> None:
    (row, *_) = rows_of(rollout(SIX))
    (made,) = made_of([row], [1.0])
    for data in made.loss_fn_inputs.values():
        assert data.array.flags.writeable and not np.shares_memory(data.array, column(row, "input_ids"))


def test_datums_need_an_advantage_for_each_row() -> None:
    rows = rows_of(rollout(SIX))
    with pytest.raises(ValueError, match="shorter"):
        made_of(rows, [1.0])
    assert made_of(rows, [None] * len(rows)) == []


def test_advantages_that_are_not_representable_are_rounded_once() -> None:
    (row, *_) = rows_of(rollout(SIX))
    found = tinker.shifted(row, math.pi)["advantages"]
    assert set(found.tolist()) == {0.0, float(np.float32(math.pi))}
