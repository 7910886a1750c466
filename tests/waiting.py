"""Waiting for what only shows when it is looked at."""

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(holds: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    """What `holds` returns once it is true."""
    ends = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < ends, f"it did not happen in {seconds:g} s"
        time.sleep(0.02)
    return found


async def eventually(holds: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Return once it is true; it is asked in a thread, so it may block. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)
