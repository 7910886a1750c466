"""How often a test repeats what it shows: less in `make test`, more in `make test-all`."""

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "ROLLOUTFLEET_TESTS_AT_LENGTH"
"""Set by `make test-all`."""


def at_length(short: T, *, long: T) -> T:
    """`long` in `make test-all`, else `short`."""
    return long if os.environ.get(VARIABLE) else short
