"""Both parts of a row are the row, and what is no row is an error."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.formats.drawn import SIX, column, rollout, rollouts, same

from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats import cut, rows_of
from rolloutfleet.tensors import RemoteTensor

ROW = rollout(SIX)[0].rows[0]


@given(rollouts(), st.none() | st.integers(0, 9))
def test_cut_loses_nothing(drawn: list[Trajectory], longest: int | None) -> None:
    for row in rows_of(drawn):
        parts = cut(row, longest_prompt=longest)
        begin = len(parts.prompt_ids)
        assert same([*parts.prompt_ids, *parts.response_ids], row, "input_ids")
        assert same(parts.response_mask, row, "loss_mask", begin=begin)
        assert same(parts.response_logprobs, row, "logprobs", begin=begin)
        assert same(parts.response_versions, row, "versions", begin=begin)
        assert not column(row, "loss_mask")[:begin].any()
        if longest is not None and begin == longest:
            continue
        assert len(parts.response_ids) == 0 or parts.response_mask[0] == 1


def test_cut_of_a_row_that_trains_nothing_is_all_prompt() -> None:
    (row, *_) = rollout(SIX, outcome="failed", reward=None)[0].rows
    parts = cut(row)
    assert [len(part) for part in parts] == [row.tokens, 0, 0, 0, 0]


def changed(**tensors: Any) -> Row:
    held = {name: value for name, value in {**ROW.tensors, **tensors}.items() if value is not None}
    return Row(ROW.turn_ids, ROW.reward, held)


def test_cut_names_what_is_wrong_with_a_row() -> None:
    with pytest.raises(ValueError, match="has no logprobs; it has input_ids"):
        cut(changed(logprobs=None))
    with pytest.raises(ValueError, match=r"differ in length.*'versions': 2"):
        cut(changed(versions=np.zeros(2, np.int32)))
    with pytest.raises(ValueError, match=r"input_ids of this rollout is \[1, 2\]"):
        cut(changed(input_ids=np.zeros((1, 2), np.int64)))
    with pytest.raises(TypeError, match=r"localize\(trajectories\)"):
        cut(changed(input_ids=RemoteTensor("t0-1", "http://p", (3,), "int64")))
