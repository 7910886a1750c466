"""Clients' connections: each costs a descriptor, and may owe the proxy something.

Where descriptors run short, the one that has been without a request for the longest gives way to a new one. Those whose
clients take too long are ended. All are looked at once a second, which costs less than a timer for each. So are those
whose clients take nothing of what is written to them: they would keep their answers in memory for ever.
"""

import asyncio
import fcntl
import select
import struct
import sys
import termios
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from rolloutfleet_proxy.telemetry import logger

RESERVED: Final = 1024
"""Descriptors that are left to the proxy's own files and connections at the most; of a low limit, a quarter."""


class Connection(Protocol):
    """One connection of a client."""

    def look(self, now: float) -> None:
        """End it where its client has kept the proxy waiting for too long; `now` is the loop's time."""

    def is_unread(self, now: float) -> bool:
        """Whether its client has taken nothing of what waits for it for too long."""

    def give_way(self) -> None:
        """Close at once, whatever still waits to be sent."""


class Connections:
    """All of a proxy, and those without a request in flight in the order in which they came to be so."""

    def __init__(self, *, refused: Callable[[str], object] = lambda code: None) -> None:
        """`refused` is told the code of each request that is refused before it reaches the app."""
        self.refused = refused
        self._all: set[Connection] = set()
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        self._gave_way = 0

    def begins(self, connection: Connection) -> None:
        """It has been made."""
        self._all.add(connection)

    def ends(self, connection: Connection) -> None:
        """It is closed."""
        self._all.discard(connection)
        self.leaves(connection)

    def rests(self, connection: Connection) -> None:
        """It is new, or its last request has been answered."""
        self._idle[connection] = None

    def leaves(self, connection: Connection) -> None:
        """A request of it is in flight."""
        self._idle.pop(connection, None)

    def make_room(self) -> bool:
        """Close the one that has rested longest; False where every connection has a request in flight."""
        if not self._idle:
            return False
        connection, _ = self._idle.popitem(last=False)
        self._gave_way += 1
        connection.give_way()
        return True

    def look(self, now: float | None = None) -> None:
        """End those whose clients take too long; `now` is the loop's time."""
        now = asyncio.get_running_loop().time() if now is None else now
        for connection in list(self._idle):
            connection.look(now)
        unread = [connection for connection in self._all if connection.is_unread(now)]
        for connection in unread:
            connection.give_way()
        if unread:
            logger.warning("%d connections were closed, whose clients did not read their answers", len(unread))
        if self._gave_way:
            logger.warning(
                "file descriptors are running out: %d connections without a request were closed", self._gave_way
            )
            self._gave_way = 0


def for_clients(limit: int) -> int:
    """The descriptor from which on they run short, where a process may have `limit`."""
    return limit - min(RESERVED, limit // 4)


_COUNT: Final = struct.Struct("i")


class Taking:
    """How long a client has taken nothing of what waits for it."""

    def __init__(self) -> None:
        self._taken = -1
        self._since = 0.0

    def nothing_for(self, taken: int, now: float) -> float:
        """Seconds for which the number of bytes that it has taken so far has not changed."""
        if taken != self._taken:
            self._taken, self._since = taken, now
        return now - self._since


def in_the_system(transport: asyncio.Transport) -> int:
    """Bytes that were written, are out of the process, and that the other end has not taken.

    They count, as the system takes megabytes ahead and asks for more only when a third of them are gone: of a slow
    client the process would see nothing for minutes. 0 where the system doesn't say.
    """
    if sys.platform != "linux":
        return 0
    try:
        (count,) = _COUNT.unpack(fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):
        return 0  # it is being closed
    return int(count)


def has_ended(transport: asyncio.Transport) -> bool:
    """Return whether the other end has closed the connection, though the event loop may have yet to read of it.
    False where the system doesn't say."""
    return sys.platform == "linux" and _is_told(transport, select.POLLRDHUP)


def was_reset(transport: asyncio.Transport) -> bool:
    """Return whether the other end takes nothing any more, as it says when something is written to it."""
    return _is_told(transport, 0)


def _is_told(transport: asyncio.Transport, event: int) -> bool:
    """Of that event, or, unasked, of a reset."""
    looking = select.poll()
    try:
        looking.register(transport.get_extra_info("socket").fileno(), event)
        return bool(looking.poll(0))
    except (OSError, ValueError):
        return False  # it is being closed
