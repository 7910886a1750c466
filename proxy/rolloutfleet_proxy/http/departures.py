"""A caller that closed its connection and asks again: its leaving is known before the retry is looked at.

The event loop may learn of both at once, the end of one connection and what came over another. The system knows which
came first: by the time that a retry is read, the connection that its client had closed before has ended. A connection
therefore offers the app to look whether its client has closed it, under a name in the request's ASGI scope. Where that
is so, whoever answers there is told at once, and so that it leaves can be awaited.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Closed = Callable[[], bool | None]
"""A look whether the client has closed the connection. If so, the app has been told when this returns. None where it
may still wait for its answer: that is known after `RESET_INTERVAL`."""
RESET_INTERVAL: Final = 0.05
"""Seconds after which a client that has closed its sending side, and has left, has reset the connection. It is looked
at as often."""

CLOSED: Final = "rolloutfleet.closed"


def closed_of(scope: MutableMapping[str, Any]) -> Closed:
    """Of a request's connection; a server that offers nothing tells the app when it tells it."""
    found: Closed = scope.get(CLOSED, _not_known)
    return found


def _not_known() -> bool:
    return False


@dataclass(eq=False, slots=True)
class _Caller:
    closed: Closed
    gone: "asyncio.Future[None] | None" = None
    """Made where somebody waits for it."""


class Callers:
    """Callers that wait for an answer, by what a retry has in common with the request that it repeats."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[_Caller, None]] = {}

    def __contains__(self, alike: Hashable) -> bool:
        return alike in self._waiting

    @contextmanager
    def waits(self, alike: Hashable, closed: Closed) -> Iterator[None]:
        """A caller waits until the block ends. Where it is told that its client has left, that must not take long."""
        caller = _Caller(closed)
        callers = self._waiting.setdefault(alike, {})
        callers[caller] = None
        try:
            yield
        finally:
            del callers[caller]
            if not callers:
                del self._waiting[alike]
            if caller.gone is not None:
                caller.gone.set_result(None)

    async def departed(self, alike: Hashable) -> bool:
        """Return when those have left who have closed their connections; False, and at once, where nobody has, or may
        have."""
        waiting = self._waiting.get(alike)
        if not waiting:
            return False
        looks = {caller: caller.closed() for caller in waiting}
        leaving = [caller for caller, closed in looks.items() if closed]
        for caller in leaving:
            caller.gone = caller.gone or asyncio.get_running_loop().create_future()
        futures = [caller.gone for caller in leaving if caller.gone is not None]
        if futures:
            await asyncio.wait(futures)
        elif None in looks.values():
            await asyncio.sleep(RESET_INTERVAL)
        return not all(closed is False for closed in looks.values())
