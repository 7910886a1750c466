"""The way out of the log: a bounded queue, and a thread that writes. A slow or blocked reader stalls nobody."""

import atexit
import os
import select
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

QUEUE_BYTES = 4 << 20
"""Lines that wait at the most; what comes above that is dropped and counted."""
BATCH_SECONDS = 0.02
"""Seconds in which lines gather before they are written in one go."""
FLUSH_TIMEOUT = 2.0
"""Seconds that the end of the process waits for what is queued."""


@dataclass(eq=False)
class Output:
    """Writes lines to a file descriptor. `put` never blocks. `close` it; it closes itself as the process ends."""

    descriptor: int
    _: KW_ONLY
    most_bytes: int = QUEUE_BYTES
    gathering: float = BATCH_SECONDS
    dropped_line: Callable[[int], bytes] = lambda count: b""
    """Makes the line that says how many lines were lost since the last one."""
    dropped: int = 0
    """Lines that were lost: no room in the queue, or the descriptor refused them."""
    _reported: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _idle: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def waiting(self) -> int:
        """Lines in the queue."""
        return len(self._lines)

    def put(self, line: bytes) -> None:
        with self._lock:
            if self._waiting_bytes + len(line) > self.most_bytes or self._closing.is_set():
                self.dropped += 1
                return
            self._lines.append(line)
            self._waiting_bytes += len(line)
            first = len(self._lines) == 1
        if first:
            self._ready.set()

    def flush(self, *, timeout: float = FLUSH_TIMEOUT) -> None:
        """Return when all that is queued has been written, or after `timeout` seconds."""
        self._idle.clear()
        self._ready.set()
        self._idle.wait(timeout)

    def close(self, *, timeout: float = FLUSH_TIMEOUT) -> None:
        """Write what is queued, and end; past `timeout` seconds the rest is lost."""
        self._closing.set()
        self._ready.set()
        self._thread.join(timeout)
        atexit.unregister(self.close)

    def _serve(self) -> None:
        while True:
            self._ready.wait()
            # One write for many lines: a wake-up for each would take the interpreter from the event loop each time.
            closing = self._closing.wait(self.gathering)
            self._ready.clear()
            lines = self._taken()
            if lines and not self._write(b"".join(lines)):
                with self._lock:
                    self.dropped += len(lines)
            if not self._lines:
                self._idle.set()
            if closing:
                return

    def _taken(self) -> list[bytes]:
        with self._lock:
            lines, self._lines, self._waiting_bytes = self._lines, [], 0
        lost = self.dropped - self._reported
        if lost:
            self._reported += lost
            lines.append(self.dropped_line(lost))
        return lines

    def _write(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:  # whoever shares the descriptor may have made it non-blocking
                select.select([], [self.descriptor], [], 1.0)
            except OSError:
                return False
        return True
