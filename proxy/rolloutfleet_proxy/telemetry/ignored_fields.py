"""Names of request fields without effect, as a header and a metric's label may hold them: callers choose them."""

import re
from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter

OTHER: Final = "other"
"""For a name that is not plain, and for those beyond `MOST_NAMES`."""
MOST_NAMES: Final = 64

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INDEX = re.compile(r"\[\d+\]")


class IgnoredFields:
    """Counts requests by the fields that were ignored in them, at most `MOST_NAMES` by name."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._own: set[str] = set()
        """Names that are counted as themselves."""

    def count(self, paths: Sequence[str]) -> None:
        """Count a request once for each name; a new one gets its own where there is room for it."""
        for name in map(_plain, paths):
            if name != OTHER and len(self._own) < MOST_NAMES:
                self._own.add(name)
        for name in self.names(paths):
            self._counter.labels(name).inc()

    def names(self, paths: Sequence[str]) -> list[str]:
        """Those of counted fields, each once: `messages[3].content[0].x` is `messages.content.x`."""
        return list(dict.fromkeys(name if name in self._own else OTHER for name in map(_plain, paths)))


def _plain(path: str) -> str:
    name = _INDEX.sub("", path)
    return name if _PLAIN.fullmatch(name) else OTHER
