"""Waits after failures, and the rule by which processes are started again."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.backoff import HEALTHY_AFTER, RESTARTS, Backoff, crashes_in_a_row, restart_delay


@given(st.floats(0.01, 10), st.floats(10, 1000), st.integers(1, 10**6))
def test_a_wait_is_twice_as_long_after_each_failure_up_to_a_bound(first: float, longest: float, failures: int) -> None:
    backoff = Backoff(first, longest)
    assert (backoff.after(0), backoff.after(1)) == (0.0, first)
    assert backoff.after(failures + 1) == min(longest, 2 * backoff.after(failures))


def test_a_crash_is_followed_at_once_and_the_ones_after_it_less_and_less_often() -> None:
    assert [restart_delay(crashes) for crashes in range(5)] == [0.0, 0.0, 1.0, 2.0, 4.0]
    assert restart_delay(10**9) == RESTARTS.longest


def test_a_healthy_time_clears_earlier_crashes() -> None:
    assert crashes_in_a_row(before=5, healthy_for=HEALTHY_AFTER) == 1
    assert crashes_in_a_row(before=5, healthy_for=HEALTHY_AFTER - 1) == 6
