"""The project on a cluster: its images, built here and given to the nodes, and its chart."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from images import docker as builder
from images.__main__ import DEBOOTSTRAP, build
from images.recipes import RECIPES
from tests.waiting import until
from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

CHART: Final = Path(__file__).resolve().parents[1] / "charts" / "rolloutfleet"
RELEASE: Final = "rolloutfleet"
OPERATOR: Final = f"deployment/{RELEASE}-operator"
NAMESPACE: Final = "rolloutfleet-system"
DEFINITION: Final = "crd/rolloutfleets.rolloutfleet.dev"
LOADED: Final = "ROLLOUTFLEET_E2E_IMAGES_LOADED"
"""In the environment: what `Images.told` said of images that the cluster has already."""
_VALUES: Final = {"proxy": "proxy", "operator": "operator", "gateway": "gateway", "engine": "simulatedEngine"}
"""Under which of the chart's `images` each of ours stands."""


@dataclass(frozen=True, slots=True)
class Images:
    """The names by which pods can ask for the project's images."""

    proxy: str
    operator: str
    gateway: str
    engine: str

    def values(self) -> list[str]:
        """The chart's values that name them, for one operator: scenarios look at the one that acts."""
        said = ["--set", "replicas=1"]
        for name, value in _VALUES.items():
            repository, _, tag = getattr(self, name).rpartition(":")
            said += ["--set-string", f"images.{value}.repository={repository},images.{value}.tag={tag}"]
        return said

    def told(self) -> str:
        """For another process; `as_told` reads it."""
        return json.dumps(asdict(self))


def as_told(text: str) -> Images:
    return Images(**json.loads(text))


def build_images(docker: Docker) -> dict[str, str]:
    """Build the images of this working tree from our Dockerfile; their names by target."""
    return build(list(RECIPES.values()), builder.Docker(docker.host), base_image=DEBOOTSTRAP)


def load_images(record: Record, docker: Docker, made: Mapping[str, str]) -> Images:
    """Give the cluster what `build_images` made."""
    names = lifecycle.load(record, list(made.values()), docker)
    return Images(**dict(zip(made, names, strict=True)))


@dataclass(frozen=True, slots=True)
class Operator:
    """A release of the chart in a namespace."""

    where: Kubectl
    images: Images

    def install(self, *words: str) -> None:
        """Install it, or upgrade it, and wait until it serves. Raises CommandFailed."""
        self.where.helm("upgrade", "--install", RELEASE, CHART, "--create-namespace", *self.images.values(), *words)
        self.where("rollout", "status", OPERATOR, "--timeout=240s", seconds=250)

    def uninstall(self) -> str:
        """Remove it, its pod included; what helm says."""
        return self.where.helm("uninstall", RELEASE, "--wait", "--timeout", "240s")


def share_definition(cluster: Kubectl) -> None:
    """What operators of single namespaces have in common: the definition, and the roles of people."""
    shown = ("--show-only", "templates/crd.yaml", "--show-only", "templates/clusterroles.yaml")
    text = cluster.helm("template", RELEASE, CHART, "--kube-version", "1.34.0", *shown)
    cluster("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=text)
    until(lambda: _is_established(cluster), seconds=240, rest=0.5, state=lambda: f"{DEFINITION} can't be used")


def _is_established(cluster: Kubectl) -> bool:
    """`kubectl wait` gives up on a definition that has no conditions yet."""
    conditions = cluster.get(DEFINITION).get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def of_one_namespace(namespace: Kubectl, images: Images) -> Operator:
    """An operator that serves its own namespace, and waits there until it does."""
    operator = Operator(namespace, images)
    operator.install(
        *("--set", f"watchNamespace={namespace.namespace}"),
        *("--set", "crds.enabled=false,clusterRoles.enabled=false"),
    )
    return operator


def of_the_whole_cluster(cluster: Kubectl, images: Images) -> Operator:
    """The operator of the whole cluster, not installed yet, and nothing left of an earlier one."""
    release = Operator(cluster.within(NAMESPACE), images)
    remove_everything(cluster, release)
    return release


def remove_everything(cluster: Kubectl, release: Operator) -> None:
    """The release, the definition with every fleet, and what else operators share."""
    if RELEASE in release.where.helm("list", "--short").split():
        release.uninstall()
    roles = [f"clusterrole/{RELEASE}-{role}" for role in ("view", "edit")]
    cluster("delete", DEFINITION, *roles, "--ignore-not-found", "--timeout=200s", seconds=210)
    cluster("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=200s", seconds=210)
