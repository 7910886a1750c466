"""Places where a test has the process die, to show what a crash there leaves behind.

Nothing happens unless the environment names one: ROLLOUTFLEET_FAILPOINT=before_commit:3 kills this process, as
`kill -9` does, when it comes to that place for the third time. A parent process dies with it, as in a container.
ROLLOUTFLEET_FAILPOINT=mid_dump@/tmp/here has it wait there as long as that file exists.
ROLLOUTFLEET_FAILPOINT=*@/tmp/folder has it wait at any place, as long as the folder has a file of the place's name: it
says that it waits by a file beside it, `mid_dump.held`, which holds the process's id.
"""

import os
import signal
import time
from typing import Final

VARIABLE: Final = "ROLLOUTFLEET_FAILPOINT"

BEFORE_ENGINE: Final = "before_engine"
AFTER_ENGINE: Final = "after_engine"
IN_TRANSACTION: Final = "in_transaction"
BEFORE_COMMIT: Final = "before_commit"
AFTER_COMMIT: Final = "after_commit"
BEFORE_ANSWER: Final = "before_answer"
MID_DUMP: Final = "mid_dump"
"""A dump is half written."""
AFTER_RENAME: Final = "after_rename"
"""It has its name."""
AFTER_DUMP: Final = "after_dump"
"""It is durable, and its session not yet freed."""
MID_SWEEP: Final = "mid_sweep"
"""Some sessions of a sweep are freed, others not."""
AFTER_SHARD_FILE: Final = "after_shard_file"
"""The file of a shard is durable, and its row is not written yet. No chat call comes here."""
MID_EXPORT: Final = "mid_export"
"""The rows of a lease are written, and not committed yet."""
AFTER_EXPORT: Final = "after_export"
"""A lease is committed, and nothing of its export is sent yet."""
MID_ACK: Final = "mid_ack"
"""The rows of an acknowledgement are changed, and not committed yet."""
AFTER_ACK: Final = "after_ack"
"""An acknowledgement is committed, and its trainer has no answer yet."""
AFTER_START: Final = "after_start"
"""Sessions are committed, and whoever started them has no answer yet."""
MID_FREEING: Final = "mid_freeing"
"""Some turns of a session that is gone are deleted, and others are not yet."""
BEFORE_KEEPING: Final = "before_keeping"
"""A session that is to be kept is acknowledged, and its file is not written yet."""
AFTER_KEEPING: Final = "after_keeping"
"""Its file is durable, and its turns are not let go of yet."""
IMPORT_CLAIMED: Final = "import_claimed"
IMPORT_STAGED: Final = "import_staged"
IMPORT_COMMITTED: Final = "import_committed"
IMPORT_FINISHED: Final = "import_finished"

ANY: Final = "*"
HELD: Final = ".held"
"""What follows a place's name in the name of the file that says that a process waits there."""

companions: list[int] = []
"""Processes that die as well, first."""

_named, _, _waits_for = os.environ.get(VARIABLE, "").partition("@")
_place, _, _times = _named.partition(":")
_left = int(_times or 1)


def arm(place: str, times: int) -> None:
    """Die at this place, when it is reached for the n-th time from now on."""
    global _place, _left
    _place, _left = place, times


def reach(place: str) -> None:
    """Die here, or wait, if this is the place and the time."""
    global _left
    if _place == ANY:
        _wait_openly(os.path.join(_waits_for, place))  # noqa: PTH118 (no import for what only tests need)
    if place != _place:
        return
    if _waits_for:
        _wait(_waits_for)
    else:
        _left -= 1
        if _left <= 0:
            for companion in companions:
                os.kill(companion, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_openly(file: str) -> None:
    """Wait as long as the file is there, and say so by another."""
    if os.path.exists(file):  # noqa: PTH110
        with open(file + HELD, "w", encoding="ascii") as said:  # noqa: PTH123
            said.write(str(os.getpid()))
        _wait(file)


def _wait(file: str) -> None:
    while os.path.exists(file):  # noqa: PTH110
        time.sleep(0.01)
