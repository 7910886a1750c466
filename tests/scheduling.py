"""Which tests one process runs together."""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = ("tests/unit/proxy/tokens/",)
"""Each of these folders is run by one process, for what its files share: the chat formats of all families take ten
seconds to load."""


def scope(nodeid: str) -> str:
    """What one process runs together: a file, or all that share a folder of `TOGETHER`."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Gives processes what they run together, in the order of the collection."""
    made = LoadFileScheduling(config, log)
    made._split_scope = scope
    return made
