"""How often a test repeats what it shows: less in `make test`, more in `make at-length`."""

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "ROLLOUTFLEET_TESTS_AT_LENGTH"
"""Set by `make at-length`."""


def at_length(short: T, *, long: T) -> T:
    """`long` in `make at-length`, else `short`."""
    return long if os.environ.get(VARIABLE) else short
