"""Lines and quantiles by which memory and `/health` are judged."""

import pytest
from benchmarks.rigs.watching import Slope, quantile, thinned
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(-50, 50), st.integers(20, 60), st.data())
def test_outliers_do_not_bend_the_line(slope: int, count: int, data: st.DataObject) -> None:
    points = [(float(x), float(7 + slope * x)) for x in range(count)]
    for at in data.draw(st.lists(st.integers(0, count - 1), max_size=count // 10)):
        points[at] = (float(at), 1e9)
    assert Slope(points).value == pytest.approx(slope)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 1001)]
    assert (quantile(values, 0.5), quantile(values, 0.999), quantile(values, 1.0)) == (500.0, 999.0, 1000.0)
    assert quantile([3.0], 0.999) == 3.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e12)), min_size=1, max_size=500), st.integers(1, 100))
def test_thinned_samples_are_the_least_of_their_stretch(samples: list[tuple[float, float]], most: int) -> None:
    points = thinned(samples, most=most)
    assert 1 <= len(points) <= most
    assert min(size for _, size in points) == min(size for _, size in samples)
