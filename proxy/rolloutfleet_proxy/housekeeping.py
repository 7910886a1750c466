"""What a proxy does by itself: leases and shards whose time is up end every few seconds,
and sessions that nobody uses go."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.probing import Probing
from rolloutfleet_proxy.process.allocator import EVERY as TRIMS
from rolloutfleet_proxy.process.allocator import Trimming
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.shards.shelf import Shards
from rolloutfleet_proxy.store import remains
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.database import Database
from rolloutfleet_proxy.store.writer import Writer
from rolloutfleet_proxy.telemetry import logger

Work = Coroutine[Any, Any, None]

EVERY: Final = 5.0
"""Seconds between looks at the leases and shards."""
LOOKS: Final = 0.5
"""Seconds: how soon an interval that was changed while running is heeded."""


def housekeeping(
    *,
    exports: ExportService,
    dumps: DumpService,
    shards: Shards,
    database: Database,
    writer: Writer,
    probing: Probing,
    engine: Engine,
    trimming: Trimming | None,
    settings: SettingsInForce,
) -> dict[str, Work]:
    """What is done, by its name."""
    if not dumps.keeps:
        logger.warning("sessions.dump.path is empty: sessions that go stale are discarded, and counted as that")
    work = {
        "leases": _every(lambda: EVERY, exports.expire),
        "shards": _every(lambda: EVERY, shards.tick),
        "sweep": _sweep(dumps, settings),
        "remains": _every(lambda: EVERY, lambda: remains.clear(writer)),
        "compact": _every(lambda: EVERY, lambda: compact(database, writer)),
        "probe": probing.run(engine),
    }
    return work if trimming is None else work | {"trimming": _every(lambda: TRIMS, trimming.look)}


@contextlib.asynccontextmanager
async def kept(work: Mapping[str, Work]) -> AsyncIterator[None]:
    """House is kept until the block ends."""
    ticking = [asyncio.create_task(each, name=name) for name, each in work.items()]
    try:
        yield
    finally:
        for task in ticking:
            task.cancel()
        await asyncio.gather(*ticking, return_exceptions=True)


async def _every(interval: Callable[[], float], work: Callable[[], Awaitable[object]]) -> None:
    """Do the work again and again, whatever becomes of it once."""
    while True:
        began = time.monotonic()
        while (left := began + interval() - time.monotonic()) > 0:  # noqa: ASYNC110 (the interval may change meanwhile)
            await asyncio.sleep(min(left, LOOKS))
        try:
            await work()
        except Exception:
            logger.exception("a round of housekeeping failed; the next one tries again")


async def _sweep(dumps: DumpService, settings: SettingsInForce) -> None:
    await dumps.tidy()
    await _every(lambda: settings.current.sessions.cleanup_interval, dumps.sweep)
