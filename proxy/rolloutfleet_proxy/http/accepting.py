"""Connections are accepted many at a time, so that under load a new one waits a few rounds of the loop and no more.

libuv takes one connection of a listening socket in each round. Where rounds are long, because much is under way, the
last of a crowd of new clients is then kept waiting for as many rounds as the crowd has heads: 13 s for 800, once.

Where descriptors run short, each new connection takes the place of one that has no request in flight.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from rolloutfleet_proxy.telemetry import logger

ACCEPT_BATCH: Final = 64
"""Connections that one round takes of a socket at the most: some milliseconds' work."""
PAUSE: Final = 1.0
"""Seconds without accepting, where the process or the system can hold no more connections."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(eq=False, slots=True)
class Accepting:
    """Accepts on listening sockets, which stay their owner's to close, from its making until `close`."""

    sockets: Sequence[socket.socket]
    protocol: Callable[[], asyncio.Protocol]
    _: KW_ONLY
    make_room: Callable[[], bool] = lambda: False
    """Closes a connection that can be spared, for each new one from descriptor `short_from` on."""
    short_from: int = sys.maxsize
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _beginning: set[asyncio.Task[None]] = field(default_factory=set)
    _pause: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        for listening in self.sockets:
            listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Accept no more. Connections that were accepted go on."""
        if self._pause is not None:
            self._pause.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)

    def _watch(self) -> None:
        self._pause = None
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # that one client has gone again
                if not self.make_room():
                    self._rest(error)
                return  # what gave way is closed before the next round
            # The system gives the lowest number that is free: a high one means that all below it are taken.
            if connection.fileno() >= self.short_from:
                self.make_room()
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._connect(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self.protocol, connection)
        except OSError:
            connection.close()

    def _rest(self, error: OSError) -> None:
        logger.warning("no connection can be accepted for %g s: %s", PAUSE, error)
        self.close()
        self._pause = self._loop.call_later(PAUSE, self._watch)
