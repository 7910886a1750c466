"""The collector of cycles: kept from long looks while the proxy serves, and watched, for it stops everything.

A call that ended leaves no cycles (`tests/integration/proxy/test_leftovers.py`), so there is little for it to find.
What it looks at is bounded as well: caches hold so many bytes, and what the imports made it never looks at again.
"""

import gc
import time
from typing import Any, Final

THRESHOLDS: Final = (10_000, 50, 1_000)
"""New objects after which the youngest are looked at (Python's own 700 come several times a turn; 10,000 take some 10
ms), how many such looks make one at the middle generation, and how many of those one at everything: that is after 500
million objects, so never while it serves."""


def spare() -> None:
    """Begin, once all is loaded. What the imports made stays for good, so it need not be looked at again and again; nor
    once, for the 1 MB of cycles among it: a look costs a start a tenth of a second."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


class Collections:
    """How often each generation was looked at, and how long the longest look took: its thread's own time, so that how
    busy the machine is doesn't count."""

    def __init__(self) -> None:
        self.times = [0, 0, 0]
        self.longest = [0.0, 0.0, 0.0]
        self._began = 0.0

    def watch(self) -> None:
        gc.callbacks.append(self._note)

    def end(self) -> None:
        gc.callbacks.remove(self._note)

    def figures(self) -> dict[str, Any]:
        return {"times": list(self.times), "longest_seconds": [round(seconds, 4) for seconds in self.longest]}

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._began = now
            return
        generation = info["generation"]
        self.times[generation] += 1
        self.longest[generation] = max(self.longest[generation], now - self._began)
