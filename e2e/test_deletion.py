"""Deleting needs no operator: garbage collection ends a fleet, whoever is up or down, and the data stays."""

import time

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e.fleets import Fleet
from e2e.installing import OPERATOR, Images, Operator

SLOWEST_END = 20 + 30 + 60
"""Seconds: the drain of these fleets, what the proxies' grace adds, and a minute."""
OF_THE_FLEET = "--selector=rolloutfleet.dev/fleet=demo"
KINDS = "pods,statefulsets,deployments,services,configmaps,poddisruptionbudgets"


@pytest.fixture
def fleet(namespace: Kubectl, images: Images, operator: Operator) -> Fleet:
    return Fleet(namespace, images).make()


def until_nothing_is_left(fleet: Fleet, began: float) -> None:
    def is_empty() -> bool:
        return not fleet.namespace.get(KINDS, OF_THE_FLEET)["items"]

    fleet.until("nothing of it is left", is_empty, seconds=SLOWEST_END - (time.monotonic() - began))
    assert fleet.namespace.find("secret", "demo-keys") is None


def claims(fleet: Fleet) -> set[str]:
    return {claim["metadata"]["name"] for claim in fleet.namespace.get("pvc")["items"]}


@pytest.mark.parametrize(
    "up", [pytest.param(True, marks=pytest.mark.full), False], ids=["operator up", "operator down"]
)
def test_a_fleet_ends_and_its_claims_stay(fleet: Fleet, up: bool) -> None:
    if not up:
        fleet.namespace("scale", OPERATOR, "--replicas=0")
        fleet.namespace(
            "wait", "pod", "--selector=app.kubernetes.io/component=operator", "--for=delete", "--timeout=180s"
        )
    before, began = claims(fleet), time.monotonic()
    fleet.namespace("delete", fleet.resource, "--timeout=30s")
    until_nothing_is_left(fleet, began)
    assert claims(fleet) == before == {"state-demo-proxy-0", "state-demo-proxy-1"}


@pytest.mark.full
def test_its_namespace_ends_with_all_of_it(fleet: Fleet) -> None:
    name = fleet.namespace.namespace
    assert name is not None
    fleet.namespace("delete", "namespace", name, f"--timeout={SLOWEST_END}s", seconds=SLOWEST_END + 10)
    assert fleet.namespace.find("namespace", name) is None
