"""AReaL's tensors: rows side by side in the batch dimension, NaN nowhere."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from tests.unit.client.formats.drawn import SIX, rollout, rollouts, same
from tests.unit.client.formats.standins import install

from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.formats import areal
from rolloutfleet.formats.rollouts import rows_of, trained_tokens


@given(rollouts())
def test_arrays_have_each_row_to_the_bit(drawn: list[Trajectory]) -> None:
    rows = [row for row in rows_of(drawn) if trained_tokens(row)]
    made = areal.arrays(drawn, advantage=0.25)
    rewarded = areal.arrays(drawn)
    if not rows:
        assert made is None and rewarded is None
        return
    assert made is not None
    longest = max(row.tokens for row in rows)
    assert {name: values.shape for name, values in made.items()} == {
        **dict.fromkeys(("input_ids", "loss_mask", "logprobs", "versions", "attention_mask"), (len(rows), longest)),
        "rewards": (len(rows),),
    }
    for at, row in enumerate(rows):
        for name in ("input_ids", "loss_mask", "logprobs", "versions"):
            assert same(made[name][at, : row.tokens], row, name)
        assert made["attention_mask"][at].tolist() == [True] * row.tokens + [False] * (longest - row.tokens)
        assert not made["loss_mask"][at, row.tokens :].any() and (made["versions"][at, row.tokens :] == -1).all()
    assert made["rewards"].tolist() == [0.25] * len(rows)
    if rows[0].reward is None:
        assert rewarded is None
    else:
        assert rewarded is not None
        assert rewarded["rewards"].tolist() == np.array([row.reward for row in rows], np.float32).tolist()


def test_arrays_have_a_batch_dimension_for_a_single_row() -> None:
    made = areal.arrays(rollout(SIX[:1]))
    assert made is not None
    assert {name: (values.dtype.name, values.shape) for name, values in made.items()} == {
        "input_ids": ("int64", (1, 3)),
        "loss_mask": ("int32", (1, 3)),
        "logprobs": ("float32", (1, 3)),
        "versions": ("int32", (1, 3)),
        "attention_mask": ("bool", (1, 3)),
        "rewards": ("float32", (1,)),
    }


def test_arrays_of_a_failed_or_unrewarded_episode_reject_it() -> None:
    for drawn in ([], rollout(SIX, outcome="failed", reward=None), rollout(SIX, reward=None)):
        assert areal.arrays(drawn) is None
        assert areal.tensors(drawn) is None
    assert areal.arrays(rollout(SIX, outcome="failed", reward=None), advantage=1.0) is None


def test_tensors_are_made_of_these_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "torch", from_numpy=lambda array: SimpleNamespace(array=array))
    made, arrays = areal.tensors(rollout(SIX)), areal.arrays(rollout(SIX))
    assert made is not None and arrays is not None
    assert {name: tensor.array.tobytes() for name, tensor in made.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
