"""Lines of the log that the parent writes itself, in the forms of the worker's own (`logs.lines`)."""

import json
import os
import sys
import time

LOGGER = "rolloutfleet.proxy.parent"
_LEVELS = ("debug", "info", "warning", "error")


class Lines:
    """Written to standard error."""

    def __init__(self, *, ordinal: int = 0, json: bool = False, level: str = "info") -> None:
        self._ordinal = ordinal
        self._json = json
        self._level = level

    def say(self, text: str, level: str) -> None:
        if _LEVELS.index(level) >= _LEVELS.index(self._level):
            sys.stderr.write(self.line(text, level, now=time.time()) + "\n")
            sys.stderr.flush()

    def line(self, text: str, level: str, *, now: float) -> str:
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        if not self._json:
            return f"{stamp} {level.upper()} message pid={os.getpid()} ordinal={self._ordinal} logger={LOGGER} {text}"
        head = {"time": stamp, "level": level, "pid": os.getpid(), "ordinal": self._ordinal, "event": "message"}
        return json.dumps({**head, "logger": LOGGER, "message": text}, separators=(",", ":"))
