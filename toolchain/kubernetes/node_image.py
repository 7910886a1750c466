"""The node image of kind: named, found, pulled, or made here from packages and Go modules.

What kind asks of a node image is written nowhere but in its source (pkg/cluster/internal/create and
images/base/files of sigs.k8s.io/kind): a container whose first process becomes systemd, containerd and a unit
`kubelet`, kubeadm and kubectl, `/kind/version`, and manifests of a pod network and a storage class.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolchain.cache import alone, digest_of
from toolchain.kubernetes import binaries, commands, control_plane, debian
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.paths import HERE, LOCKS, NODE_FILES
from toolchain.kubernetes.progress import say, step
from toolchain.kubernetes.settings import Settings

ON_A_NODE = ("kubelet", "kubeadm", "kubectl")
PULL_SECONDS = 600.0
ENTRYPOINT = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'


def ensure(docker: Docker, settings: Settings) -> str:
    """The name of an image that `docker` has. Raises ClusterError."""
    if settings.node_image is not None:
        return _named(settings.node_image, docker)
    ours = _our_name()
    if docker.has_image(ours):
        return ours
    published = f"kindest/node:{binaries.KUBERNETES.version}"
    if docker.has_image(published) or _pulled(published, docker):
        return published
    with alone(LOCKS / "node-image"):
        if not docker.has_image(ours):
            say(f"{published} can't be pulled here: making a node image from packages, once (10 minutes on 2 cores)")
            _make(ours, docker, mirror=settings.debian_mirror)
    return ours


def _named(name: str, docker: Docker) -> str:
    if docker.has_image(name) or _pulled(name, docker):
        return name
    raise ClusterError(f"there is no node image {name} here, and it can't be pulled")


def _pulled(name: str, docker: Docker) -> bool:
    with step(f"Looking for {name}"):
        return docker.succeeds("pull", "--quiet", name, seconds=PULL_SECONDS)


def _our_name() -> str:
    """Its tag is a hash of all that goes in."""
    modules = [module.built.name for module in binaries.ALL if module not in (binaries.KIND, binaries.HELM)]
    systems = [system.archive.parent.name for system in (debian.NODE, debian.NETWORK)]
    sources = [HERE / name for name in ("node_image.py", "control_plane.py", "pod_network.py")]
    return f"rolloutfleet-node:{binaries.KUBERNETES.version}-{digest_of(NODE_FILES, *sources, *modules, *systems)}"


def _make(name: str, docker: Docker, *, mirror: str) -> None:
    base = debian.ensure_image(debian.NODE, docker, mirror=mirror)
    debian.ensure_archive(debian.NETWORK, mirror=mirror)  # before the first program is waited for
    brought = _brought_images()
    with _folder() as folder:
        archive = folder / "images.tar"
        with step(f"Making the {len(brought)} images that a node brings along"):
            for image in brought:
                with _folder() as context:
                    control_plane.build(image, docker, context=context, mirror=mirror)
            docker("save", "--output", archive, *(image.name for image in brought))
        with step("Making the node image"):
            bare = _bare_node(docker, base, brought)
            _with_images(docker, bare, archive, name)
    docker("image", "rm", bare, *(image.name for image in brought))


def _brought_images() -> list[control_plane.Image]:
    version = f"--kubernetes-version={binaries.KUBERNETES.version}"
    wanted = commands.run(binaries.program("kubeadm"), "config", "images", "list", version)
    return control_plane.images(wanted.split())


def _bare_node(docker: Docker, base: str, brought: list[control_plane.Image]) -> str:
    """A node without images. Its name."""
    pause = next(image.name for image in brought if image.program.name == "pause")
    names = {"@PAUSE@": pause, "@NETWORK@": control_plane.NETWORK, "@LOCAL_PATH@": control_plane.LOCAL_PATH}
    name = "rolloutfleet-node:bare"
    with _folder() as context:
        shutil.copytree(NODE_FILES, context, dirs_exist_ok=True)
        for file in context.joinpath("root").rglob("*"):
            if file.is_file():
                _fill_in(file, names)
        (context / "root/kind/version").write_text(binaries.KUBERNETES.version)
        (context / "bin").mkdir()
        for each in ON_A_NODE:
            shutil.copy2(binaries.program(each), context / "bin")
        docker("build", "--quiet", "--network", "none", "--build-arg", f"BASE_IMAGE={base}", "--tag", name, context)
    return name


def _fill_in(file: Path, names: dict[str, str]) -> None:
    text = file.read_text()
    for mark, name in names.items():
        text = text.replace(mark, name)
    file.write_text(text)


def _with_images(docker: Docker, bare: str, archive: Path, name: str) -> None:
    container = docker(
        *("run", "--detach", "--privileged", "--network", "none", "--entrypoint", "bash"),
        *("--volume", f"{archive}:/images.tar:ro"),
        *("--volume", f"{NODE_FILES / 'import-images.sh'}:/import-images.sh:ro"),
        *(bare, "/import-images.sh"),
    ).strip()
    try:
        if docker("wait", container).strip() != "0":
            raise ClusterError(f"no images could be put into the node:\n{docker('logs', '--tail', '20', container)}")
        docker("commit", "--change", ENTRYPOINT, "--change", "CMD []", container, name)
    finally:
        docker("rm", "--force", container)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-node-") as folder:
        yield Path(folder)
