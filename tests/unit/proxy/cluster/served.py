"""Proxies' servers on the loop of a test, and settings that name their addresses."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from rolloutfleet.settings import PeersSettings, ProxySettings


@dataclass
class Served:
    """A server that listens until it is stopped."""

    server: uvicorn.Server
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task


async def served(app: Any, port: int) -> Served:
    """Serve an app. A port is known to the loop of this test alone, so any number will do."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0)
    return Served(server, task)


def settings_of(ordinal: int, ports: list[int], *, replicas: int) -> ProxySettings:
    return ProxySettings(
        fleet="test",
        model="none",
        ordinal=ordinal,
        replicas=replicas,
        port=ports[ordinal],
        peers=PeersSettings(ports=ports),
        state_dir=Path("unused"),
        gateway_url="http://127.0.0.1:9",
    )
