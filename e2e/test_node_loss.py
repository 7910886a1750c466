"""A node is gone, with a proxy on it, and comes back."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from e2e import agents, faults
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.records import Record
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

HOST: Final = "kubernetes.io/hostname"
WAYS: Final = {"power": faults.lost, "frozen": faults.frozen}


@pytest.fixture
def nodes(cluster: Kubectl) -> Iterator[tuple[str, str]]:
    """The worker that stays, and the one that goes; whatever comes of it, both are there for the next test."""
    workers = cluster.get("nodes", "--selector", "!node-role.kubernetes.io/control-plane")["items"]
    stays, goes = [worker["metadata"]["name"] for worker in workers][:2]
    yield stays, goes
    cluster("wait", "node", stays, goes, "--for=condition=Ready", "--timeout=180s", seconds=190)


@pytest.mark.parametrize("how", ["power", pytest.param("frozen", marks=pytest.mark.full)])
def test_a_lost_node_is_named_and_the_fleet_heals_when_it_is_back(
    operator: Operator, record: Record, namespace: Kubectl, images: Images, nodes: tuple[str, str], how: str
) -> None:
    stays, goes = nodes
    here = {HOST: stays}
    operator.install("--reuse-values", "--set-string", f"nodeSelector.{HOST.replace('.', chr(92) + '.')}={stays}")
    spec = {"gateway": {"nodeSelector": here}, "engine": {"podTemplate": {"spec": {"nodeSelector": here}}}}
    fleet = Fleet(namespace, images, spec=spec).make()
    away = [name for name, pod in fleet.proxies().items() if pod["spec"]["nodeName"] == goes]
    assert len(away) == 1, "proxies are spread over nodes"
    there = uids(fleet)
    before = agents.run(namespace, "agents.py", "6", "4", fleet=fleet.name, image=images.proxy)["answered"]

    with WAYS[how](record, goes):
        fleet.until("the lost node is named", lambda: fleet.problems().get(away[0]) == "NodeLost")
        ready = fleet.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NodeLost")
        assert away[0] in ready["message"]
        meanwhile = agents.run(namespace, "agents.py", "4", "4", fleet=fleet.name, image=images.proxy)["answered"]
        assert uids(fleet) == there, "a pod was deleted whose node may come back, or one that has nothing to do with it"
    fleet.until_ready()

    assert fleet.problems() == {}
    assert uids(fleet) == there
    kept = {session: sorted(turns) for session, turns in fleet.export(2).items()}
    assert kept == {session: sorted(turns) for session, turns in (before | meanwhile).items()}


def uids(fleet: Fleet) -> dict[str, Any]:
    """Of all its pods, none of which is on its way out."""
    pods = fleet.namespace.get("pods", f"--selector=rolloutfleet.dev/fleet={fleet.name}")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if not _ends(pod)}


def _ends(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]
