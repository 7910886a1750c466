"""A figure is told as `name value unit`, and a goal is kept by its median."""

import pytest
from benchmarks.rigs.figures import at_least, at_most, exactly, figure, readable


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (31172.3, "31172"), (3.14159, "3.142"), (0.5, "0.5"), (0.00012346, "0.0001235"), (-12.5, "-12.5")],
)
def test_values_keep_four_digits_and_are_never_powers_of_ten(value: float, text: str) -> None:
    assert readable(value) == text


def test_a_line_is_name_value_unit() -> None:
    assert figure("capture_vs_gateway", "ratio", [0.61, 0.58, 0.55]).line == "capture_vs_gateway 0.58 ratio"


@pytest.mark.parametrize(
    ("goal", "samples", "met"),
    [
        (at_least(0.5), [0.4, 0.5, 0.9], True),
        (at_least(0.5), [0.4, 0.49, 0.9], False),
        (at_most(50), [10, 20, 500], True),
        (exactly(0), [0], True),
        (exactly(0), [-1], False),
    ],
)
def test_the_median_keeps_the_goal(goal: object, samples: list[float], met: bool) -> None:
    assert figure("x", "ms", samples, goal=goal).met is met  # type: ignore[arg-type]
