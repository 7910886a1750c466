"""The operator's own HTTP: /healthz for the kubelet, /metrics for Prometheus."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from rolloutfleet_operator.cluster.health import Health
from rolloutfleet_operator.cluster.metrics import Metrics
from rolloutfleet_operator.cluster.slots import Slots


async def serve(host: str, port: int, health: Health, metrics: Metrics, slots: Slots) -> web.AppRunner:
    """Raises OSError where it can't listen there. `cleanup` of what is returned ends it."""

    async def healthz(_: web.Request) -> web.Response:
        problem = health.problem()
        return web.Response(text=f"{problem or 'ok'}\n", status=500 if problem else 200)

    async def figures(_: web.Request) -> web.Response:
        metrics.held(slots.held)
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", figures)])
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
