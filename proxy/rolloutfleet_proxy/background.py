"""What a proxy does by itself: work that is done again and again, sweeps, and a line of the log that says how it is."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet.tasks import end_tasks
from rolloutfleet_proxy.process import resident
from rolloutfleet_proxy.process.resident import Memory
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.keeping import Keeping
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry import events, logger
from rolloutfleet_proxy.telemetry.calls import milliseconds
from rolloutfleet_proxy.telemetry.events import Stats, emit
from rolloutfleet_proxy.telemetry.metrics import Metrics, total

Work = Coroutine[Any, Any, None]

RECHECK_INTERVAL: Final = 0.5
"""Seconds: how soon an interval that was changed while running is heeded."""


KEEPING_INTERVAL: Final = 1.0
"""Seconds between looks at what is to be copied: so long its turns stay in the store."""


@contextlib.asynccontextmanager
async def running(work: Mapping[str, Work]) -> AsyncIterator[None]:
    """All of it, by its name, until the block ends."""
    tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
    try:
        yield
    finally:
        await end_tasks(tasks)


async def every(interval: Callable[[], float], work: Callable[[], Awaitable[object]]) -> None:
    """Do the work again and again, whatever becomes of it once. `interval` says how many seconds are between."""
    while True:
        began = time.monotonic()
        while (left := began + interval() - time.monotonic()) > 0:  # noqa: ASYNC110 (the interval may change meanwhile)
            await asyncio.sleep(min(left, RECHECK_INTERVAL))
        await _attempt(work)


async def _attempt(work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception:
        logger.exception("a round of housekeeping failed; the next one tries again")


async def sweeping(dumps: DumpService, settings: SettingsInForce) -> None:
    """Sessions that nobody uses go."""
    if not dumps.keeps:
        logger.warning("sessions.dump.path is empty: stale sessions are discarded, and counted as such")
    await _attempt(dumps.tidy)
    await every(lambda: settings.current.sessions.cleanup_interval, dumps.sweep)


async def keep_copying(keeping: Keeping) -> None:
    """Trained sessions that are to be kept are copied."""
    await keeping.tidy()
    await every(lambda: KEEPING_INTERVAL, keeping.work)


@dataclass(slots=True)
class StatsLines:
    """Counts from line to line."""

    metrics: Metrics
    admission: Admission
    _reported: int = field(init=False, default=0)
    _taken: Memory = field(init=False, default_factory=lambda: Memory(rss_bytes=-1, vms_bytes=-1))

    async def keep_logging(self, interval: float) -> None:
        """A line every `interval` seconds of the loop's clock; a late one does not shift those that follow."""
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while True:
            await asyncio.sleep(due - loop.time())
            late = loop.time() - due
            try:
                # Looking through /proc takes time that grows with the processes of the machine.
                self._taken = await asyncio.to_thread(resident.of_tree)
                self.log_line(late=late)
            except Exception:
                logger.exception("the statistics line could not be written")
            due = max(due + interval, loop.time())

    def log_line(self, *, late: float = 0.0) -> None:
        """One line, with the memory as it was measured last. `late` is in seconds."""
        metrics, requests = self.metrics, total(self.metrics.calls)
        emit(
            Stats(
                requests=requests,
                since_last=requests - self._reported,
                in_flight=metrics.in_flight,
                turns=total(metrics.turns),
                sessions_open=self.admission.sessions_open,
                rss_bytes=self._taken.rss_bytes,
                vms_bytes=self._taken.vms_bytes,
                log_dropped=events.sink().dropped,
                late_ms=milliseconds(max(0.0, late)),
            )
        )
        self._reported = requests
