"""Engines and the gateway come and go: the gateway soon knows the engines that there are, and no other."""

import json
import time
from typing import Any

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.fleets import Fleet, not_terminating
from e2e.installing import Images, Operator

pytestmark = pytest.mark.full
KNOWN_WITHIN = 30
"""Seconds from a new engine's being ready to the gateway's being right."""
FORGOTTEN_WITHIN = 120
"""Seconds from an engine's end to its being no longer listed by a gateway that no operator tells."""
ENDS_WITHIN = 40
"""Seconds to the end of a gateway with nothing under way, on a loaded machine; calls under way would have 60."""
ENGINE_KEY = "an-engine-key-for-tests-alone"
_POST = """\
import httpx, sys
print(httpx.post(sys.argv[1], json={"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}).status_code)
"""
_ASK = """\
import httpx, pathlib
key = pathlib.Path("/etc/rolloutfleet/control-key/control-key").read_text().strip()
try:
    print(httpx.get("http://demo-gateway:30000/workers", headers={"authorization": f"Bearer {key}"}).text)
except httpx.TransportError:
    print('{"workers": []}')
"""


@pytest.fixture
def fleet(namespace: Kubectl, images: Images, operator: Operator) -> Fleet:
    spec = {"proxies": {"replicas": 1}, "engine": {"replicas": 2}, "memory": {"interval": "5s"}}
    return Fleet(namespace, images, spec=spec).make()


@pytest.fixture
def keyed(namespace: Kubectl, images: Images, operator: Operator) -> Fleet:
    """Its engines ask for a key."""
    namespace("create", "secret", "generic", "engine-key", f"--from-literal=api-key={ENGINE_KEY}")
    spec = {
        "proxies": {"replicas": 1},
        "engine": {"replicas": 2},
        "memory": {"interval": "5s"},
        "gateway": {"apiKeySecret": "engine-key"},
    }
    return Fleet(namespace, images, spec=spec).make()


def pods(fleet: Fleet, component: str) -> list[dict[str, Any]]:
    chosen = f"--selector=rolloutfleet.dev/fleet=demo,app.kubernetes.io/component={component}"
    return not_terminating(fleet.namespace.get("pods", chosen)["items"])


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def known(fleet: Fleet) -> dict[str, bool]:
    """What the gateway lists, which is nothing while it does not answer: whether each engine is healthy, by address."""
    said = json.loads(fleet.namespace("exec", "demo-proxy-0", "--", "python", "-c", _ASK))
    return {worker["url"].rstrip("/"): worker["is_healthy"] for worker in said["workers"]}


def right(fleet: Fleet) -> bool:
    """The gateway lists the engines that there are, all healthy."""
    return known(fleet) == {f"http://{pod['status'].get('podIP')}:30000": True for pod in pods(fleet, "engine")}


def test_replaced_engines_are_known_and_the_old_ones_forgotten(fleet: Fleet) -> None:
    assert right(fleet)
    before = set(known(fleet))
    fleet.namespace("rollout", "restart", "deployment/demo-engine")
    fleet.namespace("rollout", "status", "deployment/demo-engine", "--timeout=240s", seconds=250)
    fleet.until("the gateway knows the new engines", lambda: right(fleet), seconds=KNOWN_WITHIN)
    assert not before & set(known(fleet))
    fleet.until_ready()


def test_an_engine_that_dies_is_replaced_in_the_gateway_too(fleet: Fleet) -> None:
    gone = pods(fleet, "engine")[0]["metadata"]["name"]
    fleet.namespace("delete", "pod", gone, "--grace-period=0", "--force")
    fleet.until("there are two engines", lambda: [ready(pod) for pod in pods(fleet, "engine")] == [True, True])
    fleet.until("the gateway is right", lambda: right(fleet), seconds=KNOWN_WITHIN)


def test_a_gateway_that_is_lost_while_there_is_no_operator_comes_back_knowing_the_engines(fleet: Fleet) -> None:
    fleet.namespace("scale", "deployment/rolloutfleet-operator", "--replicas=0")
    fleet.until("there is no operator", lambda: not operators(fleet))
    (gateway,) = pods(fleet, "gateway")
    fleet.namespace("delete", "pod", gateway["metadata"]["name"], "--wait=true", seconds=ENDS_WITHIN + 60)
    fleet.until("there is another gateway", lambda: [ready(pod) for pod in pods(fleet, "gateway")] == [True])
    fleet.until("the gateway is right", lambda: right(fleet), seconds=KNOWN_WITHIN)
    assert answered(fleet) == 2
    gone = pods(fleet, "engine")[0]
    fleet.namespace("delete", "pod", gone["metadata"]["name"], "--grace-period=0", "--force")
    address = f"http://{gone['status']['podIP']}:30000"
    fleet.until("the gateway lets go of it", lambda: address not in known(fleet), seconds=FORGOTTEN_WITHIN)
    fleet.namespace("scale", "deployment/rolloutfleet-operator", "--replicas=1")
    fleet.until("the gateway is right", lambda: right(fleet))
    fleet.until_ready()


def test_agents_notice_no_gateway_that_is_killed_or_replaced_without_an_operator(
    namespace: Kubectl, images: Images, operator: Operator
) -> None:
    fleet = Fleet(namespace, images, spec={"gateway": {"replicas": 2}, "engine": {"replicas": 2}}).make()

    def both_serve() -> bool:
        return [ready(pod) for pod in pods(fleet, "gateway")] == [True, True]

    with fleet.traffic(number=6) as traffic:
        fleet.namespace("delete", "pod", _gateway(fleet), "--grace-period=0", "--force")
        fleet.until("there are two gateways", both_serve)
        fleet.namespace("scale", "deployment/rolloutfleet-operator", "--replicas=0")
        fleet.until("there is no operator", lambda: not operators(fleet))
        fleet.namespace("delete", "pod", _gateway(fleet), "--wait=true", seconds=ENDS_WITHIN + 60)
        fleet.until("there are two gateways", both_serve)
        fleet.namespace("scale", "deployment/rolloutfleet-operator", "--replicas=1")
        fleet.until_ready()
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _gateway(fleet: Fleet) -> str:
    name: str = pods(fleet, "gateway")[0]["metadata"]["name"]
    return name


def operators(fleet: Fleet) -> list[dict[str, Any]]:
    chosen = "--selector=app.kubernetes.io/name=rolloutfleet-operator"
    found: list[dict[str, Any]] = fleet.namespace.get("pods", chosen)["items"]
    return found


def refused(fleet: Fleet, url: str) -> bool:
    """Whether a generation without a key is."""
    return int(fleet.namespace("exec", "demo-proxy-0", "--", "python", "-c", _POST, f"{url}/generate")) == 401


def restarts(fleet: Fleet) -> int:
    """Of the one gateway's container."""
    (gateway,) = pods(fleet, "gateway")
    found: int = gateway["status"]["containerStatuses"][0]["restartCount"]
    return found


def answered(fleet: Fleet) -> int:
    """Turns that an agent saw answered, of two."""
    said = agents.run(fleet.namespace, "agents.py", "1", "2", fleet=fleet.name, image=fleet.images.proxy)
    return sum(len(turns) for turns in said["answered"].values())


def test_a_gateway_before_engines_with_a_key_ends_soon_and_the_next_one_is_told_of_them(keyed: Fleet) -> None:
    """Ended twice: by a signal, so that its container starts again in the same pod, and with its pod."""
    assert all(refused(keyed, url) for url in [*known(keyed), "http://demo-gateway:30000"])
    assert answered(keyed) == 2
    (gateway,) = pods(keyed, "gateway")
    name = gateway["metadata"]["name"]
    assert keyed.namespace("exec", name, "--", "cat", "/proc/1/cmdline").startswith("dumb-init\0")

    # The container may end before `kubectl exec` does.
    keyed.namespace.succeeds("exec", name, "--", "python", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
    keyed.until("the container has started again", lambda: restarts(keyed) == 1, seconds=ENDS_WITHIN)
    keyed.until("the gateway is right", lambda: right(keyed), seconds=KNOWN_WITHIN)
    keyed.until_ready()
    assert answered(keyed) == 2

    began = time.monotonic()
    keyed.namespace("delete", "pod", name, "--wait=true", seconds=ENDS_WITHIN + 60)
    assert time.monotonic() - began < ENDS_WITHIN
    keyed.until("there is another gateway", lambda: [ready(pod) for pod in pods(keyed, "gateway")] == [True])
    keyed.until("the gateway is right", lambda: right(keyed), seconds=KNOWN_WITHIN)
    keyed.until_ready()
    assert answered(keyed) == 2
