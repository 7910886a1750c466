"""What a whole cluster goes through: no API server for a minute, a node drained for its upkeep."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kind import SHARED
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import faults
from e2e.fleets import Fleet
from e2e.installing import Images, Operator
from rolloutfleet_operator.cluster.children.names import COMPONENT, FLEET_LABEL

pytestmark = [pytest.mark.alone, pytest.mark.full, pytest.mark.timeout(900)]

MINUTE: Final = 60.0


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
        fleet.until("the restart is answered", lambda: fleet.has_restarted("one"))
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


def test_a_drain_takes_a_node_local_proxy_under_maintenance_alone(
    release: Operator, cluster: Kubectl, namespace: Kubectl, images: Images, drained: str
) -> None:
    release.install()  # of one namespace it may not look at volumes
    fleet = Fleet(namespace, images).make()
    uids = fleet.uids()
    away = fleet.proxy_on(drained)
    fleet.until("no proxy may be evicted", lambda: _evictable(namespace) == 0)
    cluster("cordon", drained)  # the agents begin elsewhere
    with fleet.traffic() as traffic:
        fleet.until("the cordoned node is named", lambda: fleet.problems().get(away) == "NodeCordoned")
        proxies = f"--pod-selector={FLEET_LABEL}=demo,{COMPONENT}=proxy"
        drain = ("drain", drained, proxies, "--ignore-daemonsets", "--delete-emptydir-data")
        with pytest.raises(CommandFailed, match="disruption budget"):
            cluster(*drain, "--timeout=15s", seconds=30)
        assert fleet.is_ready() and fleet.uids() == uids
        fleet.patch({"disruption": {"maintenance": True}})
        cluster(*drain, "--timeout=120s", seconds=130)
        fleet.until("it is said why that proxy is down", lambda: fleet.problems().get(away) == "Unschedulable")
        cluster("uncordon", drained)
        fleet.until_ready()
    assert fleet.proxies()[away]["spec"]["nodeName"] == drained, "its volume is there"
    assert {name: uid for name, uid in fleet.uids().items() if name != away} == {
        name: uid for name, uid in uids.items() if name != away
    }
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


@pytest.fixture
def network_volumes(record: Record, cluster: Kubectl, namespace: Kubectl) -> Iterator[str]:
    """The class of two volumes that every node reaches."""
    storage_class = str(namespace.namespace)
    names = [f"{storage_class}-{number}" for number in range(2)]
    for name in names:
        # The kubelet makes no such folder its pod's own.
        (record.shared / name).mkdir(parents=True, mode=0o777)
        (record.shared / name).chmod(0o777)
        cluster("create", "--filename", "-", stdin=json.dumps(_network_volume(name, storage_class)))
    yield storage_class
    namespace("delete", "rolloutfleet", "--all", "--ignore-not-found")
    cluster("delete", "persistentvolume", *names, "--wait=false")


def _network_volume(name: str, storage_class: str) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"{SHARED}/{name}"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def test_a_drain_takes_a_proxy_whose_volume_other_nodes_reach_and_agents_notice_nothing(
    release: Operator, cluster: Kubectl, namespace: Kubectl, images: Images, drained: str, network_volumes: str
) -> None:
    release.install()
    storage = {"size": "1Gi", "className": network_volumes}
    fleet = Fleet(namespace, images, spec={"proxies": {"storage": storage}, "engine": {"replicas": 2}}).make()
    away = fleet.proxy_on(drained)
    cluster("cordon", drained)  # the agents begin elsewhere
    with fleet.traffic(number=6) as traffic:
        cluster("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s", seconds=250)
        fleet.until("it is elsewhere", lambda: _node_of(fleet, away) not in (None, drained))
        fleet.until_ready()
        assert "NodeCordoned" not in fleet.reasons()
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _node_of(fleet: Fleet, pod: str) -> str | None:
    found = fleet.proxies().get(pod)
    return None if found is None else found["spec"].get("nodeName")


def _evictable(namespace: Kubectl) -> int:
    found: int = namespace.get("poddisruptionbudget", "demo-proxy")["status"].get("disruptionsAllowed", -1)
    return found
