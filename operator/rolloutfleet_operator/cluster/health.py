"""Whether the operator works: alive while passes succeed, or while there is nothing to do."""

from collections.abc import Callable
from typing import Final

PATIENCE: Final = 600.0
"""Seconds in which passes may fail, and not one succeed."""


class Health:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self.stopped: str | None = None
        """Why the operator can't work any more, where it can't."""

    def passed(self) -> None:
        self._failing_since = None

    def failed(self) -> None:
        if self._failing_since is None:
            self._failing_since = self._clock()

    def problem(self) -> str | None:
        """What is wrong, where a restart might help; None where the operator works or waits."""
        if self.stopped is not None:
            return self.stopped
        if self._failing_since is None:
            return None
        seconds = self._clock() - self._failing_since
        return f"no pass has succeeded for {seconds:.0f} s" if seconds > PATIENCE else None
