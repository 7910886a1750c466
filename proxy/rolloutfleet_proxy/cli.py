"""The `rolloutfleet-proxy` command."""

import asyncio
import math
import socket
import sys
from collections.abc import Sequence

import uvicorn

from rolloutfleet_proxy import allocator, collector
from rolloutfleet_proxy.app import ProxyApp, create_app
from rolloutfleet_proxy.logs.output import Output
from rolloutfleet_proxy.logs.setup import set_up
from rolloutfleet_proxy.settings import BadSettings, SettingsSource

BACKLOG = 4096
CUT_GRACE = 5
"""Seconds in which those who wait for a call that was cut are told so."""


class _Server(uvicorn.Server):
    """Told to stop it takes no more connections, lets calls finish, and cuts those that take too long."""

    def __init__(self, config: uvicorn.Config, log: Output) -> None:
        super().__init__(config)
        self.log = log

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, ProxyApp)
        if app.proxy is not None:
            patience = app.proxy.settings.drain_timeout
            asyncio.get_running_loop().call_later(patience, app.proxy.cut_calls)
        await super().shutdown(sockets)
        # It ends by the signal that stopped it, which leaves no later moment.
        self.log.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop. Exits with 2 where the settings or the store can't be used."""
    try:
        source = SettingsSource(arguments)
        settings = source.read()
    except BadSettings as error:
        sys.exit(_said(error))
    log = set_up(settings.log, ordinal=settings.ordinal)
    allocator.settle(settings.allocator)
    app = create_app(settings, source)
    server = _Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http="httptools",
            lifespan="on",
            access_log=False,
            # Its lines go the way of all others.
            log_config=None,
            log_level="warning",
            backlog=BACKLOG,
            timeout_keep_alive=75,
            # Nothing here reads the caller's address, and each header costs every call.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=math.ceil(settings.drain_timeout) + CUT_GRACE,
        ),
        log,
    )
    collector.spare()
    try:
        server.run()
    finally:
        log.close()
    if app.mistake is not None:
        sys.exit(_said(app.mistake))
    if not server.started:
        sys.exit(1)


def _said(error: Exception) -> int:
    for line in str(error).splitlines():
        print(f"rolloutfleet-proxy: {line}", file=sys.stderr)
    return 2
