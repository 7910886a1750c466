"""A stream must bring new tokens: comments, empty events and bytes of any other kind keep no call alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

_LONGEST_LOOK = 1.0
"""Seconds between two looks at a clock that stands still."""


class TokenWatch:
    """A context that raises TimeoutError once `patience` seconds have gone without `came`, by a clock that may stop."""

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._last = clock()
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._look_in(self._patience)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        await self._limit.__aexit__(kind, error, trace)

    def came(self) -> None:
        """Something new is here."""
        self._last = self._clock()

    def end(self) -> None:
        """All is here: what is done with it may take its time."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._last + self._patience - self._clock()
        if left > 0:
            # No shorter than that: while the clock stands still nothing is ever left of less.
            self._look_in(max(left, min(_LONGEST_LOOK, self._patience / 10)))
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())
