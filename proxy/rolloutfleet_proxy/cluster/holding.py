"""Agents' calls for a proxy that does not answer: held here, their bodies unread, until it does.

A pod that is replaced is back within a minute, with its store. To agents that reach it through other proxies this is a
pause. A proxy that is known to be lost is not waited for. Starts wait alike, with their bodies (`placement`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.domain.errors import OwnerUnreachable, Stopping
from rolloutfleet_proxy.http.departures import Closed

MOST_HELD: Final = 64 << 20
"""Bytes of memory that held calls take; a call for which there is no room is refused."""
CALL: Final = 48 << 10
"""Bytes that a held call takes, beside its body."""
MOST_READ: Final = 128 << 10
"""Bytes of a body that the server reads before it lets the client wait."""
LOOK_INTERVAL: Final = 5.0
"""Seconds after which it is looked whether the caller of a held call has left."""


@dataclass(eq=False, slots=True, kw_only=True)
class Holding:
    """Says for how long a call waits for its owner."""

    peers: Peers
    max_hold: Callable[[], float]
    """Seconds."""
    ending: Callable[[], bool] = lambda: False
    """True once this proxy itself is about to end. When that changes, `Peers.look_again` is called."""
    _held: int = 0
    """Bytes."""

    def until(self) -> float:
        """When a call that begins to wait now is refused, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.max_hold()

    async def wait(self, unreachable: OwnerUnreachable, *, body: int, until: float, left: Closed) -> bool:
        """Return True once the proxy that could not be reached answers again, False once the caller has left. `body` is
        the declared length of the request's, in bytes; 0 where none is declared.

        Raises `unreachable` where it is not waited for, or no longer; Stopping where this proxy ends.
        """
        takes = CALL + min(body or MOST_READ, MOST_READ)
        if self._held + takes > MOST_HELD:
            raise unreachable
        self._held += takes
        try:
            return await self._wait(unreachable, until=until, left=left)
        finally:
            self._held -= takes

    async def _wait(self, unreachable: OwnerUnreachable, *, until: float, left: Closed) -> bool:
        peers, ordinal = self.peers, unreachable.ordinal
        now = asyncio.get_running_loop().time
        while peers.is_silent(ordinal):
            if left():
                return False
            if self.ending():
                raise Stopping()
            seconds = until - now()
            if seconds <= 0 or ordinal in peers.lost:
                raise unreachable
            await peers.changed(min(seconds, LOOK_INTERVAL))
        return not left()
