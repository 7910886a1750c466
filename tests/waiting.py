"""Waiting for what only shows when it is looked at, and how long tests wait for anything that must come."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_VARIABLE: Final = "ROLLOUTFLEET_TEST_PATIENCE"
PATIENCE: Final = float(os.environ.get(PATIENCE_VARIABLE, "240"))
"""Seconds. Only a test that fails waits so long: a slow disk may take a minute over the first look at a library."""


def until(holds: Callable[[], Any], *, seconds: float = PATIENCE) -> Any:
    """What `holds` returns once it is true."""
    ends = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < ends, f"it did not happen in {seconds:g} s"
        time.sleep(0.02)
    return found


async def eventually(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Return once it is true; it is asked in a thread, so it may block. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)
