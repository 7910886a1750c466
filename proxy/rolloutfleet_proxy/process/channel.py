"""What parent and worker say to each other: lines of JSON over a pair of sockets, and listening sockets beside them.

Worker to parent:

    {"listen": {host, port, timeout, ephemeral, log}}
                                            open the sockets, or hand them over; a stop takes `timeout` seconds, and
                                            where the store is `ephemeral`, its rows are dumped in it
    {"warm": true}                          everything is imported and loaded; the store is not touched
    {"serving": true}                       the store is open, and connections are accepted
    {"then": "restart" | "exit" | "stay"}   what a drain will end in: a restart needs a successor
    {"ending": true}                        it ends on purpose

Parent to worker:

    {"listening": true}, with sockets; {"refused": why}
    {"open": {crash, peak_rss}}             open the store and serve; how the last one died, if it did not mean to
    {"successor": "warm" | why it failed}
    {"quiesce": reason}                     finish, then end
"""

import json
import socket
from typing import Any

_SOCKETS = 8
"""Listening sockets at the most: a name may have an address of each family."""
_READ = 65536


class Channel:
    """One end. `receive` blocks where the socket does."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        self.closed = False
        """The other end is gone."""

    def fileno(self) -> int:
        return self._end.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._end.setblocking(blocking)

    def send(self, message: dict[str, Any], sockets: tuple[int, ...] = ()) -> None:
        """A process that is gone hears nothing; that is not an error."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if sockets:
                socket.send_fds(self._end, [line], sockets)
            else:
                self._end.sendall(line)
        except OSError:
            self.closed = True

    def receive(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The messages that have come, and the file descriptors with them; nothing where none is there."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._end, _READ, _SOCKETS)
        except BlockingIOError:
            return [], []
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.closed = True
            return [], list(descriptors)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines], list(descriptors)

    def close(self) -> None:
        self._end.close()
