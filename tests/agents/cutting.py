"""What breaks between agent and proxy: connections, through a relay, and the proxy itself, just after a commit."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.agents.fleet import PLACES
from tests.fleets import Fleet
from tests.waiting import until

from rolloutfleet_proxy.failpoints import BEFORE_ANSWER, HELD


class Relay:
    """Hands on what comes over TCP both ways, until it is told to break connections."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._marker: bytes | None = None
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, marker: bytes) -> None:
        """Break the next connection that brings this from the proxy; what comes with it is lost."""
        self._marker = marker

    def cut(self) -> None:
        """Break all connections."""
        self.cuts += 1
        for each in list(self._open):
            _shut(each)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        for each in list(self._open):
            _shut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    proxy = socket.create_connection(self._to)
                except OSError:  # it is being started again
                    client.close()
                    continue
                pair = (client, proxy)
                self._open.update(pair)
                for source, target in (pair, pair[::-1]):
                    args = (source, target, source is proxy)
                    threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, from_proxy: bool) -> None:
        behind = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if from_proxy and self._marker is not None and self._marker in behind + data:
                    self._marker = None
                    self.cuts += 1
                    break
                behind = data[-100:]
                target.sendall(data)
        _shut(source)
        _shut(target)
        self._open.discard(source)
        source.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def relay_to(fleet: Fleet) -> Iterator[Relay]:
    relay = Relay(fleet.proxy.port)
    try:
        yield relay
    finally:
        relay.close()


@contextlib.contextmanager
def held_before_its_answer(fleet: Fleet) -> Iterator[None]:
    """The proxy has committed a turn, and nothing of the end of its answer has left, until the block ends."""
    place = fleet.proxy.folder.parent / PLACES / BEFORE_ANSWER
    held = place.with_name(place.name + HELD)
    place.touch()
    try:
        until(held.exists)
        yield
    finally:
        held.unlink(missing_ok=True)
        place.unlink()
