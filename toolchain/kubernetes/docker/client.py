"""The `docker` command, told which daemon to speak to."""

import json
from dataclasses import dataclass
from pathlib import Path

from toolchain.kubernetes import commands


@dataclass(frozen=True, slots=True)
class Docker:
    """One daemon. `host` is its address (`unix:///…`), or None for the one that `docker` finds by itself."""

    host: str | None
    private: bool = False
    """Whether we started it."""

    @property
    def environment(self) -> dict[str, str]:
        """For programs that speak to the same daemon."""
        # The classic builder: it needs no plugin, and no image of its own to be pulled.
        return {"DOCKER_BUILDKIT": "0"} | ({"DOCKER_HOST": self.host} if self.host else {})

    def __call__(self, *words: str | Path, stdin: str | None = None, seconds: float | None = None) -> str:
        """Raises CommandFailed."""
        return commands.run("docker", *words, stdin=stdin, environment=self.environment, seconds=seconds)

    def succeeds(self, *words: str | Path, seconds: float = 60) -> bool:
        return commands.succeeds("docker", *words, environment=self.environment, seconds=seconds)

    def has_image(self, name: str) -> bool:
        return self.succeeds("image", "inspect", name)

    def image_id(self, name: str) -> str:
        return str(json.loads(self("image", "inspect", name))[0]["Id"])

    def import_root(self, folder: Path, name: str, *, left_out: tuple[str, ...] = (), changes: tuple[str, ...]) -> None:
        """A folder as an image of one layer."""
        excluded = [f"--exclude={pattern}" for pattern in left_out]
        changed = [word for change in changes for word in ("--change", change)]
        commands.pipe(
            ["tar", "--numeric-owner", "-C", folder, *excluded, "-c", "."],
            ["docker", "import", *changed, "-", name],
            environment=self.environment,
        )
