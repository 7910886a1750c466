"""kubectl and helm, pointed at one cluster."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.kubernetes import binaries, commands
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.records import Record


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`kubectl` for one cluster, and one namespace where that is given."""

    kubeconfig: Path
    context: str | None = None
    namespace: str | None = None
    program: Path = field(default_factory=lambda: _program("kubectl"))

    def __call__(self, *words: str | Path, stdin: str | None = None, seconds: float = 300) -> str:
        """Its standard output. Raises CommandFailed, with what it said."""
        return commands.run(self.program, *self._target, *words, stdin=stdin, seconds=seconds)

    def succeeds(self, *words: str | Path, seconds: float = 300) -> bool:
        return commands.succeeds(self.program, *self._target, *words, seconds=seconds)

    def get(self, *words: str) -> Any:
        return json.loads(self("get", *words, "--output", "json"))

    def find(self, *words: str) -> Any | None:
        """What `get` gives, or None where there is no such object."""
        try:
            return self.get(*words)
        except CommandFailed as error:
            if "NotFound" in error.said:
                return None
            raise

    def evict(self, pod: str) -> None:
        """Raises CommandFailed where a disruption budget refuses it."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self("create", "--filename", "-", "--raw", path, stdin=json.dumps(eviction))

    def within(self, namespace: str) -> "Kubectl":
        return Kubectl(self.kubeconfig, self.context, namespace, self.program)

    @property
    def _target(self) -> list[str | Path]:
        return [
            *("--kubeconfig", self.kubeconfig),
            *(("--context", self.context) if self.context else ()),
            *(("--namespace", self.namespace) if self.namespace else ()),
        ]

    def command(self, *words: str) -> list[str]:
        """The whole line, for a program that goes on (`port-forward`, `logs --follow`)."""
        return [str(word) for word in (self.program, *self._target, *words)]

    def helm(self, *words: str | Path, seconds: float = 300) -> str:
        """helm on the same cluster and namespace. Raises CommandFailed."""
        target: list[str | Path] = [
            *("--kubeconfig", self.kubeconfig),
            *(("--kube-context", self.context) if self.context else ()),
            *(("--namespace", self.namespace) if self.namespace else ()),
        ]
        return commands.run(_program("helm"), *target, *words, seconds=seconds)


def of(record: Record) -> Kubectl:
    return Kubectl(record.kubeconfig, record.context)


def ensure_programs() -> None:
    """Compile what would else be compiled when first used."""
    for name in ("kubectl", "helm"):
        _program(name)


def _program(name: str) -> Path:
    """Ours where it is compiled, else the machine's, else ours after all: compiling kubectl takes minutes."""
    ours = binaries.MODULE_OF[name].built / name
    machines = shutil.which(name)
    if machines is not None and not ours.exists():
        return Path(machines)
    return binaries.program(name)
