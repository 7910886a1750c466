"""One bare API server for all tests here; each test has a namespace of its own."""

import itertools
from collections.abc import Iterator

import pytest
from tests.cluster.apiserver import ApiServer, running

from rolloutfleet_operator import crd


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as server:
        server.define(crd.definition())
        yield server


_NUMBERS = itertools.count(1)


@pytest.fixture
def namespace(apiserver: ApiServer) -> Iterator[str]:
    """Its fleets go with the test: an operator of the whole cluster would take them over."""
    name = f"test-{next(_NUMBERS)}"
    apiserver.kubectl("create", "namespace", name)
    yield name
    apiserver.kubectl("-n", name, "delete", "rolloutfleets", "--all", "--wait=false")
