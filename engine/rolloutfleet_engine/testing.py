"""A running engine for tests: a server in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop

from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.server import create_engine, create_server

START_TIMEOUT = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningEngine:
    url: str
    engine: Engine
    """The engine itself, for looking; it lives in another thread, so ask for changes by HTTP."""


@contextmanager
def running_engine(
    options: EngineOptions | None = None, *, faults: list[Fault] | None = None, port: int = 0
) -> Iterator[RunningEngine]:
    """An engine on a free port of 127.0.0.1, until the block ends."""
    app = create_engine(options, faults=faults)
    server = create_server(app, port=port)
    started = threading.Event()

    async def serve() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.002)
        started.set()
        await serving

    thread = threading.Thread(target=lambda: uvloop.run(serve()), name="simulated-engine", daemon=True)
    thread.start()
    try:
        if not started.wait(START_TIMEOUT) or not server.started:
            raise RuntimeError("the simulated engine did not start")
        number = server.servers[0].sockets[0].getsockname()[1]
        yield RunningEngine(url=f"http://127.0.0.1:{number}", engine=app.engine)
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT)
