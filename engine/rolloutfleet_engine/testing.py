"""A running engine for tests: a server in a thread of the test's own process."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import uvloop

from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.server import Server, create_engine

START_TIMEOUT = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningEngine:
    url: str
    engine: Engine
    """The engine itself, for looking; it lives in another thread, so ask for changes by HTTP."""


@contextmanager
def running_engine(
    options: EngineOptions | None = None, *, faults: Sequence[Fault] = (), port: int = 0
) -> Iterator[RunningEngine]:
    """An engine on a free port of 127.0.0.1, until the block ends."""
    app = create_engine(options, faults=faults)
    ports: SimpleQueue[int] = SimpleQueue()
    server = Server(app, host="127.0.0.1", port=port, ready=ports.put)
    thread = threading.Thread(target=lambda: uvloop.run(server.serve()), name="simulated-engine", daemon=True)
    thread.start()
    try:
        yield RunningEngine(url=f"http://127.0.0.1:{ports.get(timeout=START_TIMEOUT)}", engine=app.engine)
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT)
