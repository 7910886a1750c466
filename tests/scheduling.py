"""Which tests one process runs together."""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = ("tests/unit/proxy/tokens/", "tests/engine/test_")
"""Beginnings of test ids. One process runs all that share one, for what they load: the chat formats of all families
take ten seconds, the real SGLang a gigabyte."""


def scope(nodeid: str) -> str:
    """The file of a test, or the beginning of `TOGETHER` that it has: one process runs all tests of the same scope."""
    return next((beginning for beginning in TOGETHER if nodeid.startswith(beginning)), nodeid.partition("::")[0])


def scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Gives processes what they run together, in the order of the collection."""
    made = LoadFileScheduling(config, log)
    made._split_scope = scope
    return made
