"""What goes into each image, and what they are called. Pure."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HERE.parent
DOCKERFILE: Final = HERE / "Dockerfile"
INSTALLER_LOCK: Final = HERE / "installer.lock"
PUBLIC_BASE: Final = "python:3.11-slim-bookworm"
"""The Dockerfile's own default. A tag, not a digest: name one by `--base NAME@sha256:…` to have it fixed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image, and the target of the Dockerfile that makes it."""

    target: str
    with_project: bool = True
    """False: it holds none of the project's own code."""

    @property
    def lock(self) -> Path:
        return HERE / f"{self.target}.lock"

    def name(self, *, registry: str | None, tag: str) -> str:
        prefix = f"{registry.rstrip('/')}/" if registry else ""
        return f"{prefix}rolloutfleet-{self.target}:{tag}"


RECIPES: Final = {
    recipe.target: recipe
    for recipe in (Recipe("proxy"), Recipe("operator"), Recipe("gateway", with_project=False), Recipe("engine"))
}


def project_version() -> str:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version
