"""The memory of a pod's processes as the kernel of its node has it, so that no figure of ours is its own witness."""

import re
from typing import Final

from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

_LINE: Final = re.compile(r"/proc/(\d+)/status:(PPid|VmRSS):\s+(\d+)")


def resident_bytes(record: Record, namespace: Kubectl, pod: str) -> int:
    """Resident bytes of the first container's process and all its descendants: VmRSS of `/proc/PID/status`, proc(5)."""
    docker = lifecycle.docker_of(record)
    seen = namespace.get("pod", pod)
    node = seen["spec"]["nodeName"]
    container = seen["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    tasks = docker("exec", node, "ctr", "--namespace", "k8s.io", "tasks", "list")
    (first,) = (int(words[1]) for words in map(str.split, tasks.splitlines()) if words[0] == container)
    return _of_tree(first, docker("exec", node, "sh", "-c", "grep -HE '^(PPid|VmRSS):' /proc/[0-9]*/status || true"))


def _of_tree(first: int, said: str) -> int:
    parents: dict[int, int] = {}
    kibibytes: dict[int, int] = {}
    for pid, field, number in _LINE.findall(said):
        (parents if field == "PPid" else kibibytes)[int(pid)] = int(number)
    tree = {first}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return 1024 * sum(kibibytes.get(pid, 0) for pid in tree)
