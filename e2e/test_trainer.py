"""A trainer in the cluster, with the project's own library."""

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = pytest.mark.full


def test_it_finds_the_fleet_by_name_and_follows_its_scaling(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images, spec={"proxies": {"replicas": 1}}).make()
    job = agents.start(namespace, "trainer.py", "1", fleet=fleet.name, image=images.proxy, knows_namespace=True)
    fleet.until("it is under way", lambda: "begun" in fleet.log(job))
    fleet.patch({"proxies": {"replicas": 2}})
    said = agents.finish(namespace, job, seconds=240)
    assert {name[:3] for name in said["answered"]} == {"s0-", "s1-"}
    assert said["exported"] == said["answered"]
    assert said["version"] == 7
    assert said["audit"] == {"balanced": True, "live": 0, "leased": 0}
