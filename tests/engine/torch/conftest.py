"""Tests that need PyTorch. Where it is missing they are not collected here: tests/engine/test_torch.py runs them."""

import importlib.util
import json
import os
from collections.abc import Iterator

import pytest
from tests.engine.torch.keepers import Keepers

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]

PROXIES = "ROLLOUTFLEET_TEST_PROXIES"


@pytest.fixture(scope="session")
def keepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keepers]:
    given = os.environ.get(PROXIES)
    if given:
        yield Keepers(**json.loads(given))
        return
    from tests.fleets import running_fleet

    with running_fleet(tmp_path_factory.mktemp("torch"), proxies=2) as fleet:
        yield Keepers([proxy.url for proxy in fleet.proxies], fleet.proxy.key)
