"""A proxy of the test's own process, beside a real gateway and a simulated engine: its objects can be looked at."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.fleets import Fleet
from tests.waiting import PATIENCE, eventually

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.app import ProxyApp
from rolloutfleet_proxy.worker import KEEP_ALIVE


@asynccontextmanager
async def proxy_in_process(
    fleet: Fleet, folder: Path, **asked: Any
) -> AsyncIterator[tuple[ProxyApp, httpx.AsyncClient]]:
    """An app that serves, with the settings of the fleet's first proxy but for those given, and its admin's client."""
    usual = {key: value for key, value in fleet.proxy.settings.items() if key not in ("peers", "admin_key_file")}
    app = ProxyApp(ProxySettings.model_validate({**usual, "state_dir": folder, **asked}))
    config = uvicorn.Config(
        app, port=0, http="httptools", log_config=None, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())  # `serve` would take the test runner's signal handlers.
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"authorization": f"Bearer {(folder / 'admin.key').read_text().strip()}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE) as admin:
        yield app, admin
    server.should_exit = True
    await serving
    fleet.engine.clear_faults()
