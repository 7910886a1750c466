"""The programs of the cluster, compiled from Go modules: each once, kept in the cache.

`modules/NAME/go.mod` and `go.sum` say what is compiled, to the last byte; a program's version is that of its module
there. Each program appears by itself, so that a build that was stopped goes on where it was.
"""

import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolchain import go
from toolchain.cache import alone, digest_of
from toolchain.kubernetes import commands
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.paths import CLUSTER_CACHE, MODULES
from toolchain.kubernetes.progress import step

_GO: Final = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOGC": "400"}
"""Environment of the compiler. GOGC=400 collects garbage less often: a fifth less CPU time, for more memory."""


@dataclass(frozen=True, slots=True)
class Module:
    """Programs that are built by one `go.mod` and have one version: name to Go package."""

    name: str
    of: str
    """The Go module whose version counts."""
    programs: dict[str, str]
    stamped: tuple[str, ...] = ()
    """Packages that are told the version; kubeadm and kubelet compare theirs."""
    beside: str = ""
    """The module whose `go.mod` it shares, so that what both need is compiled once."""

    @property
    def folder(self) -> Path:
        return MODULES / (self.beside or self.name)

    @property
    def version(self) -> str:
        found = re.search(rf"^\s*(?:require )?{re.escape(self.of)} (v\S+)", self._manifest, re.MULTILINE)
        if found is None:
            raise ClusterError(f"{self.folder / 'go.mod'} names no version of {self.of}")
        return found[1]

    @property
    def _manifest(self) -> str:
        return (self.folder / "go.mod").read_text()

    @property
    def linking(self) -> str:
        """Without tables for a debugger, and stamped."""
        return " ".join(["-s -w", *(flag for package in self.stamped for flag in self._stamps(package))])

    def _stamps(self, package: str) -> list[str]:
        major, minor, _ = self.version.removeprefix("v").split(".")
        stamps = {
            "gitVersion": self.version,
            "gitMajor": major,
            "gitMinor": minor,
            "gitTreeState": "clean",
            "gitCommit": "unknown",
            "buildDate": "2026-01-01T00:00:00Z",  # always the same, so that the same sources make the same bytes
        }
        return [f"-X {package}.{name}={value}" for name, value in stamps.items()]

    @property
    def built(self) -> Path:
        return CLUSTER_CACHE / f"bin-{self.name}-{digest_of(self.folder, self.linking, platform.machine())}"


def _of_kubernetes(*names: str) -> dict[str, str]:
    return {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}


KUBERNETES = Module(
    "kubernetes",
    "k8s.io/kubernetes",
    _of_kubernetes(
        *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
        *("kubelet", "kubeadm", "kubectl"),
    ),
    stamped=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
)
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
COREDNS = Module("coredns", "github.com/coredns/coredns", {"coredns": "./coredns"}, beside="kubernetes")
LOCAL_PATH = Module(
    "local-path-provisioner",
    "github.com/rancher/local-path-provisioner",
    {"local-path-provisioner": "github.com/rancher/local-path-provisioner"},
    beside="kubernetes",
)
PAUSE = Module("pause", "-", {"pause": "."})
KIND = Module("kind", "sigs.k8s.io/kind", {"kind": "sigs.k8s.io/kind"})
HELM = Module("helm", "helm.sh/helm/v3", {"helm": "helm.sh/helm/v3/cmd/helm"}, beside="kubernetes")

ALL = (KIND, HELM, PAUSE, ETCD, COREDNS, LOCAL_PATH, KUBERNETES)
MODULE_OF = {program: module for module in ALL for program in module.programs}


def program(name: str) -> Path:
    """The compiled program `name`, compiled now if need be. Raises ClusterError."""
    module = MODULE_OF[name]
    path = module.built / name
    if not path.exists():
        with alone(CLUSTER_CACHE):
            if not path.exists():
                _compile(module, name, path)
    return path


def _compile(module: Module, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{name}.unfinished")
    with step(f"Compiling {name} ({module.version if module is not PAUSE else 'ours'})"):
        commands.run(
            *(_compiler(), "build", "-trimpath", "-ldflags", module.linking, "-o", unfinished),
            module.programs[name],
            folder=module.folder,
            environment=_GO,
        )
    unfinished.rename(path)


@functools.cache
def _compiler() -> Path:
    try:
        return go.folder() / "go"
    except go.NoCompiler as error:
        raise ClusterError(str(error)) from None


BARE_API = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""An API server without nodes: what tests of the operator run on that need no pods."""
