"""Requests under way beside the sessions' own calls: exports, the control API, calls passed on, bodies that arrive."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False, frozen=True, slots=True)
class _Request:
    began: float
    cut: Callable[[], object]


class UnderWay:
    """Counts them. Those of the control API come and go all the time, so a drain waits for the ones it found."""

    def __init__(self) -> None:
        self._requests: set[_Request] = set()

    @contextmanager
    def one(self, *, began: float | None = None, cut: Callable[[], object] = lambda: None) -> Iterator[None]:
        """A request, or the wait for more of its body, is under way until the block ends, which `cut` does early.

        It `began` now unless told otherwise.
        """
        request = _Request(asyncio.get_running_loop().time() if began is None else began, cut)
        self._requests.add(request)
        try:
            yield
        finally:
            self._requests.discard(request)

    def before(self, time: float) -> int:
        """Number of those that began before that time of the loop's clock."""
        return sum(request.began < time for request in self._requests)

    def cut(self) -> None:
        """End what can be cut: the calls that are passed on, and what waits for a body."""
        for request in list(self._requests):
            request.cut()
