"""An operator's own /metrics on loopback, with its registry as passes over a fleet leave it; they go on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.processes import free_port
from tests.unit.operator.cluster.test_metrics import POD
from tests.waiting import PATIENCE

from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.cluster.health import Health, serve
from rolloutfleet_operator.cluster.metrics import OperatorMetrics

BUDGET = 2**30
SECONDS_BETWEEN_PASSES = 0.5
STATUS = {
    "conditions": [{"type": "Ready", "status": "False", "reason": "Any", "message": ""}],
    "problems": [{"reason": "VolumeFull", "message": "", "since": "2026-01-01T00:00:00Z"}],
}
RESTARTED = {**STATUS, "restarts": {"memory": 1}, "stores": [{"ordinal": 0, "id": "a", "lost": 1}]}
SILENT = replace(POD, name="math-proxy-1", stats=None, unanswered=1)


def seen() -> OperatorMetrics:
    """Two passes, after the first of which a proxy was restarted, and one that failed."""
    metrics = OperatorMetrics()
    for status in (STATUS, RESTARTED):
        metrics.saw(("default", "math"), FleetStatus.model_validate(status), (POD, SILENT), BUDGET)
        metrics.passes.observe(0.1)
    metrics.errors.inc()
    metrics.leading.set(1)
    return metrics


def go_on(loop: asyncio.AbstractEventLoop, metrics: OperatorMetrics) -> None:
    metrics.passes.observe(0.1)
    loop.call_later(SECONDS_BETWEEN_PASSES, go_on, loop, metrics)


@contextmanager
def serving() -> Iterator[str]:
    """Its address, HOST:PORT."""
    metrics = seen()
    host, port = "127.0.0.1", free_port()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        starting = serve(host, port, Health(time.monotonic), metrics)
        runner = asyncio.run_coroutine_threadsafe(starting, loop).result(PATIENCE)
        loop.call_soon_threadsafe(go_on, loop, metrics)
        yield f"{host}:{port}"
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
