"""Memory that is free goes back to the system: what the C library's allocator is told, and when it is made to trim.

glibc keeps what is freed for itself, and more so where threads have heaps of their own. `benchmarks` shows what each
measure gives (rig `churn`). Elsewhere than on glibc none of this is there, and nothing is missed: musl and macOS give
back by themselves.

Trimming holds the locks of the heaps, so it stops whoever allocates, also from a thread of its own: about half a
millisecond for each MB that goes back. It is therefore done when enough was freed, in small portions while calls run;
and once more at the next look if all is quiet still, for what exports and commits freed after they were counted.
"""

import asyncio
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rolloutfleet.settings import AllocatorSettings

TRIM_INTERVAL = 2.0
"""Seconds between two looks at whether to trim."""
TRIM_BYTES = 32 << 20
"""Bytes that calls gave back since the last trim, from which on another is worth its while."""
LONG_TRIM = 0.05
"""Seconds that a trim may stop the others for; after one that took longer the next waits for a quiet moment."""
MAX_TRIM_DELAY = 60.0
"""Seconds that it waits at the most."""

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
"""`mallopt`'s names in glibc's malloc.h."""


def settle(settings: AllocatorSettings) -> None:
    """Tell the allocator, before there are threads and anything large. Without glibc nothing happens."""
    mallopt = _function("mallopt", ctypes.c_int, ctypes.c_int)
    if mallopt is None:
        return
    if settings.arenas:
        mallopt(_ARENA_MAX, settings.arenas)
    if settings.mmap_threshold:
        # Given one of the two, glibc no longer raises the other by itself.
        mallopt(_MMAP_THRESHOLD, settings.mmap_threshold)
        mallopt(_TRIM_THRESHOLD, settings.mmap_threshold)


def find_trim() -> Callable[[], bool] | None:
    """glibc's `malloc_trim(0)`, which says whether any memory went back; None where there is none."""
    trim = _function("malloc_trim", ctypes.c_size_t)
    return None if trim is None else lambda: trim(0) == 1


def _function(name: str, *arguments: type) -> Callable[..., int] | None:
    try:
        found = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    found.argtypes = arguments
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return]


def is_due(*, freed: int, since: float, last_took: float, quiet: bool, settled: bool) -> bool:
    """Whether to trim: `freed` bytes and `since` seconds after the last time, which took `last_took` seconds.

    `settled` says that nothing had been freed before the last time either, so that nothing more is to be expected.
    """
    if freed < TRIM_BYTES:
        return quiet and (freed > 0 or not settled)
    return quiet or last_took <= LONG_TRIM or since >= MAX_TRIM_DELAY


@dataclass(slots=True)
class Trimming:
    """Trims now and then. `freed` tells all that calls ever gave back, `quiet` whether none is under way."""

    freed: Callable[[], int]
    quiet: Callable[[], bool]
    trim: Callable[[], bool] | None = field(default_factory=find_trim)
    clock: Callable[[], float] = time.monotonic
    times: int = 0
    longest: float = 0.0
    _last_freed: int = 0
    _last_took: float = 0.0
    _last_at: float = float("-inf")
    _settled: bool = False

    async def look(self) -> None:
        """Trim if it is time to."""
        freed, now = self.freed(), self.clock()
        if self.trim is None or not is_due(
            freed=freed - self._last_freed,
            since=now - self._last_at,
            last_took=self._last_took,
            quiet=self.quiet(),
            settled=self._settled,
        ):
            return
        await asyncio.to_thread(self.trim)
        self._settled = freed == self._last_freed
        self._last_freed, self._last_at = freed, self.clock()
        self._last_took = self._last_at - now
        self.times += 1
        self.longest = max(self.longest, self._last_took)

    def figures(self) -> dict[str, float]:
        return {"times": self.times, "longest_seconds": round(self.longest, 4)}
