"""The few things that are asked of Docker, by its command line."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}
"""Docker's names of architectures, and those in the names of wheels."""


class DockerFailed(Exception):
    """Docker is not there, does not answer, or could not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Docker:
    """One Docker daemon. `host` is its address (unix:///…); None: the one of DOCKER_HOST, or the machine's own."""

    host: str | None = None

    def machine(self) -> str:
        """The processor that its images are for, as wheels call it. Raises DockerFailed."""
        if shutil.which("docker") is None:
            raise DockerFailed("There is no `docker` here. On Debian or Ubuntu: apt-get install docker.io")
        arch = self._ask("version", "--format", "{{.Server.Arch}}")
        if arch not in MACHINES:
            raise DockerFailed(f"Docker runs on {arch}, for which no images are made ({', '.join(MACHINES)} are known)")
        return MACHINES[arch]

    def has(self, image: str) -> bool:
        return self._run("image", "inspect", image).returncode == 0

    def pull(self, image: str) -> None:
        self._ask("pull", "--quiet", image)

    def build(
        self, context: Path, *, image: str, target: str, arguments: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        """Build without network. Raises DockerFailed with the end of what the builder said."""
        words = ["build", "--network", "none", "--target", target, "--tag", image]
        for flag, values in (("--build-arg", arguments), ("--label", labels)):
            for name, value in values.items():
                words += [flag, f"{name}={value}"]
        self._ask(*words, str(context))

    def import_root(self, archive: IO[bytes], *, image: str, changes: Sequence[str]) -> None:
        """An image from the tar archive of a root folder."""
        words = [word for change in changes for word in ("--change", change)]
        self._ask("import", *words, "-", image, stdin=archive)

    def size(self, image: str) -> int:
        """Bytes, unpacked, the base included."""
        return int(self._ask("image", "inspect", "--format", "{{.Size}}", image))

    def _ask(self, *words: str, stdin: IO[bytes] | None = None) -> str:
        done = self._run(*words, stdin=stdin)
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise DockerFailed(f"`docker {words[0]}` failed:\n{said}")
        return done.stdout.strip()

    def _run(self, *words: str, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[str]:
        address = ["--host", self.host] if self.host else []
        return subprocess.run(
            ["docker", *address, *words],
            # The builder that every Docker has; an own choice is left.
            env={"DOCKER_BUILDKIT": "0", **os.environ},
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
