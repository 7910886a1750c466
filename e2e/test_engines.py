"""Engines and the gateway come and go: the gateway soon knows the engines that there are, and no other."""

import json
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = pytest.mark.full
KNOWN_WITHIN = 30
"""Seconds from a new engine's being ready to the gateway's being right."""
_ASK = "import httpx; print(httpx.get('http://demo-gateway:30000/workers').text)"


@pytest.fixture
def fleet(namespace: Kubectl, images: Images, operator: Operator) -> Fleet:
    spec = {"proxies": {"replicas": 1}, "engine": {"replicas": 2}, "memory": {"interval": "5s"}}
    return Fleet(namespace, images, spec=spec).make()


def pods(fleet: Fleet, component: str) -> list[dict[str, Any]]:
    chosen = f"--selector=rolloutfleet.dev/fleet=demo,app.kubernetes.io/component={component}"
    found: list[dict[str, Any]] = fleet.namespace.get("pods", chosen)["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def known(fleet: Fleet) -> dict[str, bool]:
    """What the gateway lists: whether each engine is healthy, by its address."""
    said = json.loads(fleet.namespace("exec", "demo-proxy-0", "--", "python", "-c", _ASK))
    return {worker["url"].rstrip("/"): worker["is_healthy"] for worker in said["workers"]}


def right(fleet: Fleet) -> bool:
    """The gateway lists the engines that there are, all healthy."""
    return known(fleet) == {f"http://{pod['status'].get('podIP')}:30000": True for pod in pods(fleet, "engine")}


def test_replaced_engines_are_known_and_the_old_ones_forgotten(fleet: Fleet) -> None:
    assert right(fleet)
    before = set(known(fleet))
    fleet.namespace("rollout", "restart", "deployment/demo-engine")
    fleet.namespace("rollout", "status", "deployment/demo-engine", "--timeout=120s", seconds=130)
    fleet.until("the gateway knows the new engines", lambda: right(fleet), seconds=KNOWN_WITHIN)
    assert not before & set(known(fleet))
    fleet.until_ready()


def test_an_engine_that_dies_is_replaced_in_the_gateway_too(fleet: Fleet) -> None:
    gone = pods(fleet, "engine")[0]["metadata"]["name"]
    fleet.namespace("delete", "pod", gone, "--grace-period=0", "--force")
    fleet.until("there are two engines", lambda: [ready(pod) for pod in pods(fleet, "engine")] == [True, True])
    fleet.until("the gateway is right", lambda: right(fleet), seconds=KNOWN_WITHIN)


def test_a_gateway_that_is_lost_comes_back_knowing_the_engines(fleet: Fleet) -> None:
    (gateway,) = pods(fleet, "gateway")
    fleet.namespace("delete", "pod", gateway["metadata"]["name"], "--wait=false")
    fleet.until(
        "the fleet says so, or is back", lambda: fleet.condition("GatewayReady")["status"] == "False", seconds=60
    )
    fleet.until_ready()
    fleet.until("the gateway is right", lambda: right(fleet), seconds=KNOWN_WITHIN)
