"""What a whole cluster goes through: no API server for a minute, a node drained for its upkeep."""

import time
from collections.abc import Iterator
from typing import Final

import pytest
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import faults
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = [pytest.mark.alone, pytest.mark.full, pytest.mark.timeout(900)]

HOST: Final = "kubernetes.io/hostname"
MINUTE: Final = 60.0
PATIENT: Final = 10
"""`max_retries` of agents whose proxy's pod is gone for half a minute."""


def test_a_minute_without_an_api_server_is_not_noticed_by_agents_and_restarts_nobody_twice(
    operator: Operator, record: Record, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    before, uids = {pod: len(fleet.boots(pod)) for pod in fleet.proxies()}, fleet.uids()
    with fleet.traffic() as traffic:
        fleet.patch({"restart": {"id": "one"}})
        fleet.until("a restart is under way", lambda: fleet.status()["restarts"]["last"])
        with faults.no_api_server(record, namespace):
            time.sleep(MINUTE)
        fleet.until("the restart is answered", lambda: fleet.status()["restart"].get("observedID") == "one")
        fleet.until_ready()
        fleet.patch({"sessions": {"staleAfter": "2h"}})
        fleet.until_ready()
        fleet.until("settings are in force", lambda: fleet.condition("SettingsInForce")["status"] == "True")
    assert fleet.uids() == uids
    assert {pod: len(fleet.boots(pod)) - before[pod] for pod in before} == dict.fromkeys(before, 1)
    assert fleet.status()["restarts"]["requested"] == 2
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


@pytest.fixture
def drained(cluster: Kubectl) -> Iterator[str]:
    """The worker that is to be drained; whatever comes of it, it takes pods again."""
    workers = cluster.get("nodes", "--selector", "!node-role.kubernetes.io/control-plane")["items"]
    name: str = workers[-1]["metadata"]["name"]
    yield name
    cluster("uncordon", name)


def test_a_drained_nodes_proxy_waits_for_its_volume_and_is_back_with_it(
    operator: Operator, cluster: Kubectl, namespace: Kubectl, images: Images, drained: str
) -> None:
    fleet = Fleet(namespace, images).make()
    uids = fleet.uids()
    away = [name for name, pod in fleet.proxies().items() if pod["spec"]["nodeName"] == drained]
    assert len(away) == 1, "proxies are spread over nodes"
    cluster("cordon", drained)  # the agents begin elsewhere
    with fleet.traffic(retries=PATIENT) as traffic:
        cluster("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", seconds=130)
        fleet.until("it is said why that proxy is down", lambda: fleet.problems().get(away[0]) == "Unschedulable")
        cluster("uncordon", drained)
        fleet.until_ready()
    assert fleet.proxies()[away[0]]["spec"]["nodeName"] == drained, "its volume is there"
    assert {name: uid for name, uid in fleet.uids().items() if name not in away} == {
        name: uid for name, uid in uids.items() if name not in away
    }
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}
