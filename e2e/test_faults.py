"""What goes wrong on its own: the operator killed in the middle of a restart."""

from e2e import faults
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.records import Record
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

OPERATORS = "--selector=app.kubernetes.io/component=operator"


def test_an_operator_that_is_killed_restarts_no_proxy_twice(
    operator: Operator, record: Record, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    before = {pod: len(fleet.boots(pod)) for pod in fleet.proxies()}
    killed = namespace.get("pods", OPERATORS)["items"][0]["metadata"]["name"]

    with fleet.traffic() as traffic:
        fleet.patch({"restart": {"id": "one"}})
        fleet.until("a restart is under way", lambda: _under_way(fleet))
        faults.kill(record, namespace, killed)
        fleet.until("the restart is answered", lambda: fleet.status()["restart"].get("observedID") == "one")
        fleet.until_ready()

    restarts = namespace.get("pods", OPERATORS)["items"][0]["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 1
    assert {pod: len(fleet.boots(pod)) - before[pod] for pod in before} == dict.fromkeys(before, 1)
    assert fleet.status()["restarts"]["requested"] == 2
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _under_way(fleet: Fleet) -> bool:
    """Written down before it is begun, and not over."""
    return any(entry.get("after") is None for entry in fleet.status()["restarts"]["last"])
