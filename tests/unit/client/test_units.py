import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.units import format_duration, format_quantity, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h", 3600), ("250ms", 0.25), ("1h30m", 5400), ("1.5m", 90), ("7d", 604800), ("0s", 0)],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("number", [90, 0.25, 0, "90", "0.25"])
def test_a_bare_number_is_seconds(number: object) -> None:
    assert parse_duration(number) == float(str(number))


@pytest.mark.parametrize(
    "wrong", ["", "s", "1x", "-1s", "1h-", "1 h", "1e3s", -1, math.nan, math.inf, True, None, [], "9" * 30]
)
def test_what_is_no_duration_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(wrong)


@given(st.integers(min_value=0, max_value=10**15))
def test_a_duration_survives_being_written(microseconds: int) -> None:
    seconds = parse_duration(microseconds / 1_000_000)
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(min_value=0, max_value=1e9))
def test_any_number_of_seconds_survives_being_written(number: float) -> None:
    seconds = parse_duration(number)
    assert parse_duration(format_duration(seconds)) == seconds
    assert seconds == pytest.approx(number, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("4Gi", 4 * 2**30), ("500M", 500_000_000), ("1.5Gi", 3 * 2**29), ("0.1", 1), ("7", 7), (7, 7), ("1k", 1000)],
)
def test_a_quantity_is_read_as_bytes(text: object, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("500m", "500M are megabytes"),
        ("4GiB", "did you mean 4Gi"),
        ("4KB", "write it like"),
        ("-1", "write it like"),
        (-1, "0 or more"),
        (True, "text like"),
        (1.5, "text like"),
        ("9999Ei", "below 8Ei"),
    ],
)
def test_what_is_no_quantity_is_refused_with_a_hint(wrong: object, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_quantity(wrong)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_quantity_survives_being_written(amount: int) -> None:
    assert parse_quantity(format_quantity(amount)) == amount
