"""When this process itself stood still: what it waited for meanwhile tells nothing of who was asked."""

import threading
import time
from typing import Final, Self

EVERY: Final = 0.05


class Stalls:
    """Until the block ends, notes each sleep of a thread that took longer than it should."""

    def __init__(self) -> None:
        self._stalls: list[tuple[float, float]] = []
        """When each began and ended, by the monotonic clock."""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def between(self, began: float, ended: float) -> float:
        """Seconds of that time."""
        return sum(max(0.0, min(ended, until) - max(began, since)) for since, until in self._stalls)

    def longest(self) -> float:
        return max((until - since for since, until in self._stalls), default=0.0)

    def _run(self) -> None:
        due = time.monotonic() + EVERY
        while not self._left.wait(EVERY):
            now = time.monotonic()
            if now > due + EVERY:
                self._stalls.append((due, now))
            due = now + EVERY
