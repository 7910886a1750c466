"""verl's outputs: within its limits, the main row last, with the versions that it asks for."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.formats.drawn import SIX, Turn, column, rollout, rollouts, same, turn
from tests.unit.client.formats.standins import AgentLoopOutput, install_verl

from rolloutfleet.fleet import BadArgument
from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats import verl
from rolloutfleet.formats.rollouts import main_row, rows_of, trained_tokens, training_rows

ROOM = {"prompt_length": 1000, "response_length": 1000}


@pytest.fixture(autouse=True, scope="module")
def stand_in() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        install_verl(patched)
        yield


def is_of(made: AgentLoopOutput, row: Row) -> bool:
    begin = len(made.prompt_ids)
    sampled = [version for version in column(row, "versions").tolist() if version >= 0]
    steps = (made.extra_fields["min_global_steps"], made.extra_fields["max_global_steps"])
    return (
        same(made.prompt_ids + made.response_ids, row, "input_ids")
        and same(made.response_mask, row, "loss_mask", begin=begin)
        and same(made.response_logprobs, row, "logprobs", begin=begin)
        and same(made.extra_fields["response_versions"], row, "versions", begin=begin)
        and made.reward_score == row.reward
        and steps == (min(sampled), max(sampled))
    )


@given(rollouts())
def test_outputs_have_each_row_to_the_bit(drawn: list[Trajectory]) -> None:
    made = verl.outputs(drawn, **ROOM)
    rows = training_rows(drawn)
    assert len(made) == len(rows)
    assert all(is_of(each, row) for each, row in zip(made, rows, strict=True))
    assert {each.extra_fields["left_out_rows"] + each.extra_fields["left_out_tokens"] for each in made} <= {0}
    assert [each.response_mask[0] for each in made] == [1] * len(made)


def test_outputs_end_with_the_main_row_whose_reward_verl_gives_to_all() -> None:
    later = rollout([*SIX, turn(2, "subagent")])
    *others, last = verl.outputs(later, **ROOM)
    main = main_row(later)
    assert main is not None and is_of(last, main) and len(others) == 3
    # The last output's reward goes to all, with this of its extra fields (verl/trainer/ppo/v1/agent_loop_tq.py).
    assert last.extra_fields["reward_extra_info"] == {}


def test_outputs_of_a_failed_member_are_none() -> None:
    assert verl.outputs([], **ROOM) == []
    assert verl.outputs(rollout(SIX, outcome="failed", reward=None), **ROOM) == []


def test_outputs_without_a_reward_leave_it_to_verl() -> None:
    assert {each.reward_score for each in verl.outputs(rollout(SIX, reward=None), **ROOM)} == {None}


@given(rollouts(), st.integers(1, 6), st.integers(1, 6))
def test_outputs_keep_to_verls_limits(drawn: list[Trajectory], prompt_length: int, response_length: int) -> None:
    made = verl.outputs(drawn, prompt_length=prompt_length, response_length=response_length)
    trained = 0
    for each in made:
        assert len(each.prompt_ids) <= prompt_length
        assert 0 < len(each.response_ids) <= response_length
        assert len(each.response_ids) == len(each.response_mask) == len(each.response_logprobs or ())
        assert 1 in each.response_mask
        trained += sum(each.response_mask)
        ids = each.prompt_ids + each.response_ids
        assert any(column(row, "input_ids")[: len(ids)].tolist() == ids for row in rows_of(drawn))
    rows = training_rows(drawn)
    if made:
        (left_out,) = {(e.extra_fields["left_out_rows"], e.extra_fields["left_out_tokens"]) for e in made}
        assert left_out == (len(rows) - len(made), sum(map(trained_tokens, rows)) - trained)


def test_a_prompt_that_is_too_long_goes_on_in_the_response() -> None:
    asked = Turn(None, [1, 2, 3, 4], [(5, -0.5, 0), (6, -0.25, 0)])
    (made,) = verl.outputs(rollout([asked]), prompt_length=3, response_length=2)
    assert (made.prompt_ids, made.response_ids, made.response_mask) == ([1, 2, 3], [4, 5], [0, 1])
    assert made.response_logprobs == [0.0, -0.5]
    assert made.extra_fields["left_out_tokens"] == 1
    assert verl.outputs(rollout([asked]), prompt_length=3, response_length=1) == []


@given(rollouts())
def test_output_is_the_main_row_alone(drawn: list[Trajectory]) -> None:
    made = verl.output(drawn, **ROOM)
    row = main_row(drawn)
    others = [each for each in training_rows(drawn) if each is not row]
    left_out = (made.extra_fields["left_out_rows"], made.extra_fields["left_out_tokens"])
    assert left_out == (len(others), sum(map(trained_tokens, others)))
    if row is None:
        assert (made.response_mask, made.reward_score) == ([0], None)
    else:
        assert is_of(made, row)


def test_output_counts_what_its_limits_cut_off() -> None:
    one = rollout(SIX)
    made = verl.output(one, prompt_length=9, response_length=1)
    assert made.response_mask == [1]
    rows = training_rows(one)
    assert made.extra_fields["left_out_tokens"] == sum(map(trained_tokens, rows)) - 1
    nothing = verl.output(one, prompt_length=0, response_length=1)
    assert (nothing.response_mask, nothing.extra_fields["left_out_rows"]) == ([0], 3)


async def test_an_agent_loop_takes_what_verl_and_its_configuration_say() -> None:
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(**ROOM)))
    verls: dict[str, Any] = {
        "server_manager": None,
        "tokenizer": None,
        "processor": None,
        "data_config": None,
        "name": "fleet",
    }
    loop = verl.FleetAgentLoop(SimpleNamespace(config=config), agent="agents:solve", fleet="/nowhere", **verls)
    with pytest.raises(BadArgument, match="no fleet runs from /"):
        await loop.run({"temperature": 1.0}, raw_prompt=[])
