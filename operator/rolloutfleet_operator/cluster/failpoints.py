"""Failpoints: a test suspends the operator at one of them, kills it there, and checks how the next operator recovers.

They do nothing unless the environment names one: with ROLLOUTFLEET_OPERATOR_FAILPOINT=eviction_sent@/tmp/here the
process creates that file when it reaches the failpoint, and suspends itself with all of its tasks until it is killed.
`status_unwritten:3@/tmp/here` means the third time. An operator that finds the file at its start ignores the failpoint.

It suspends and does not kill itself, because nothing that the first process of a container does to itself equals
SIGKILL from outside.
"""

import os
import signal
from pathlib import Path
from typing import Final

VARIABLE: Final = "ROLLOUTFLEET_OPERATOR_FAILPOINT"

STATUS_UNWRITTEN: Final = "status_unwritten"
"""It is decided, and the status that says so is not written."""
TEMPLATE_APPLIED: Final = "template_applied"
"""Children are changed, and nothing that follows is done."""
DRAIN_ASKED: Final = "drain_asked"
"""A proxy has taken the drain that goes before its pod's eviction."""
RESTART_ASKED: Final = "restart_asked"
"""A proxy has taken the drain that ends in its own restart."""
QUIESCED: Final = "quiesced"
"""A proxy was seen to be quiet, and the eviction of its pod is not sent."""
EVICTION_SENT: Final = "eviction_sent"
BOOTING: Final = "booting"
"""A proxy was seen to start."""

_named, _, _file = os.environ.get(VARIABLE, "").partition("@")
_place, _, _times = _named.partition(":")
_left = 0 if not _file or Path(_file).exists() else int(_times or 1)


def reach(place: str | None) -> None:
    """Stand still here, if this is the place and the time."""
    global _left
    if place != _place or _left == 0:
        return
    _left -= 1
    if _left == 0:
        Path(_file).touch()
        while True:
            signal.pause()
