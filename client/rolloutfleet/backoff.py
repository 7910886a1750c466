"""How long to wait after failures: twice as long each time, up to a bound. Pure, and cheap to import."""

from typing import Final, NamedTuple


class Backoff(NamedTuple):
    """Both in seconds."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; none after 0."""
        return 0.0 if failures < 1 else min(self.longest, self.first * 2.0 ** min(failures - 1, 60))


RESTARTS: Final = Backoff(first=1.0, longest=30.0)
HEALTHY_AFTER: Final = 60.0
"""Seconds of serving after which a process's earlier crashes no longer count."""


def restart_delay(crashes: int) -> float:
    """Seconds between the last of so many crashes in a row and the next start: none after the first."""
    return RESTARTS.after(crashes - 1)


def crashes_in_a_row(*, before: int, healthy_for: float) -> int:
    """The count after one more crash, of a process that had served for so many seconds."""
    return 1 if healthy_for >= HEALTHY_AFTER else before + 1
