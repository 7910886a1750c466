"""Volumes of a size that holds: a file with a file system in it, mounted on a node (the default class has folders)."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

CLAIMED: Final = "1Gi"
"""What the volumes are said to have. What they have is less, as where others share a disk."""
_MAKE: Final = """
set -e
truncate -s {megabytes}M /var/{name}.img
mkfs.ext4 -q /var/{name}.img
mkdir -p /mnt/{name}
mount -o loop /var/{name}.img /mnt/{name}
"""
_REMOVE: Final = "umount --lazy /mnt/{name}; rmdir /mnt/{name}; rm -f /var/{name}.img"


@contextmanager
def disk(record: Record, cluster: Kubectl, *, megabytes: int) -> Iterator[str]:
    """A disk on one of the workers, as the only volume of a storage class of its own, whose name this is."""
    if not record.made_here:
        raise ClusterError("disks are made on a cluster that was made here only")
    docker, name = lifecycle.docker_of(record), f"disk-{secrets.token_hex(3)}"
    node = cluster.get("nodes", "--selector", "!node-role.kubernetes.io/control-plane")["items"][0]["metadata"]["name"]
    docker("exec", node, "sh", "-c", _MAKE.format(name=name, megabytes=megabytes))
    try:
        for manifest in (_storage_class(name), _volume(name, node)):
            cluster("create", "--filename", "-", stdin=json.dumps(manifest))
        yield name
    finally:
        gone = (f"storageclass/{name}", f"persistentvolume/{name}")
        cluster("delete", *gone, "--ignore-not-found", "--wait=false")
        docker("exec", node, "sh", "-c", _REMOVE.format(name=name))


def _storage_class(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(name: str, node: str) -> dict[str, Any]:
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": CLAIMED},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "local": {"path": f"/mnt/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
        },
    }
