"""One small fleet that most capture tests share; a test that breaks things starts its own."""

from collections.abc import Iterator

import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[ProxyProcess]:
    yield fleet.proxy
    fleet.engine.clear_faults()
