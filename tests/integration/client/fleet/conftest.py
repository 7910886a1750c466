"""A fleet of two proxies for a trainer; tests that break proxies start their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleets import Fleet, running_fleet

from rolloutfleet.fleet import Fleet as Trainer
from rolloutfleet.fleet import Whereabouts


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("trainer"), proxies=2) as running:
        yield running


@pytest.fixture
def where(pair: Fleet) -> Whereabouts:
    """Known by one proxy's address alone."""
    return whereabouts(pair)


@pytest.fixture
def fleet(where: Whereabouts) -> Iterator[Trainer]:
    with Trainer(where, progress=False) as made:
        yield made


@pytest.fixture
def nothing_ready(fleet: Trainer) -> None:
    """Take what other tests of this fleet have left to train, for a test that exports whatever is ready."""
    with fleet.export() as export:
        list(export)


def whereabouts(fleet: Fleet, *, ordinal: int = 0) -> Whereabouts:
    return Whereabouts.from_url(fleet.proxies[ordinal].url, admin_key=fleet.proxy.key)


def key_file(fleet: Fleet) -> Path:
    return fleet.proxy.folder.parent / "admin.key"
