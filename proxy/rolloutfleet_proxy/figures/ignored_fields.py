"""Names of request fields without effect, as a header and a metric's label may hold them: callers choose them."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

OTHER: Final = "other"
"""For a name that is not plain, and for those beyond `MOST_NAMES`."""
MOST_NAMES: Final = 64

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INDEX = re.compile(r"\[\d+\]")


class IgnoredFields:
    """Counts requests by the fields that were ignored in them, at most `MOST_NAMES` by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, paths: Sequence[str]) -> None:
        """Count a request once for each name; a new one gets its own where there is room for it."""
        for name in map(_plain, paths):
            if name != OTHER and len(self.counts) - (OTHER in self.counts) < MOST_NAMES:
                self.counts[name] += 0
        self.counts.update(self.names(paths))

    def names(self, paths: Sequence[str]) -> list[str]:
        """Those of counted fields, each once: `messages[3].content[0].x` is `messages.content.x`."""
        return list(dict.fromkeys(name if name in self.counts else OTHER for name in map(_plain, paths)))


def _plain(path: str) -> str:
    name = _INDEX.sub("", path)
    return name if _PLAIN.fullmatch(name) else OTHER
