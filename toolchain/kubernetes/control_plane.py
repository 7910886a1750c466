"""The images that a node brings along: Kubernetes' programs by the names kubeadm wants, our network, our storage."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from toolchain.kubernetes import binaries, debian
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.paths import HERE

REGISTRY = "registry.k8s.io"
"""Where kubeadm believes its images to be; it can't be told otherwise without a configuration of its own."""

NETWORK = "rolloutfleet-network:1"
LOCAL_PATH = f"rolloutfleet-local-path:{binaries.LOCAL_PATH.version}"

ALONE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "coredns", "pause")

DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
COPY . /
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/{program}"]
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A program in an image of its own: on nothing, or on a small Debian."""

    name: str
    program: Path
    on_debian: bool = False


def images(kubeadms_list: list[str]) -> list[Image]:
    """What a node needs. `kubeadms_list` is what `kubeadm config images list` said."""
    names = {name.removeprefix(f"{REGISTRY}/").partition(":")[0].rpartition("/")[2]: name for name in kubeadms_list}
    return [
        *(Image(names[each], binaries.program(each)) for each in ALONE),
        Image(names["kube-proxy"], binaries.program("kube-proxy"), on_debian=True),
        Image(LOCAL_PATH, binaries.program("local-path-provisioner")),
        Image(NETWORK, HERE / "pod_network.py", on_debian=True),
    ]


def build(image: Image, docker: Docker, *, context: Path, mirror: str) -> None:
    """Make the image in `docker`, by way of the empty folder `context`."""
    program = f"{'lib' if image.program.suffix else 'bin'}/{image.program.name}"
    laid = context / "usr/local" / program
    laid.parent.mkdir(parents=True)
    shutil.copy2(image.program, laid)
    # Programs without a system below them still want a folder for temporary files.
    (context / "tmp").mkdir()
    (context / "tmp").chmod(0o1777)
    base = debian.ensure_image(debian.NETWORK, docker, mirror=mirror) if image.on_debian else "scratch"
    docker(
        *("build", "--quiet", "--network", "none", "--tag", image.name, "--file", "-"),
        *("--build-arg", f"BASE_IMAGE={base}", context),
        stdin=DOCKERFILE.format(program=program),
    )
