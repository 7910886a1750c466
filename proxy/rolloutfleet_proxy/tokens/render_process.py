"""A process that renders very long conversations, so that the one that serves keeps its interpreter.

It is `python -m rolloutfleet_proxy.tokens.render_process FD`. Over this descriptor, a connection of `multiprocessing`,
go objects: the first says which model, each further one asks for a render and gets one back. The process
ends when the connection does, so it never outlives its parent, and when nothing was asked for some minutes.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from array import array
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock

from rolloutfleet_proxy.telemetry.log_setup import helpers_environment, helpers_log
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Ask

_IDLE_SECONDS = 300.0


class RenderProcessFailed(Exception):
    """The helper process died, again after a restart."""


class RenderProcess:
    """Renders in a helper process, started when first asked, and again when it has ended."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = Lock()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def rendered(self, ask: Ask) -> array[int] | None:
        """`ChatFormat.rendered`. Raises RenderProcessFailed as well."""
        with self._lock:
            for _ in range(2):
                if self._stopped:
                    raise RenderProcessFailed("the helper process was stopped")
                with contextlib.suppress(OSError, EOFError):
                    connection = self._connected()
                    connection.send(ask)
                    outcome: array[int] | Unrenderable | None = connection.recv()
                    if isinstance(outcome, Unrenderable):
                        raise outcome
                    return outcome
                self._discard()
        raise RenderProcessFailed("the helper process died, and again after a restart")

    def stop(self) -> None:
        """End the process; what is being asked fails. May be called in any thread."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.terminate()
        with self._lock:
            self._discard()

    def _connected(self) -> Connection:
        if self._connection is None or self.pid is None:
            self._discard()
            self._connection, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=helpers_environment(),
                )
            self._connection.send(self._source)
        return self._connection

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        chat_format = connection.recv().load()
        while connection.poll(_IDLE_SECONDS):
            try:
                connection.send(chat_format.rendered(connection.recv()))
            except Unrenderable as error:
                connection.send(error)


if __name__ == "__main__":
    with helpers_log():
        main()
