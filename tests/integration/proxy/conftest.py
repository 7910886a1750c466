"""One small fleet that most tests share; a test that breaks proxies, or has other settings, starts its own beside."""

from collections.abc import Iterator

import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Of which others' proxies may use engine and gateway."""
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="session")
def fleet(shared: Fleet) -> Fleet:
    return shared


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[ProxyProcess]:
    yield fleet.proxy
    fleet.engine.clear_faults()
