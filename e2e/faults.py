"""Faults that Kubernetes' API has no word for: a process killed in its container, a node that is gone.

They reach for the nodes' containers, so they work on clusters that were made here, and raise ClusterError on others.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster import lifecycle
from e2e.cluster.docker.client import Docker
from e2e.cluster.failures import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.records import Record


def kill(record: Record, namespace: Kubectl, pod: str) -> None:
    """SIGKILL to the first container of a pod; the kubelet starts it again."""
    seen = namespace.get("pod", pod)
    container = seen["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    tasks = ("ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
    _docker(record)("exec", seen["spec"]["nodeName"], *tasks)


@contextmanager
def lost(record: Record, node: str) -> Iterator[None]:
    """The node is gone, as if its power were off; it comes back with the block's end."""
    docker = _docker(record)
    docker("kill", node)
    try:
        yield
    finally:
        docker("start", node)


def _docker(record: Record) -> Docker:
    if not record.made_here:
        raise ClusterError("faults of nodes and processes are made on a cluster that was made here only")
    return lifecycle.docker_of(record)
