"""Requests under way beside the sessions' own calls: exports, the control API, calls passed on, bodies that arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Request:
    """Among the others until its block ends."""

    began: float
    cut: Callable[[], object]
    others: set[_Request]

    def __enter__(self) -> None:
        self.others.add(self)

    def __exit__(self, *_: object) -> None:
        self.others.discard(self)


class UnderWay:
    """Counts them. Those of the control API come and go all the time, so a drain waits for the ones it found."""

    def __init__(self) -> None:
        self._requests: set[_Request] = set()

    def one(self, *, began: float | None = None, cut: Callable[[], object] = lambda: None) -> _Request:
        """A request, or the wait for more of its body, is under way until the block ends, which `cut` does early.

        It `began` now unless told otherwise.
        """
        return _Request(asyncio.get_running_loop().time() if began is None else began, cut, self._requests)

    def before(self, time: float) -> int:
        """Number of those that began before that time of the loop's clock."""
        return sum(request.began < time for request in self._requests)

    def cut(self) -> None:
        """End what can be cut: the calls that are passed on, and what waits for a body."""
        for request in list(self._requests):
            request.cut()
