"""Containers as a careful cluster runs them: nobody's user, a read-only root, no capabilities."""

import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

CONFINED = (
    *("--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
)


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    host: "Host"

    def log(self) -> str:
        return self.host.docker("logs", self.name)

    def state(self) -> dict[str, object]:
        state: dict[str, object] = json.loads(self.host.docker("inspect", "--format", "{{json .State}}", self.name))
        return state

    def changed_files(self) -> list[str]:
        """What it wrote to its own root; mount points count as made."""
        return self.host.docker("diff", self.name).splitlines()

    def stop(self, *, patience: int) -> object:
        """SIGTERM, and SIGKILL after `patience` seconds; the exit status."""
        self.host.docker("stop", "--time", str(patience), self.name)
        return self.state()["ExitCode"]


class Host:
    """A Docker daemon, and the containers that a test has on it; they share one network, which leads nowhere."""

    def __init__(self, environment: Mapping[str, str], stack: ExitStack) -> None:
        self._environment, self._stack = dict(environment), stack
        self._network = "none"

    def docker(self, *words: str) -> str:
        done = subprocess.run(
            ["docker", *words], env=self._environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, image: str, *arguments: str, mounts: Mapping[Path, str] | None = None) -> Container:
        container = Container(f"rolloutfleet-test-{uuid.uuid4().hex[:12]}", self)
        self._stack.callback(self.docker, "rm", "--force", container.name)
        self.docker(
            *("run", "--detach", "--name", container.name, "--network", self._network, *CONFINED),
            *_mounts(mounts),
            *(image, *arguments),
        )
        if self._network == "none":
            self._network = f"container:{container.name}"
        return container

    def run(
        self, image: str, *arguments: str, program: str | None = None, mounts: Mapping[Path, str] | None = None
    ) -> str:
        """What a container prints that ends by itself."""
        instead = ("--entrypoint", program) if program else ()
        return self.docker(
            *("run", "--rm", "--network", self._network, *CONFINED, *_mounts(mounts), *instead, image, *arguments)
        )


@contextmanager
def host(environment: Mapping[str, str]) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(environment, stack)


def _mounts(mounts: Mapping[Path, str] | None) -> list[str]:
    return [word for path, where in (mounts or {}).items() for word in ("--volume", f"{path}:{where}")]
