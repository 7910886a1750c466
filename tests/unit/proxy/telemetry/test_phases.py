"""The times of a turn's steps."""

from itertools import count

import pytest

from rolloutfleet_proxy.telemetry.phases import COMMIT, DONE, ENGINE, PAUSE, QUEUE, STEPS, TOKENISE_IN, Phases


def ticking() -> Phases:
    """Each look at its clock is a second after the last."""
    ticks = count()
    return Phases(clock=lambda: float(next(ticks)))


@pytest.mark.parametrize("reached", range(len(STEPS)))
def test_a_turn_that_ends_early_has_no_times_for_what_it_did_not_reach(reached: int) -> None:
    phases = ticking()
    for step in range(reached + 1):
        phases.begin(step)
    phases.stop()
    assert phases.seconds() == [1.0] * (reached + 1) + [-1.0] * (len(STEPS) - reached - 1)
    assert phases.seconds() == phases.seconds()


def test_a_whole_turn_has_all_of_them() -> None:
    phases = ticking()
    for step in range(DONE + 1):
        phases.begin(step)
    phases.stop()
    assert phases.seconds() == [1.0] * len(STEPS)


def test_the_step_under_way_has_its_time_so_far() -> None:
    phases = ticking()
    assert phases.seconds() == [-1.0] * len(STEPS)
    phases.begin(QUEUE)
    phases.begin(TOKENISE_IN)
    first, second = (phases.seconds() for _ in range(2))
    assert first[QUEUE] == 1.0 and first[PAUSE] == -1.0
    assert second[TOKENISE_IN] > first[TOKENISE_IN] > 0


def test_a_step_that_is_begun_again_goes_on_and_one_that_comes_too_late_does_not_count() -> None:
    phases = ticking()
    for step in (QUEUE, TOKENISE_IN, TOKENISE_IN, PAUSE):
        phases.begin(step)
    phases.stop()
    phases.begin(ENGINE)
    phases.begin(COMMIT)
    assert phases.seconds() == [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]


def test_each_step_that_was_reached_has_its_moments() -> None:
    phases = ticking()
    for step in (QUEUE, TOKENISE_IN, PAUSE):
        phases.begin(step)
    phases.stop()
    assert phases.reached() == [("queue", 0.0, 1.0), ("tokenise_in", 1.0, 2.0), ("pause", 2.0, 3.0)]
