"""The cluster itself keeps what the tests of the operator build on."""

import json
from ipaddress import ip_address
from typing import Any

import pytest
from toolchain.kubernetes import routes
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e.installing import Images

pytestmark = pytest.mark.no_operator

SERVE = "import http.server as h, os; os.chdir('/tmp'); h.test(h.SimpleHTTPRequestHandler, port=8080)"
FETCH = """
import sys, time, urllib.request
deadline = time.monotonic() + 120  # a service knows of a ready pod a moment after the pod is ready
while True:
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=5).status)
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
"""


@pytest.fixture(scope="session")
def image(images: Images) -> str:
    """An image with a Python, which the nodes can get from nowhere else."""
    return images.proxy


def pod(name: str, image: str, *, node: str | None = None, claim: str | None = None, serves: bool = False) -> str:
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", SERVE if serves else "import time; time.sleep(3600)"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}] if claim else [],
    }
    if serves:
        container["readinessProbe"] = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if claim is not None:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    meta = {"name": name, "labels": {"app": name}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def start(namespace: Kubectl, *pods: str) -> None:
    for each in pods:
        namespace("apply", "--filename", "-", stdin=each)
    for each in pods:
        name = json.loads(each)["metadata"]["name"]
        namespace("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=240s", seconds=250)


def workers(cluster: Kubectl) -> list[str]:
    nodes = cluster.get("nodes", "--selector", "!node-role.kubernetes.io/control-plane")["items"]
    return [node["metadata"]["name"] for node in nodes]


def test_every_node_is_ready(cluster: Kubectl) -> None:
    nodes = cluster.get("nodes")["items"]
    assert workers(cluster)
    for node in nodes:
        ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "True", node["metadata"]["name"]


def test_no_packet_for_a_cluster_address_leaves_the_machine(record: Record) -> None:
    if record.made_here:
        assert routes.missing(record.ranges, routes.shown()) == []


@pytest.mark.full
def test_pods_reach_each_other_across_nodes_and_services_by_name(
    cluster: Kubectl, namespace: Kubectl, image: str
) -> None:
    here, there = workers(cluster)[:2]
    start(namespace, pod("server", image, node=there, serves=True), pod("client", image, node=here))
    namespace("expose", "pod", "server", "--port=80", "--target-port=8080")
    address = namespace.get("pod", "server")["status"]["podIP"]

    assert ip_address(address).is_private
    fetch = ("exec", "client", "--", "python3", "-c", FETCH)
    assert namespace(*fetch, f"http://{address}:8080/").strip() == "200"
    assert namespace(*fetch, f"http://server.{namespace.namespace}.svc.cluster.local/").strip() == "200"
    assert namespace(*fetch, "http://server/").strip() == "200"


def test_a_claim_is_bound_on_its_pods_node_and_keeps_what_was_written(
    cluster: Kubectl, namespace: Kubectl, image: str
) -> None:
    node = workers(cluster)[-1]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    namespace("apply", "--filename", "-", stdin=json.dumps(claim))
    start(namespace, pod("first", image, node=node, claim="data"))
    volume = cluster.get("persistentvolume", namespace.get("pvc", "data")["spec"]["volumeName"])
    assert node in json.dumps(volume["spec"]["nodeAffinity"])

    namespace("exec", "first", "--", "sh", "-c", "echo kept > /data/file")
    namespace("delete", "pod", "first")
    start(namespace, pod("second", image, claim="data"))
    assert namespace.get("pod", "second")["spec"]["nodeName"] == node
    assert namespace("exec", "second", "--", "cat", "/data/file") == "kept\n"

    namespace("patch", "pvc", "data", "--patch", '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}')
    assert namespace.get("pvc", "data")["spec"]["resources"]["requests"]["storage"] == "2Gi"


def test_an_eviction_honours_a_disruption_budget(namespace: Kubectl, image: str) -> None:
    start(namespace, pod("guarded", image))
    namespace("create", "poddisruptionbudget", "guard", "--selector=app=guarded", "--min-available=1")
    namespace("wait", "pdb/guard", "--for=jsonpath={.status.expectedPods}=1", "--timeout=180s")
    with pytest.raises(CommandFailed, match="disruption budget"):
        namespace.evict("guarded")
    namespace("delete", "pdb", "guard")
    namespace.evict("guarded")
    namespace("wait", "pod/guarded", "--for=delete", "--timeout=180s")
