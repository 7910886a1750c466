"""A node is gone, with a proxy on it, and comes back."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import agents, faults
from e2e.fleets import Fleet, not_terminating
from e2e.installing import Images, Operator

pytestmark = [pytest.mark.alone, pytest.mark.full, pytest.mark.timeout(900)]

HOST: Final = "kubernetes.io/hostname"
WAYS: Final = {"power": faults.lost, "frozen": faults.frozen}
WITHIN: Final = 60
"""Seconds from a node's loss to the last error of a session that has nothing to do with it."""
SOON_GIVEN_UP: Final = {
    "key": "node.kubernetes.io/unreachable",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": 5,
}
"""Kubernetes deletes the pods of a lost node after five minutes; of these it does so at once."""


@pytest.fixture
def nodes(cluster: Kubectl) -> Iterator[tuple[str, str]]:
    """The worker that stays, and the one that goes; whatever comes of it, both are there for the next test."""
    workers = cluster.get("nodes", "--selector", "!node-role.kubernetes.io/control-plane")["items"]
    stays, goes = [worker["metadata"]["name"] for worker in workers][:2]
    yield stays, goes
    cluster("wait", "node", stays, goes, "--for=condition=Ready", "--timeout=180s", seconds=190)


@pytest.mark.parametrize("how", ["power", "frozen"])
def test_a_lost_node_is_named_and_the_fleet_heals_when_it_is_back(
    operator: Operator, record: Record, namespace: Kubectl, images: Images, nodes: tuple[str, str], how: str
) -> None:
    stays, goes = nodes
    fleet = spread_over(operator, Fleet(namespace, images), stays)
    away, there = fleet.proxy_on(goes), uids(fleet)
    before = serve(fleet, 6)

    with WAYS[how](record, goes):
        until_named(fleet, away)
        meanwhile = serve(fleet, 4)
        assert uids(fleet) == there, "a pod was deleted whose node may come back, or one that has nothing to do with it"
    fleet.until_ready()

    assert fleet.problems() == {}
    assert lost_proxies(fleet) == []
    assert uids(fleet) == there
    assert kept(fleet) == in_order(before | meanwhile)


def test_a_proxy_that_kubernetes_gave_up_with_its_node_is_made_anew_where_its_volume_is(
    operator: Operator, record: Record, namespace: Kubectl, images: Images, nodes: tuple[str, str]
) -> None:
    stays, goes = nodes
    spec = {"proxies": {"tolerations": [SOON_GIVEN_UP]}}
    fleet = spread_over(operator, Fleet(namespace, images, spec=spec), stays)
    away, there = fleet.proxy_on(goes), uids(fleet)
    before = serve(fleet, 6)

    with faults.lost(record, goes):
        fleet.until("Kubernetes gives the pod up", lambda: away not in uids(fleet))
        until_named(fleet, away)
        meanwhile = serve(fleet, 4)
        assert fleet.uids()[away] == there[away], "nobody starts a second owner of that store"
    fleet.until("there is another pod", lambda: uids(fleet).get(away) not in (None, there[away]))
    fleet.until_ready()

    assert fleet.problems() == {}
    assert lost_proxies(fleet) == []
    assert {name: uid for name, uid in uids(fleet).items() if name != away} == {
        name: uid for name, uid in there.items() if name != away
    }
    assert kept(fleet) == in_order(before | meanwhile)


def test_agents_of_other_proxies_go_on_within_a_minute(
    operator: Operator, record: Record, namespace: Kubectl, images: Images, nodes: tuple[str, str]
) -> None:
    """With the node go the operator that acts, a gateway, an engine and a proxy."""
    operator.install("--reset-then-reuse-values", "--set", "replicas=2")
    fleet = Fleet(namespace, images, spec={"gateway": {"replicas": 2}, "engine": {"replicas": 2}}).make()
    goes = node_of_the_operator(fleet, nodes)
    assert {"proxy", "gateway", "engine"} <= components_on(fleet, goes)
    (stays,) = set(nodes) - {goes}
    away = fleet.proxy_on(goes)

    with fleet.traffic(number=12, node=stays) as traffic, faults.lost(record, goes):
        lost_at = time.time()
        until_named(fleet, away)
        fleet.until("agents have gone on for a while", lambda: time.time() > lost_at + WITHIN + 60)
    fleet.until_ready()

    late = [error for error, at in zip(traffic.errors, traffic.at, strict=True) if at > lost_at + WITHIN]
    of_the_lost = f"s{away.rpartition('-')[2]}-"
    assert [error for error in late if not error.startswith(of_the_lost)] == []
    assert len(traffic.answered) > 12
    assert traffic.lost(fleet.export(2)) == {}


def node_of_the_operator(fleet: Fleet, nodes: tuple[str, str]) -> str:
    """The node of the one that acts."""
    (lease,) = (each for each in fleet.namespace.get("leases")["items"] if "rolloutfleet" in each["metadata"]["name"])
    pods = fleet.namespace.get("pods", "--selector=app.kubernetes.io/name=rolloutfleet-operator")["items"]
    holder = lease["spec"]["holderIdentity"]
    (node,) = (pod["spec"]["nodeName"] for pod in pods if holder.startswith(pod["metadata"]["name"]))
    assert node in nodes and {pod["spec"]["nodeName"] for pod in pods} == set(nodes)
    return str(node)


def components_on(fleet: Fleet, node: str) -> set[str]:
    pods = fleet.namespace.get("pods", f"--selector=rolloutfleet.dev/fleet={fleet.name}")["items"]
    return {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods if pod["spec"]["nodeName"] == node}


def spread_over(operator: Operator, fleet: Fleet, stays: str) -> Fleet:
    """The fleet made, with a proxy on each worker and all else, the operator too, on the one that stays."""
    here = {HOST: stays}
    operator.install(
        "--reset-then-reuse-values", "--set-string", f"nodeSelector.{HOST.replace('.', chr(92) + '.')}={stays}"
    )
    elsewhere = {"gateway": {"nodeSelector": here}, "engine": {"podTemplate": {"spec": {"nodeSelector": here}}}}
    return Fleet(fleet.namespace, fleet.images, spec={**fleet.spec, **elsewhere}).make()


def until_named(fleet: Fleet, pod: str) -> None:
    fleet.until("the lost node is named", lambda: fleet.problems().get(pod) == "NodeLost")
    ready = fleet.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NodeLost")
    assert pod in ready["message"]
    fleet.until("the others are told", lambda: lost_proxies(fleet) == [int(pod.rpartition("-")[2])])


def lost_proxies(fleet: Fleet) -> list[int]:
    """As the settings of its proxies name them."""
    told = json.loads(fleet.namespace.get("configmap", f"{fleet.name}-settings")["data"]["settings.json"])
    lost: list[int] = told.get("lost_proxies", [])
    return lost


def serve(fleet: Fleet, sessions: int) -> dict[str, list[str]]:
    """New sessions, with what their agents saw answered."""
    said = agents.run(fleet.namespace, "agents.py", str(sessions), "4", fleet=fleet.name, image=fleet.images.proxy)
    answered: dict[str, list[str]] = said["answered"]
    return answered


def kept(fleet: Fleet) -> dict[str, list[str]]:
    return in_order(fleet.export(2))


def in_order(turns: dict[str, list[str]]) -> dict[str, list[str]]:
    return {session: sorted(found) for session, found in turns.items()}


def uids(fleet: Fleet) -> dict[str, Any]:
    """Of all its pods that are not on their way out."""
    pods = fleet.namespace.get("pods", f"--selector=rolloutfleet.dev/fleet={fleet.name}")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in not_terminating(pods)}
