"""TRL's fields: one entry a prompt, of the main row, and what is left out is counted."""

from typing import Any

from hypothesis import given
from tests.unit.client.formats.drawn import SIX, batches, rollout, same, turn

from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.formats import trl
from rolloutfleet.formats.rollouts import main_row, rows_of, trained_tokens


def entries(fields: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(fields, each, strict=True)) for each in zip(*fields.values(), strict=True)]


@given(batches())
def test_rollout_has_each_main_row_to_the_bit(drawn: list[list[Trajectory]]) -> None:
    made = entries(trl.rollout(drawn))
    assert len(made) == len(drawn)
    for entry, one in zip(made, drawn, strict=True):
        row = main_row(one)
        if row is None:
            assert entry["env_mask"] == [0] and entry["reward"] is None
            continue
        begin = len(entry["prompt_ids"])
        assert same(entry["prompt_ids"] + entry["completion_ids"], row, "input_ids")
        assert same(entry["env_mask"], row, "loss_mask", begin=begin)
        assert same(entry["logprobs"], row, "logprobs", begin=begin)
        assert same(entry["versions"], row, "versions", begin=begin)
        assert entry["env_mask"][0] == 1 and entry["reward"] == row.reward
        others = [each for each in rows_of(one) if each is not row and trained_tokens(each)]
        assert (entry["left_out_rows"], entry["left_out_tokens"]) == (len(others), sum(map(trained_tokens, others)))


def test_rollout_of_a_failed_member_is_a_token_that_is_not_trained() -> None:
    crashed = rollout(SIX, outcome="failed", reward=None)
    fields = trl.rollout([[], rollout(SIX), crashed, rollout([turn(None, "subagent")])], pad_token_id=7)
    made = entries(fields)
    nothing = {"prompt_ids": [7], "completion_ids": [7], "logprobs": [0.0], "env_mask": [0], "versions": [-1]}
    nothing |= {"reward": None, "left_out_rows": 0, "left_out_tokens": 0}
    assert made[0] == made[2] == nothing
    assert made[1]["reward"] == 1.0
    assert made[3] == nothing | {"left_out_rows": 1, "left_out_tokens": 2}


def test_rollout_of_a_member_without_a_reward_has_none() -> None:
    assert trl.rollout([rollout(SIX, reward=None)])["reward"] == [None]
    assert trl.rollout([rollout(SIX, reward=0.0)])["reward"] == [0.0]


def test_rollout_gives_lists_of_plain_numbers() -> None:
    (made,) = entries(trl.rollout([rollout(SIX)]))
    assert {type(made[name]) for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "versions")} == {list}
    assert {type(each) for each in made["completion_ids"]} == {int}
    assert {type(each) for each in made["logprobs"]} == {float}
