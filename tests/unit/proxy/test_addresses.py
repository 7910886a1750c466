"""The addresses that a proxy gives: where agents reach its sessions, and where trainers reach its tensors."""

from pathlib import Path

import pytest

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.settings import SettingsInForce

OWN, SERVICE, PUBLIC = "http://127.0.0.1:8080", "http://demo.ns.svc", "https://fleet.example"


@pytest.mark.parametrize(
    ("public", "service", "replicas", "agents", "trainers"),
    [
        (None, None, 3, OWN, OWN),
        (None, SERVICE, 3, SERVICE, OWN),
        (None, SERVICE, 1, OWN, OWN),
        (PUBLIC, SERVICE, 3, PUBLIC, PUBLIC),
    ],
    ids=["own", "the Service's", "alone", "public"],
)
def test_agents_are_given_an_address_that_proxies_share_where_there_is_one(
    tmp_path: Path, public: str | None, service: str | None, replicas: int, agents: str, trainers: str
) -> None:
    settings = ProxySettings(
        fleet="demo",
        model="none",
        state_dir=tmp_path,
        gateway_url="http://127.0.0.1:9",
        public_url=public,
        service_url=service,
        replicas=replicas,
    )
    given = SettingsInForce(settings)
    assert (given.session_address, given.public_address) == (agents, trainers)
