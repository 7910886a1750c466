"""The page's process: a socket on the loopback, signals, and the URL that a person opens."""

import signal
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from rolloutfleet.ending import ending_signals
from rolloutfleet.http_serving import BoundedProtocol, BoundedServer
from rolloutfleet.inspect.access import TOKEN, Access
from rolloutfleet.inspect.app import application
from rolloutfleet.inspect.sources import Source
from rolloutfleet.inspect.tabs import Tabs

ADDRESS: Final = "127.0.0.1"
LAST_SECONDS: Final = 2
"""That answers under way have when it ends."""


def listen(port: int) -> socket.socket:
    """On the loopback alone; 0 is any free port. Raises OSError."""
    # Without the protocol asyncio does not recognise TCP, and each answer waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


async def serve(source: Source, tabs: Tabs, listening: socket.socket, announce: Callable[[str], None]) -> None:
    """Until a signal ends it. `announce` is told each URL to open."""
    port = listening.getsockname()[1]
    access = Access(lambda token: announce(f"http://{ADDRESS}:{port}/?{TOKEN}={token}"))
    config = uvicorn.Config(
        application(source, tabs, access),
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = BoundedServer(config)

    def end(_: signal.Signals) -> None:
        server.should_exit = True
        tabs.close()

    with ending_signals(end):
        access.open()
        await server.serve(sockets=[listening])
