"""Faults that Kubernetes' API has no word for: a process killed in its container, a node that is gone.

They reach for the nodes' containers, so they work on clusters that were made here, and raise ClusterError on others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.waiting import until
from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

API_SERVER: Final = "kube-apiserver.yaml"
TIMEOUT: Final = 240.0


def kill(record: Record, namespace: Kubectl, pod: str) -> None:
    """SIGKILL to the first container of a pod; the kubelet starts it again."""
    seen = namespace.get("pod", pod)
    container = seen["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    tasks = ("ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
    _docker(record)("exec", seen["spec"]["nodeName"], *tasks)


@contextmanager
def lost(record: Record, node: str) -> Iterator[None]:
    """The node is gone, as if its power were off; it comes back, started anew, with the block's end."""
    docker = _docker(record)
    docker("kill", node)
    try:
        yield
    finally:
        docker("start", node)


@contextmanager
def frozen(record: Record, node: str) -> Iterator[None]:
    """Nothing on the node moves, and nobody hears of it; with the block's end all goes on where it was."""
    docker = _docker(record)
    docker("pause", node)
    try:
        yield
    finally:
        docker("unpause", node)


@contextmanager
def no_api_server(record: Record, cluster: Kubectl) -> Iterator[None]:
    """The API server is down; it answers again at the block's end."""
    docker, node = _docker(record), f"{record.name}-control-plane"
    runs, aside = f"/etc/kubernetes/manifests/{API_SERVER}", f"/etc/kubernetes/{API_SERVER}"
    docker("exec", node, "mv", runs, aside)  # the kubelet runs what is in that folder
    try:
        until(lambda: not _answers(cluster), seconds=TIMEOUT, rest=0.5, state=lambda: "the API server still answers")
        yield
    finally:
        docker("exec", node, "mv", aside, runs)
        until(lambda: _answers(cluster), seconds=TIMEOUT, rest=0.5, state=lambda: "the API server does not answer")


def _answers(cluster: Kubectl) -> bool:
    return cluster.succeeds("get", "--raw", "/readyz", "--request-timeout=2s", seconds=10)


def _docker(record: Record) -> Docker:
    if not record.made_here:
        raise ClusterError("faults of nodes and processes are made on a cluster that was made here only")
    return lifecycle.docker_of(record)
