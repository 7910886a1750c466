"""An export, in any order, becomes rollouts in the trainer's; each knows its main row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.formats.drawn import SIX, Turn, batches, rollout, rollouts, turn

from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.formats import by_session, episode_reward, rows_of
from rolloutfleet.formats.rollouts import all_but, main_row, trained_tokens, training_rows


@given(batches(), st.randoms())
def test_by_session_follows_the_sessions_whatever_the_order(drawn: list[list[Trajectory]], order: object) -> None:
    flat = [trajectory for each in drawn for trajectory in each]
    order.shuffle(flat)  # type: ignore[attr-defined]
    sessions = [f"s0-{letter}" for letter in "abc"[: len(drawn)]][::-1]
    found = by_session(flat, sessions)
    assert [{each.trajectory_id for each in one} for one in found] == [
        {each.trajectory_id for each in one} for one in drawn[::-1]
    ]
    numbers = [[int(each.trajectory_id.rpartition("-")[2]) for each in one] for one in found]
    assert numbers == [sorted(each) for each in numbers]
    named = [each.session_id for one in by_session(flat) for each in one[:1]]
    assert named == sorted({each.session_id for each in flat})


def test_by_session_refuses_what_it_was_not_asked_for() -> None:
    with pytest.raises(ValueError, match="session_ids: s0-a has a trajectory here"):
        by_session(rollout(SIX), ["s0-b"])
    assert by_session([], ["s0-b"]) == [[]]


def test_rows_of_order_the_tenth_trajectory_behind_the_ninth() -> None:
    made = rollout([turn(None, version=at) for at in range(11)], ends=range(1, 11))
    versions = [row.tensors["versions"][-1] for row in rows_of(made[::-1])]  # type: ignore[index]
    assert versions == list(range(11))


def test_rows_of_refuse_an_export_of_several_sessions() -> None:
    with pytest.raises(ValueError, match="by_session"):
        rows_of([*rollout(SIX), *rollout(SIX, session="s0-b")])


def test_main_row_is_the_last_leaf_of_the_main_loop() -> None:
    (one,) = rollout(SIX)
    ends = [row.turn_ids[-1] for row in one.rows]
    assert ends == ["t3", "t4", "t6"]
    later = [*SIX, turn(2, "subagent"), turn(0, "other")]
    for made in (rollout(later), rollout(later, ends=[7]), rollout(later, ends=[3])):
        found = main_row(made)
        assert found is not None and found.turn_ids[-1] == "t6"
        assert training_rows(made)[-1] is found
        assert all_but(made, found).rows == len(rows_of(made)) - 1


def test_main_row_of_a_rewritten_history_is_the_newest() -> None:
    rewritten = [turn(None), turn(0), turn(0), turn(None, "subagent")]
    for made in (rollout(rewritten), rollout(rewritten, ends=[2])[::-1]):
        found = main_row(made)
        assert found is not None and found.turn_ids[-1] == "t2"


def test_main_row_is_none_without_a_turn_of_the_main_loop() -> None:
    assert main_row([]) is None
    only = rollout([turn(None, "subagent")])
    assert main_row(only) is None
    assert all_but(only, None) == (1, 2)


@given(rollouts())
def test_training_rows_train_each_token_once(drawn: list[Trajectory]) -> None:
    rows = training_rows(drawn)
    assert all(trained_tokens(row) for row in rows)
    assert len({id(row) for row in rows}) == len(rows)
    kept = main_row(drawn)
    left_out = all_but(drawn, kept)
    assert left_out.rows + (kept is not None) == len(rows)
    assert left_out.tokens + (trained_tokens(kept) if kept else 0) == sum(map(trained_tokens, rows_of(drawn)))


def test_episode_reward_is_the_sum_of_what_was_given() -> None:
    given = (0.5, None, 0.25)
    rewarded = [Turn(at - 1 if at else None, [1], [(2, -0.5, 0)], reward=each) for at, each in enumerate(given)]
    assert episode_reward(rollout(rewarded, ends=[1])) == 0.75
    assert episode_reward(rollout(SIX)) is None
    assert episode_reward([]) is None
    assert episode_reward(rollout([Turn(None, [1], [(2, -0.5, 0)], reward=0.0)])) == 0.0
