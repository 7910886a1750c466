"""What a proxy does by itself every few seconds: leases whose time is up end, and the served clock is saved."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rolloutfleet_proxy.exports import leases
from rolloutfleet_proxy.logs import logger
from rolloutfleet_proxy.proxy import Proxy

EVERY = 5.0
"""Seconds."""


@contextlib.asynccontextmanager
async def kept(proxy: Proxy) -> AsyncIterator[None]:
    """House is kept until the block ends."""
    ticking = asyncio.create_task(_tick(proxy), name="housekeeping")
    try:
        yield
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking


async def _tick(proxy: Proxy) -> None:
    while True:
        await asyncio.sleep(EVERY)
        try:
            proxy.forget(await proxy.writer.run(leases.expire))
        except Exception:
            logger.exception("a round of housekeeping failed; the next one tries again")
