"""One small fleet that most tests share; a test that breaks proxies, or has other settings, starts its own beside."""

from collections.abc import Iterator

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def patient_clients() -> Iterator[None]:
    """Where no test says how long to wait for an answer, `httpx` would wait for 5 s."""
    with pytest.MonkeyPatch.context() as patched:
        for kind in ("connect", "read", "write", "pool"):
            patched.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, kind, PATIENCE)
        yield


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
