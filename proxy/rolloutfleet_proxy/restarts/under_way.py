"""Requests under way beside the sessions' own calls: exports, the control API, calls passed on to other proxies."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class UnderWay:
    """Counts them by when they began."""

    def __init__(self) -> None:
        self._began: dict[object, float] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request is under way until the block ends."""
        token = object()
        self._began[token] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._began[token]

    def before(self, time: float) -> int:
        """How many began before that time of the loop's clock."""
        return sum(began < time for began in self._began.values())
