"""Requests under way beside the sessions' own calls: exports, the control API, calls passed on to other proxies."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False, frozen=True, slots=True)
class _Request:
    began: float
    cut: Callable[[], object] | None


class UnderWay:
    """Counts them. Those of the control API come and go all the time, so a drain waits for the ones it found."""

    def __init__(self) -> None:
        self._requests: set[_Request] = set()
        self._bodies: set[Callable[[], object]] = set()

    @contextmanager
    def one(self, cut: Callable[[], object] | None = None) -> Iterator[None]:
        """A request is under way until the block ends; a call that is passed on says how it is cut."""
        request = _Request(asyncio.get_running_loop().time(), cut)
        self._requests.add(request)
        try:
            yield
        finally:
            self._requests.discard(request)

    @contextmanager
    def body(self, cut: Callable[[], object]) -> Iterator[None]:
        """More of a request's body is waited for until the block ends. The request itself is counted elsewhere."""
        self._bodies.add(cut)
        try:
            yield
        finally:
            self._bodies.discard(cut)

    def before(self, time: float) -> int:
        """How many began before that time of the loop's clock, or are calls passed on."""
        return sum(request.began < time or request.cut is not None for request in self._requests)

    def cut(self) -> None:
        """End the calls that are passed on, and what waits for a body."""
        for cut in list(self._bodies):
            cut()
        for request in list(self._requests):
            if request.cut is not None:
                request.cut()
