"""Whether the operator works: healthy while passes succeed, or while there is nothing to do. Its HTTP server has
/healthz for the kubelet and /metrics for Prometheus."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rolloutfleet_operator.cluster.metrics import OperatorMetrics

UNHEALTHY_AFTER: Final = 600.0
"""Seconds in which passes may fail, and not one succeed."""
HEADERS: Final = 32
"""In a request's head; with the length of each, 64 KiB at the most, as of the proxies' heads."""
HEADER_BYTES: Final = 2048
"""Of one header, or of a request's line."""
HEAD_TIMEOUT: Final = 15.0
"""Seconds for a head to come, from when a connection was made or the answer before."""


class Health:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing_since: float | None = None

    def passed(self) -> None:
        self._failing_since = None

    def failed(self) -> None:
        if self._failing_since is None:
            self._failing_since = self._clock()

    def problem(self) -> str | None:
        """What is wrong, where a restart might help; None where the operator works or waits."""
        if self._failing_since is None:
            return None
        seconds = self._clock() - self._failing_since
        return f"no pass has succeeded for {seconds:.0f} s" if seconds > UNHEALTHY_AFTER else None


async def serve(host: str, port: int, health: Health, metrics: OperatorMetrics) -> web.AppRunner:
    """Raises OSError where it can't listen there. `cleanup` of what is returned ends it."""

    async def healthz(_: web.Request) -> web.Response:
        problem = health.problem()
        return web.Response(text=f"{problem or 'ok'}\n", status=500 if problem else 200)

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", figures)])
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        shutdown_timeout=1.0,
        max_line_size=HEADER_BYTES,
        max_field_size=HEADER_BYTES,
        max_headers=HEADERS,
        keepalive_timeout=HEAD_TIMEOUT,
    )
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
