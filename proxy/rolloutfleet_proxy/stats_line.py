"""A line every so often that says how the process is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rolloutfleet_proxy.process import resident
from rolloutfleet_proxy.process.resident import Memory
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.telemetry import events, logger
from rolloutfleet_proxy.telemetry.calls import milliseconds
from rolloutfleet_proxy.telemetry.events import Stats, emit
from rolloutfleet_proxy.telemetry.metrics import Metrics, total


@contextlib.asynccontextmanager
async def stats_told(metrics: Metrics, admission: Admission, *, interval: float) -> AsyncIterator[None]:
    """The line comes every `interval` seconds until the block ends, and once more then."""
    lines = StatsLines(metrics, admission)
    telling = asyncio.create_task(lines.keep_telling(interval), name="stats line")
    try:
        yield
    finally:
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        # With the memory of the line before: whoever starts the next proxy waits for this one's end.
        lines.tell(late=0.0)


@dataclass(slots=True)
class StatsLines:
    """Counts from line to line."""

    metrics: Metrics
    admission: Admission
    _told: int = field(init=False, default=0)
    _taken: Memory = field(init=False, default_factory=lambda: Memory(rss_bytes=-1, vms_bytes=-1))

    async def keep_telling(self, interval: float) -> None:
        """A line every `interval` seconds of the loop's clock; a late one does not shift those that follow."""
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while True:
            await asyncio.sleep(due - loop.time())
            late = loop.time() - due
            try:
                # Looking through /proc takes time that grows with the processes of the machine.
                self._taken = await asyncio.to_thread(resident.of_tree)
                self.tell(late=late)
            except Exception:
                logger.exception("the line of figures could not be made")
            due = max(due + interval, loop.time())

    def tell(self, *, late: float) -> None:
        """One line. `late` is in seconds."""
        metrics, requests = self.metrics, total(self.metrics.calls)
        emit(
            Stats(
                requests=requests,
                since_last=requests - self._told,
                in_flight=metrics.in_flight,
                turns=total(metrics.turns),
                sessions_open=self.admission.sessions_open,
                rss_bytes=self._taken.rss_bytes,
                vms_bytes=self._taken.vms_bytes,
                log_dropped=events.dropped(),
                late_ms=milliseconds(max(0.0, late)),
            )
        )
        self._told = requests
