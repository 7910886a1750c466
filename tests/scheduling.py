"""Which tests one process runs together."""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = ("tests/unit/proxy/tokens/", "tests/engine/test_")
"""What begins with one of these is run by one process, for what the files share: the chat formats of all families take
ten seconds to load, the real SGLang a gigabyte."""


def scope(nodeid: str) -> str:
    """What one process runs together: a file, or all that begins with one of `TOGETHER`."""
    return next((beginning for beginning in TOGETHER if nodeid.startswith(beginning)), nodeid.partition("::")[0])


def scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Gives processes what they run together, in the order of the collection."""
    made = LoadFileScheduling(config, log)
    made._split_scope = scope
    return made
