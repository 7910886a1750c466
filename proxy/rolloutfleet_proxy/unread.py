"""Whether a client takes any of what is written to it: one that never does would keep its answer in memory for ever."""

import asyncio
import fcntl
import struct
import sys
import termios
from typing import Final

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
