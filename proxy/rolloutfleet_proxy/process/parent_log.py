"""Lines of the log that the parent writes itself, in the forms of the worker's own (`telemetry.log_lines`)."""

import contextlib
import json
import os
import select
import sys
import time

LOGGER = "rolloutfleet.proxy.parent"
_LEVELS = ("debug", "info", "warning", "error")


def _write_unless_blocked(line: str) -> None:
    """Nobody may be reading standard error: then the line is lost, and the parent goes on."""
    descriptor = sys.stderr.fileno()
    with contextlib.suppress(OSError):
        if select.select([], [descriptor], [], 0)[1]:
            # A pipe that can be written to has room for so much at least.
            os.write(descriptor, line.encode()[: select.PIPE_BUF - 1] + b"\n")


class Lines:
    """Written to standard error."""

    def __init__(self, *, ordinal: int = 0, json: bool = False, level: str = "info") -> None:
        self._ordinal = ordinal
        self._json = json
        self._level = level

    def say(self, text: str, level: str) -> None:
        if _LEVELS.index(level) >= _LEVELS.index(self._level):
            _write_unless_blocked(self.line(text, level, now=time.time()))

    def line(self, text: str, level: str, *, now: float) -> str:
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        if not self._json:
            return f"{stamp} {level.upper()} message pid={os.getpid()} ordinal={self._ordinal} logger={LOGGER} {text}"
        head = {"time": stamp, "level": level, "pid": os.getpid(), "ordinal": self._ordinal, "event": "message"}
        return json.dumps({**head, "logger": LOGGER, "message": text}, separators=(",", ":"))
