"""A node with GPUs, as far as Kubernetes can tell: gateway and engines go where they are told, and wait for a GPU.

GPUs are advertised as device plugins do, in the node's status; nothing in a pod uses one. The node has a taint
meanwhile, so nothing else may run beside.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = [pytest.mark.full, pytest.mark.alone]
GPU: Final = "nvidia.com/gpu"
LABEL: Final = "e2e.rolloutfleet.dev/accelerator"
PLACED: Final = {
    "nodeSelector": {LABEL: "gpu"},
    "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
}
TOKENIZER: Final = {"path": "/opt/rolloutfleet/simulated-model", "renderer": "qwen3"}
Advertise = Callable[[int], None]


@pytest.fixture
def node(cluster: Kubectl) -> Iterator[str]:
    """A worker for GPUs, which has none yet."""
    chosen = "--selector=!node-role.kubernetes.io/control-plane"
    name: str = cluster.get("nodes", chosen)["items"][-1]["metadata"]["name"]
    cluster("label", "node", name, f"{LABEL}=gpu")
    cluster("taint", "node", name, f"{GPU}=present:NoSchedule")
    yield name
    cluster("taint", "node", name, f"{GPU}-")
    cluster("label", "node", name, f"{LABEL}-")


@pytest.fixture
def advertise(cluster: Kubectl, node: str) -> Iterator[Advertise]:
    """https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node"""

    def patch(number: int | None) -> None:
        body = {
            "status": {kind: {GPU: None if number is None else str(number)} for kind in ("capacity", "allocatable")}
        }
        cluster("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps(body))

    yield patch
    patch(None)


@pytest.fixture
def fleet(operator: Operator, namespace: Kubectl, images: Images) -> Fleet:
    """Its model is not the simulated one, so its engines are SGLang's, but for the image and what that runs."""
    words = ["--host", "0.0.0.0", "--port", "30000", "--served-model-name", "tiny"]
    container = {
        "name": "engine",
        "image": images.engine,
        "command": ["rolloutfleet-engine"],
        "args": words,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }
    spec: dict[str, Any] = {
        "model": "tiny",
        "tokenizer": TOKENIZER,
        "proxies": {"replicas": 1},
        "gateway": PLACED,
        "engine": {"replicas": 2, "gpus": 1, "podTemplate": {"spec": {**PLACED, "containers": [container]}}},
    }
    return Fleet(namespace, images, spec=spec)


def engines(fleet: Fleet) -> list[dict[str, Any]]:
    chosen = f"--selector=rolloutfleet.dev/fleet={fleet.name},app.kubernetes.io/component=engine"
    found: list[dict[str, Any]] = fleet.namespace.get("pods", chosen)["items"]
    return found


def gateway(fleet: Fleet) -> dict[str, Any]:
    chosen = f"--selector=rolloutfleet.dev/fleet={fleet.name},app.kubernetes.io/component=gateway"
    (found,) = fleet.namespace.get("pods", chosen)["items"]
    pod: dict[str, Any] = found
    return pod


def engines_reason(fleet: Fleet) -> str:
    reason: str = fleet.condition("EnginesReady").get("reason", "")
    return reason


def test_engines_wait_for_gpus_by_name_and_the_gateway_goes_where_they_are(
    fleet: Fleet, node: str, advertise: Advertise
) -> None:
    fleet.apply()
    fleet.until("engines wait for GPUs", lambda: engines_reason(fleet) == "WaitingForGpus")
    fleet.until("the gateway runs", lambda: gateway(fleet)["status"]["phase"] == "Running")
    assert gateway(fleet)["spec"]["nodeName"] == node
    assert GPU not in json.dumps(gateway(fleet)["spec"]["containers"])
    fleet.until("the fleet says so", lambda: fleet.condition("Ready").get("reason") == "WaitingForGpus")
    assert GPU in fleet.condition("Ready")["message"]
    assert [pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in engines(fleet)] == ["1", "1"]

    advertise(1)
    fleet.until("one engine serves", lambda: fleet.condition("GatewayReady").get("status") == "True")
    assert engines_reason(fleet) == fleet.condition("Ready").get("reason") == "WaitingForGpus"
    assert sorted(pod["spec"].get("nodeName", "") for pod in engines(fleet)) == ["", node]
    said = agents.run(fleet.namespace, "agents.py", "2", "2", fleet=fleet.name, image=fleet.images.proxy)
    assert sum(len(turns) for turns in said["answered"].values()) == 4

    advertise(2)
    fleet.until("both engines serve", lambda: fleet.condition("EnginesReady")["status"] == "True")
    fleet.until_ready()
    assert [pod["spec"]["nodeName"] for pod in engines(fleet)] == [node, node]
    assert fleet.reasons() == set()
