"""kind, which makes nodes out of containers and a cluster out of nodes."""

from pathlib import Path
from typing import Final

import yaml

from toolchain.kubernetes import binaries, commands
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.settings import Settings

SHARED: Final = "/shared"
"""A folder of this machine on every node, for volumes that all nodes reach."""


def configuration(settings: Settings, image: str, shared: Path) -> str:
    """https://kind.sigs.k8s.io/docs/user/configuration"""
    mounts = [{"hostPath": str(shared), "containerPath": SHARED}]
    roles = ["control-plane"] + ["worker"] * settings.workers
    return yaml.safe_dump(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "name": settings.name,
            "networking": {"podSubnet": str(settings.pod_range), "serviceSubnet": str(settings.service_range)},
            "nodes": [{"role": role, "image": image, "extraMounts": mounts} for role in roles],
        }
    )


def create(docker: Docker, settings: Settings, *, image: str, kubeconfig: Path, shared: Path) -> None:
    _kind(
        *(docker, "create", "cluster", "--config", "-", "--kubeconfig", kubeconfig, "--wait", "120s"),
        stdin=configuration(settings, image, shared),
    )


def delete(docker: Docker, name: str, *, kubeconfig: Path) -> None:
    """Does nothing where there is none."""
    _kind(docker, "delete", "cluster", "--name", name, "--kubeconfig", kubeconfig)


def load(docker: Docker, name: str, images: list[str], *, nodes: list[str]) -> None:
    """Onto these nodes; onto all where none is named."""
    chosen = ("--nodes", ",".join(nodes)) if nodes else ()
    _kind(docker, "load", "docker-image", "--name", name, *chosen, *images)


def names(docker: Docker) -> list[str]:
    return _kind(docker, "get", "clusters").split()


def nodes(docker: Docker, name: str) -> list[str]:
    return sorted(_kind(docker, "get", "nodes", "--name", name).split())


def _kind(docker: Docker, *words: str | Path, stdin: str | None = None) -> str:
    return commands.run(binaries.program("kind"), *words, stdin=stdin, environment=docker.environment, seconds=600)
