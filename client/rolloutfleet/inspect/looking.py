"""Whether somebody looks: a fleet is not asked for what nobody sees."""

import asyncio
from collections.abc import Callable
from typing import Final

ENOUGH: Final = 60.0
"""Seconds after a request for which somebody is taken to look on."""


class Looking:
    """The time of the last request."""

    def __init__(self, clock: Callable[[], float], *, enough: float = ENOUGH) -> None:
        self._clock, self._enough = clock, enough
        self._until = float("-inf")
        self._looks = asyncio.Event()

    def now(self) -> None:
        """Somebody does."""
        self._until = self._clock() + self._enough
        self._looks.set()

    async def wait(self) -> None:
        """Until somebody does."""
        if self._clock() > self._until:
            self._looks.clear()
        await self._looks.wait()
