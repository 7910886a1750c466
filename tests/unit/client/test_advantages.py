"""Advantages against their definitions; who is left out is named."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.formats.drawn import SIX, rollout

from rolloutfleet.advantages import Advantages, Omitted, grpo, reinforce_pp, rloo
from rolloutfleet.formats import episode_reward, rows_of

REWARDS = st.none() | st.sampled_from([0.0, 1.0, 0.5]) | st.floats(-1e30, 1e30)
GROUPS = st.lists(st.lists(REWARDS, max_size=6), max_size=4)
EVERY: Sequence[Callable[..., Advantages]] = (grpo, rloo, reinforce_pp)


def given_rewards(group: Sequence[float | None]) -> list[float]:
    return [reward for reward in group if reward is not None]


def close(found: float | None, wanted: float, scale: float = 1.0) -> bool:
    return found is not None and math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * scale)


@given(GROUPS)
def test_every_member_has_a_number_or_a_reason(groups: list[list[float | None]]) -> None:
    for estimator in EVERY:
        made = estimator(groups)
        assert [len(values) for values in made.values] == [len(group) for group in groups]
        named = {(each.group, each.member): each.reason for each in made.left_out}
        assert len(named) == len(made.left_out)
        for number, (group, values) in enumerate(zip(groups, made.values, strict=True)):
            for member, (reward, value) in enumerate(zip(group, values, strict=True)):
                reason = named.get((number, member))
                assert (value is None) == (reason is not None)
                assert value is None or math.isfinite(value)
                assert (reason == "no reward") == (reward is None)
            rewards = given_rewards(group)
            kept = [value for value in values if value is not None]
            assert bool(kept) == (len(rewards) > 1 and not math.isclose(min(rewards), max(rewards), abs_tol=1e-12))


@given(GROUPS)
def test_grpo_is_centred_and_scaled_by_the_group(groups: list[list[float | None]]) -> None:
    scaled, centred = grpo(groups), grpo(groups, deviation=False)
    for group, values, plain in zip(groups, scaled.values, centred.values, strict=True):
        rewards = given_rewards(group)
        if all(value is None for value in values):
            continue
        size = max(map(abs, rewards))
        mean = fmean(rewards)
        assert all(
            reward is None or close(less, reward - mean, size) for reward, less in zip(group, plain, strict=True)
        )
        found = [value for value in values if value is not None]
        assert close(stdev(found), 1.0)
        assert close(math.fsum(found), 0.0) or size > 1e12 * stdev(rewards)


def test_grpo_of_rewards_worked_out_by_hand() -> None:
    made = grpo([[1.0, 0.0, None, 0.5]])
    assert made.values == ((1.0, -1.0, None, 0.0),)
    assert grpo([[1.0, 0.0, None, 0.5]], deviation=False).values == ((0.5, -0.5, None, 0.0),)


@given(GROUPS)
def test_rloo_leaves_out_the_member_itself(groups: list[list[float | None]]) -> None:
    for group, values in zip(groups, rloo(groups).values, strict=True):
        rewards = given_rewards(group)
        for reward, value in zip(group, values, strict=True):
            if reward is not None and value is not None:
                others = rewards.copy()
                others.remove(reward)
                assert close(value, reward - fmean(others), max(map(abs, rewards)))


@given(GROUPS)
def test_reinforce_pp_is_normalised_over_the_batch(groups: list[list[float | None]]) -> None:
    values = [value for group in reinforce_pp(groups).values for value in group if value is not None]
    centred = [value for group in grpo(groups, deviation=False).values for value in group if value is not None]
    assert len(values) == len(centred)
    if values:
        assert close(stdev(values), 1.0)
        size, mean = stdev(centred), fmean(centred)
        largest = max(abs(reward) for group in groups for reward in given_rewards(group))
        assert all(
            close(value, (each - mean) / size, 1 + largest / size) for value, each in zip(values, centred, strict=True)
        )


def test_reinforce_pp_of_rewards_worked_out_by_hand() -> None:
    made = reinforce_pp([[1.0, 0.0], [None, 4.0], [2.0, 0.0]])
    deviation = math.sqrt((0.25 + 0.25 + 1 + 1) / 3)
    assert made.values[1] == (None, None)
    assert [value and round(value * deviation, 12) for value in (*made.values[0], *made.values[2])] == [
        0.5,
        -0.5,
        1,
        -1,
    ]


def test_those_left_out_are_named_with_the_reason() -> None:
    wanted = (
        Omitted(0, 1, "no reward"),
        Omitted(1, 0, "group of one"),
        Omitted(1, 1, "no reward"),
        Omitted(2, 0, "equal rewards"),
        Omitted(2, 1, "equal rewards"),
        Omitted(3, 0, "equal rewards"),
        Omitted(3, 1, "equal rewards"),
        Omitted(4, 0, "equal rewards"),
        Omitted(4, 1, "equal rewards"),
    )
    groups = [[1.0, None, 0.0], [0.5, None], [0.1, 0.1], [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], []]
    assert all(estimator(groups).left_out == wanted for estimator in EVERY)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_by_name(reward: float) -> None:
    for estimator in EVERY:
        with pytest.raises(ValueError, match=r"group 1, member 0: reward is .*; None says"):
            estimator([[0.0, 1.0], [reward, 1.0]])


def test_an_episodes_advantage_is_laid_on_all_its_rows() -> None:
    groups = [[rollout(SIX, session="s0-a"), rollout(SIX[:1], session="s0-b"), []]]
    rows, advantages = grpo([[1.0, 0.0, None]], deviation=False).on_rows(groups)
    assert [id(row) for row in rows] == [id(row) for each in groups[0] for row in rows_of(each)]
    assert advantages == [0.5, 0.5, 0.5, -0.5]
    with pytest.raises(ValueError, match="shorter"):
        grpo([[1.0, 0.0]]).on_rows(groups)


def test_episode_rewards_are_what_groups_are_made_of() -> None:
    assert grpo([[episode_reward([]), episode_reward(rollout(SIX))]]).left_out[0].reason == "no reward"
