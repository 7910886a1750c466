"""What all integration tests share."""

from collections.abc import Iterator

import httpx
import pytest
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def patient_clients() -> Iterator[None]:
    """Where no test says how long to wait for an answer, `httpx` would wait for 5 s."""
    with pytest.MonkeyPatch.context() as patched:
        for kind in ("connect", "read", "write", "pool"):
            patched.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, kind, PATIENCE)
        yield
