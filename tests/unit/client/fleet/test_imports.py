"""What is there by name."""

import pytest

import rolloutfleet


def test_names_that_are_not_there_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Fleed'"):
        _ = rolloutfleet.Fleed
    assert {"Fleet", "AsyncFleet"} <= set(dir(rolloutfleet))
