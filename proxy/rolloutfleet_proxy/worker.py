"""The process that serves: `python -m rolloutfleet_proxy.worker FD ...`, started by the parent, FD its channel.

It reads the settings, imports and loads everything, says that it is warm, and waits; told so, it opens the store and
accepts. It ends when the parent does.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # What imports make stays, so there is nothing to look for until all is loaded (`collector.spare`).

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import uvicorn

from rolloutfleet.http_serving import BoundedServer
from rolloutfleet.settings import ProxySettings
from rolloutfleet.wire import DrainThen
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.app import MISTAKES, ProxyApp, create_app
from rolloutfleet_proxy.domain.errors import DamageFound
from rolloutfleet_proxy.http.accepting import Accepting
from rolloutfleet_proxy.http.connections import Connections, for_clients
from rolloutfleet_proxy.http.protocol import HttpProtocol
from rolloutfleet_proxy.process import allocator, collector, resident
from rolloutfleet_proxy.process.channel import Channel
from rolloutfleet_proxy.process.decisions import DAMAGED, UNUSABLE
from rolloutfleet_proxy.process.supervisor import NOT_FOR_WORKERS
from rolloutfleet_proxy.reloading import take
from rolloutfleet_proxy.services.dumps import RETIRING
from rolloutfleet_proxy.settings import BadSettings, SettingsSource
from rolloutfleet_proxy.store.boots import Crash
from rolloutfleet_proxy.store.database import StoreDamaged
from rolloutfleet_proxy.telemetry import events, logger
from rolloutfleet_proxy.telemetry.log_setup import set_up
from rolloutfleet_proxy.wiring import Start, prepare

CUT_GRACE = 5
"""Seconds in which those who wait for a call that was cut are told so."""
CLOSING = 3.0
"""Seconds for the store and all else to close."""
KEEP_ALIVE = 75
"""Seconds that an idle connection is kept."""

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where a container says why it ended, for `kubectl describe pod` and the operator."""
LONGEST_MESSAGE = 3000
"""Characters; Kubernetes keeps 4,096 bytes."""

_PR_SET_PDEATHSIG = 1


class ParentProcess:
    """The other end of the channel, for the proxy's drains."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._successor: bool | str = False
        self.server: _Server | None = None

    def ends_in(self, then: DrainThen) -> None:
        self._successor = False
        self._channel.send({"then": then})

    def successor(self) -> bool | str:
        return self._successor

    def end(self) -> None:
        assert self.server is not None
        self._channel.send({"ending": True})
        self.server.should_exit = True

    def listening(self, settings: ProxySettings) -> list[socket.socket]:
        """The listening sockets, which the parent opens and keeps."""
        asked = {
            "host": settings.host,
            "port": settings.port,
            "ephemeral": settings.ephemeral,
            "timeout": settings.drain_timeout + CUT_GRACE + CLOSING + (RETIRING if settings.ephemeral else 0),
            "log": {"ordinal": settings.ordinal, "json": settings.log.format == "json", "level": settings.log.level},
        }
        message, descriptors = self._ask({"listen": asked})
        if "refused" in message:
            print(f"rolloutfleet-proxy: {message['refused']}", file=sys.stderr)
            sys.exit(1)
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def wait_to_open(self) -> Crash | None:
        """Say that everything is ready, and wait for leave to open the store."""
        message, _ = self._ask({"warm": True})
        crash = message["open"]
        return Crash(how=crash["crash"], peak_rss=crash["peak_rss"]) if crash else None

    def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """What the parent answers, and the sockets with it; without a parent the process ends."""
        self._channel.send(message)
        messages, descriptors = self._channel.receive()
        if not messages:
            sys.exit(1)
        return messages[0], descriptors

    def serve(self) -> None:
        """Say that connections are accepted, and hear the parent from now on."""
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._hear)
        self._channel.send({"serving": True})

    def _hear(self) -> None:
        messages, _ = self._channel.receive()
        if self._channel.closed:
            # Whoever starts the next proxy must find the store free; what is committed stays.
            logger.error("the parent process is gone: ending at once")
            events.sink().flush(timeout=0.5)
            os._exit(1)
        for message in messages:
            if "successor" in message:
                state = message["successor"]
                self._successor = state == "warm" or str(state)
            elif "quiesce" in message and self.server is not None:
                self.server.quiesce(message["quiesce"])


class _Server(BoundedServer):
    """Accepts on the parent's sockets, and ends when the proxy's drain says so."""

    def __init__(self, config: uvicorn.Config, app: ProxyApp, parent: ParentProcess) -> None:
        super().__init__(config)
        self._app = app
        self._parent = parent
        self._connections = Connections(refused=self._note_refused)

    def quiesce(self, why: str) -> None:
        if self._app.opened is None:
            os._exit(0)
        self._app.opened.services.drains.stop(why)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._accepting = Accepting(
            sockets or [],
            self._protocol,
            make_room=self._connections.make_room,
            short_from=sys.maxsize if most == resource.RLIM_INFINITY else for_clients(most),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.quiesce, "SIGTERM")
        self._parent.serve()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # From here on what connects waits in the backlog, so those who are told to come again find the next worker.
        self._accepting.close()
        assert self._app.opened is not None
        self._app.opened.services.drains.refuse_all()
        # Whoever is still sending a body is told to come again, rather than cancelled without a word.
        asyncio.get_running_loop().call_later(LAST_BODIES, self._app.opened.under_way.cut)
        # Whoever has just connected is about to ask, and would take a closed connection for an error.
        await asyncio.sleep(LINGER)
        await super().shutdown(sockets)

    def look(self) -> None:
        self._connections.look()

    def _protocol(self) -> asyncio.Protocol:
        return HttpProtocol(
            self.config, self.server_state, app_state=self.lifespan.state, connections=self._connections
        )

    def _note_refused(self, code: str) -> None:
        if self._app.opened is not None:
            self._app.opened.services.metrics.refused.labels(code).inc()


LINGER = 0.1
"""Seconds in which connections that were accepted last are still answered."""
LAST_BODIES = 2.0
"""Seconds in which bodies of requests that were accepted last come to their end; well within `CUT_GRACE`."""


def main() -> None:
    """Serve until told to end. Exits with 2 where the settings or the store can't be used, with 3 where the store is
    damaged."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_WORKERS)
    _end_with(os.getppid())
    parent = ParentProcess(Channel(socket.socket(fileno=int(sys.argv[1]))))
    try:
        source = SettingsSource(sys.argv[2:])
        settings = source.read().settings
        log = set_up(format=settings.log.format, level=settings.log.level, ordinal=settings.ordinal)
        allocator.settle(settings.allocator)
        sockets = parent.listening(settings)
        chat_format = prepare(settings)
    except (BadSettings, *MISTAKES) as error:
        _say_and_exit(error)
    app = create_app(settings, source)
    server = _server(app, parent)
    collector.spare()
    app.start = Start(host=parent, chat_format=chat_format, crash=parent.wait_to_open())
    app.settings = _since(settings, source)
    try:
        server.run(sockets)
    except SystemExit:
        if app.mistake is None:
            raise
    finally:
        log.close()
    if app.mistake is not None:
        _say_and_exit(app.mistake)
    os._exit(0 if server.started else 1)  # Taking a large process apart piece by piece would keep the next one waiting.


def _since(settings: ProxySettings, source: SettingsSource) -> ProxySettings:
    """With what can change while a proxy runs as it is by now: a next worker may have been waiting for long."""
    try:
        return take(settings, source.read()).current
    except BadSettings:
        return settings


def _server(app: ProxyApp, parent: ParentProcess) -> _Server:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        # Its lines go the way of all others.
        log_config=None,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE,
        # Nothing here reads the caller's address, and each header costs every call.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=CUT_GRACE,
    )
    config.load()
    # What a user can mend is said in a line, and needs no traceback.
    logging.getLogger("uvicorn.error").addFilter(lambda record: app.mistake is None)
    parent.server = server = _Server(config, app, parent)
    return server


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where the kernel can; elsewhere the channel tells it."""
    resident.belong_to(parent)
    failpoints.companions.append(parent)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _say_and_exit(error: Exception) -> NoReturn:
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE], encoding="utf-8")
    for line in str(error).splitlines():
        print(f"rolloutfleet-proxy: {line}", file=sys.stderr)
    sys.exit(DAMAGED if isinstance(error, (StoreDamaged, DamageFound)) else UNUSABLE)


if __name__ == "__main__":
    main()
