"""The way of spans to a collector: a thread of the SDK's, which sends them in batches over OTLP.

A collector that is slow or gone delays nothing: what it does not take is dropped when the SDK's queue is full. What the
SDK says of that comes into the log a few times an hour, and not at every batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from rolloutfleet_proxy.telemetry import logger

LAST_SPANS: Final = 1.0
"""Seconds that the end of a proxy waits at the most for its last spans to arrive."""
QUIET: Final = 300.0
"""Seconds in which the log has one message of OpenTelemetry's at the most."""
_ABOUT_SPANS: Final = ("opentelemetry.sdk", "opentelemetry.exporter")
"""Who is heard. Others quote the headers of callers."""


class _Watched(SpanExporter):
    """Sends spans, and knows whether the last ones arrived."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.failing = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Notes(logging.Handler):
    """What OpenTelemetry says, in our log: the first message, and then one in a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._silent_until = -1.0
        self._unsaid = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(_ABOUT_SPANS):
            return
        now = self._clock()
        if now < self._silent_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more such messages before)" if self._unsaid else ""
        self._silent_until, self._unsaid = now + QUIET, 0
        logger.log(record.levelno, "OpenTelemetry: %s%s", record.getMessage(), more, exc_info=record.exc_info)


@dataclass(frozen=True, slots=True)
class Collector:
    """Where a provider's spans go. Close it."""

    provider: TracerProvider
    exporter: _Watched
    notes: Notes

    @classmethod
    def of(cls, provider: TracerProvider) -> Self:
        """Raises what the SDK does where its variables can't be used."""
        exporter, notes = _Watched(OTLPSpanExporter()), Notes()
        provider.add_span_processor(BatchSpanProcessor(exporter))
        said = logging.getLogger("opentelemetry")
        said.addHandler(notes)
        said.propagate = False
        return cls(provider, exporter, notes)

    async def aclose(self) -> None:
        """Send what waits. Returns after `LAST_SPANS` at the latest, and at once where the collector takes nothing."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self.provider.shutdown()
            with suppress(RuntimeError):  # Nobody waited so long: the loop is closed.
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=send, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 0 if self.exporter.failing else LAST_SPANS)
        said = logging.getLogger("opentelemetry")
        said.removeHandler(self.notes)
        said.propagate = True
