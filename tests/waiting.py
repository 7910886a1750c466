"""Waiting for what must come: the one place outside `tests/timing` where tests sleep, and every bound on a wait.

A bound is reached by a test that fails; it says nothing of how long something may take.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

SLOW: Final = 4.0 if os.environ.get("CI_SLOW") == "1" else 1.0
"""How many times longer a machine that does much else at once may take; `.ci/run` sets CI_SLOW."""
PATIENCE: Final = 30.0 * SLOW
"""Seconds for what must come of a process that runs."""
START: Final = 120.0 * SLOW
"""Seconds for a server of ours, or the gateway, to answer: its libraries alone may take a minute to be read."""
SGLANG_START: Final = 480.0
"""Seconds for the real SGLang."""
API_SERVER_START: Final = 240.0
"""Seconds for etcd and kube-apiserver."""


def until(
    holds: Callable[[], Any],
    *,
    seconds: float = PATIENCE,
    rest: float | None = None,
    state: Callable[[], object] = lambda: "",
) -> Any:
    """Return what `holds` returns once it is true. Raises AssertionError, with the `state`, after `seconds`.

    `rest` is the seconds between two checks, for those that cost much.
    """
    began = time.monotonic()
    while not (found := holds()):
        waited = time.monotonic() - began
        assert waited < seconds, f"it did not happen in {seconds:g} s: {state()}"
        time.sleep(_rest(waited) if rest is None else rest)
    return found


async def eventually(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Return once it is true; it is asked in a thread, so it may block. Raises TimeoutError after `seconds`."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(_rest(time.monotonic() - began))


async def comes_true(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Return once it is true; it is asked on the event loop, whose objects it looks at. Raises TimeoutError."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(_rest(time.monotonic() - began))


def _rest(waited: float) -> float:
    """Seconds until the next check: a tenth of those waited so far. A check takes processor time from its subject."""
    return min(max(waited / 10, 0.01), 0.25)
