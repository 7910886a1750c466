"""Small Debian systems made from packages by debootstrap: what the node image and the images in it stand on.

Each is made once and kept in the cache as a tar file, named by a hash of what it is made of.
"""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from toolchain.cache import alone, appearing, digest_of, remove
from toolchain.kubernetes import commands
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.paths import CLUSTER_CACHE, LOCKS
from toolchain.kubernetes.progress import step

SUITE = "bookworm"
PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NOT_NEEDED = (
    *("./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*", "./debootstrap"),
    *("./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*"),
    *("./dev/*", "./proc/*", "./sys/*", "./tmp/*"),
)


@dataclass(frozen=True, slots=True)
class System:
    """A Debian system: its name, and the packages beside those that every Debian has."""

    name: str
    packages: tuple[str, ...]
    seconds: int
    """How long it takes to make, about."""

    @property
    def archive(self) -> Path:
        # The architecture counts: the cache may lie on a disk that several machines share.
        digest = digest_of(SUITE, *self.packages, *NOT_NEEDED, platform.machine())
        return CLUSTER_CACHE / f"debian-{self.name}-{digest}" / "root.tar"

    @property
    def image(self) -> str:
        return f"rolloutfleet-{self.name}:{SUITE}"


NETWORK = System(
    "network",
    (
        "ca-certificates",
        "conntrack",
        "ethtool",
        "iproute2",
        "iptables",
        "libpython3-stdlib",
        "nftables",
        "python3-minimal",
    ),
    50,
)
"""Below kube-proxy, and below the pod that connects the pods of all nodes."""

NODE = System(
    "node",
    (
        *("systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins"),
        *("iproute2", "iptables", "nftables", "conntrack", "ethtool", "socat", "ebtables", "ipset", "netbase"),
        *("mount", "kmod", "procps", "util-linux", "jq", "ca-certificates", "hostname", "curl", "rsync"),
    ),
    90,
)
"""A node of the cluster: systemd, containerd and the network plug-ins."""


def ensure_archive(system: System, *, mirror: str) -> Path:
    """The system as a tar file. Raises ClusterError where it can't be made."""
    if not system.archive.exists():
        with alone(LOCKS / "debian"):  # beside what is compiled
            if not system.archive.exists():
                _make(system, mirror)
    return system.archive


def ensure_image(system: System, docker: Docker, *, mirror: str) -> str:
    """The system as an image of `docker`, by name."""
    archive = ensure_archive(system, mirror=mirror)
    made_of = f"rolloutfleet.dev/made-of={archive.parent.name}"
    if not docker("image", "ls", "--quiet", "--filter", f"label={made_of}", system.image).strip():
        docker("import", "--change", PATH, "--change", f"LABEL {made_of}", archive, system.image)
    return system.image


def can_be_made() -> bool:
    return os.geteuid() == 0 and shutil.which("debootstrap") is not None


def _make(system: System, mirror: str) -> None:
    if not can_be_made():
        raise ClusterError(
            f"the Debian system `{system.name}` is not in the cache, and to make it takes root and debootstrap"
            " (on Debian and Ubuntu: apt-get install debootstrap)"
        )
    with (
        step(f"Making a Debian system for `{system.name}` (about {system.seconds} s)"),
        appearing(system.archive.parent) as folder,
    ):
        root = folder / "root"
        try:
            included = ",".join(system.packages)
            commands.run("debootstrap", "--variant=minbase", f"--include={included}", SUITE, root, mirror)
            excluded = [f"--exclude={pattern}" for pattern in NOT_NEEDED]
            commands.run("tar", "--numeric-owner", "-C", root, *excluded, "-cf", folder / "root.tar", ".")
        finally:
            remove(root)
