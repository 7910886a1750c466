"""Engines for tests, and a client of each."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.engine.asking import Asker, weather_prompt
from tests.unit.engine.serving import engine_here

from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.model import Model, model_path
from rolloutfleet_engine.options import EngineOptions


@pytest.fixture(scope="session")
def model() -> Model:
    return Model(model_path())


@pytest.fixture(scope="session")
def prompt(model: Model) -> list[int]:
    return weather_prompt(model)


@pytest.fixture
async def engine() -> AsyncIterator[Callable[..., Asker]]:
    """Starts an engine with these options on the test's loop and gives a client of it; both end with the test."""
    ports = itertools.count(30_000)
    starts: list[asyncio.Task[Any]] = []
    askers: list[Asker] = []
    async with AsyncExitStack() as stack:

        def starting(*, faults: list[Fault] | None = None, **options: Any) -> Asker:
            port = next(ports)
            running = engine_here(EngineOptions(**options), faults=faults or [], port=port)
            # Begun before whatever the test asks of it.
            starts.append(asyncio.ensure_future(stack.enter_async_context(running)))
            askers.append(Asker(f"http://127.0.0.1:{port}"))
            return askers[-1]

        yield starting
        await asyncio.gather(*starts)
        for asker in askers:
            await asker.http.aclose()
