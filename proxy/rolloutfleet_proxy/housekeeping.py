"""What a proxy does by itself: leases and shards whose time is up end every few seconds,
and sessions that nobody uses go."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from rolloutfleet_proxy.exports import leases
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.reloading import followed
from rolloutfleet_proxy.sessions import remains
from rolloutfleet_proxy.settings import SettingsSource
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.telemetry import logger

EVERY: Final = 5.0
"""Seconds between looks at the leases and shards."""
LOOKS: Final = 0.5
"""Seconds: how soon an interval that was changed while running is heeded."""


@contextlib.asynccontextmanager
async def kept(proxy: Proxy, source: SettingsSource | None = None) -> AsyncIterator[None]:
    """House is kept, and the settings follow their source, until the block ends."""
    work = {
        "leases": _every(lambda: EVERY, lambda: _end_leases(proxy)),
        "shards": _every(lambda: EVERY, proxy.shards.tick),
        "sweep": _sweep(proxy),
        "remains": _every(lambda: EVERY, lambda: remains.clear(proxy.writer)),
        "compact": _every(lambda: EVERY, lambda: _compact(proxy)),
        "probe": proxy.probing.run(proxy.engine),
    }
    ticking = [asyncio.create_task(each, name=name) for name, each in work.items()]
    if proxy.cleanup.folder is None:
        logger.warning("sessions.dump.path is empty: sessions that go stale are discarded, and counted as that")
    try:
        async with followed(proxy, source):
            yield
    finally:
        for task in ticking:
            task.cancel()
        await asyncio.gather(*ticking, return_exceptions=True)


async def _every(interval: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
    """Do the work again and again, whatever becomes of it once."""
    while True:
        began = time.monotonic()
        while (left := began + interval() - time.monotonic()) > 0:  # noqa: ASYNC110 (the interval may change meanwhile)
            await asyncio.sleep(min(left, LOOKS))
        try:
            await work()
        except Exception:
            logger.exception("a round of housekeeping failed; the next one tries again")


async def _sweep(proxy: Proxy) -> None:
    await proxy.sweeper.tidy(proxy.cleanup)
    await _every(lambda: proxy.settings.sessions.cleanup_interval, lambda: proxy.sweeper.sweep(proxy.cleanup))


async def _compact(proxy: Proxy) -> None:
    await compact(proxy.database, proxy.writer)


async def _end_leases(proxy: Proxy) -> None:
    proxy.forget(await proxy.writer.run(leases.expire, frees=True))
