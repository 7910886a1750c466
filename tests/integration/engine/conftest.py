"""Engines on ports, served by uvloop in threads as the command serves them, and clients of whatever has a URL."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.unit.engine.asking import Asker, weather_prompt

from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.model import Model, model_path
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    return weather_prompt(Model(model_path()))


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Asker]]:
    """A client for a URL, closed when the test ends."""
    askers: list[Asker] = []

    def connecting(url: str) -> Asker:
        askers.append(Asker(url))
        return askers[-1]

    yield connecting
    for asker in askers:
        await asker.http.aclose()


@pytest.fixture
def engine(connect: Callable[[str], Asker]) -> Iterator[Callable[..., Asker]]:
    """Starts an engine with these options and gives a client of it; all are stopped when the test ends."""
    with ExitStack() as stack:

        def starting(*, faults: list[Fault] | None = None, **options: object) -> Asker:
            running = running_engine(EngineOptions(**options), faults=faults or [])  # type: ignore[arg-type]
            return connect(stack.enter_context(running).url)

        yield starting
