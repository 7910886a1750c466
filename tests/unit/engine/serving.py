"""Simulated engines that are served on the loop of a test, by its clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.server import Server, create_engine
from rolloutfleet_engine.testing import RunningEngine


@asynccontextmanager
async def engine_here(
    options: EngineOptions | None = None, *, faults: Sequence[Fault] = (), port: int = 0
) -> AsyncIterator[RunningEngine]:
    """An engine on the running loop, until the block ends."""
    app = create_engine(options, faults=faults)
    ports: list[int] = []
    server = Server(app, host="127.0.0.1", port=port, ready=ports.append)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()  # and no `serve`, whose ticks are all that would happen while a test lets time pass
    try:
        yield RunningEngine(url=f"http://127.0.0.1:{ports[0]}", engine=app.engine)
    finally:
        await server.shutdown()
