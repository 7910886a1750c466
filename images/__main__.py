"""Builds the images of a fleet on a cluster: `make images`, or `python -m images --help`."""

import argparse
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import base
from images.docker import Docker, DockerFailed
from images.recipes import DOCKERFILE, INSTALLER_LOCK, PUBLIC_BASE, RECIPES, REPOSITORY, Recipe, project_version
from images.wheels import FetchFailed, build_project, fetched

CONTEXTS: Final = REPOSITORY / ".cache" / "images"
DEBOOTSTRAP: Final = "debootstrap"

EPILOG = f"""\
Only fetching needs a network; what was fetched once is kept for all clones in the user's cache, and the builds run
without one.

examples:
  python -m images                                    all four, on {PUBLIC_BASE}
  python -m images proxy --tag dev                    rolloutfleet-proxy:dev
  python -m images --registry registry.example.com/rl registry.example.com/rl/rolloutfleet-proxy:… and so on
  python -m images --base debootstrap                 where nothing can be pulled: a base from Debian's packages (root)
  python -m images --host unix:///run/other.sock      with another Docker daemon
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    recipes = [RECIPES[name] for name in options.images or RECIPES]
    try:
        if options.fetch_only:
            for lock in (INSTALLER_LOCK, *(recipe.lock for recipe in recipes)):
                fetched(lock, machine=platform.machine())
            return 0
        build(
            recipes,
            Docker(options.host),
            base_image=options.base,
            mirror=options.mirror,
            registry=options.registry,
            tag=options.tag,
        )
    except (DockerFailed, FetchFailed, base.NoBase) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: stopped", file=sys.stderr)
        return 130
    return 0


def build(
    recipes: Sequence[Recipe],
    docker: Docker,
    *,
    base_image: str = PUBLIC_BASE,
    mirror: str | None = None,
    registry: str | None = None,
    tag: str | None = None,
) -> dict[str, str]:
    """Build the images and say how; the image's name by target. Raises DockerFailed, FetchFailed, NoBase."""
    machine = docker.machine()
    started = time.monotonic()
    base_image = _base(docker, base_image, mirror)
    _say(f"base {base_image}", started)
    labels = {"org.opencontainers.image.version": project_version()} | _revision()
    made = {}
    for recipe in recipes:
        started = time.monotonic()
        context, wheels = _context(recipe, machine=machine)
        _say(f"{recipe.target}: {wheels} wheels in the build context", started)
        started = time.monotonic()
        image = recipe.name(registry=registry, tag=tag or project_version())
        docker.build(context, image=image, target=recipe.target, arguments={"BASE_IMAGE": base_image}, labels=labels)
        _say(f"{recipe.target}: {image}, {docker.size(image) / 1e6:.0f} MB", started)
        made[recipe.target] = image
    return made


def _base(docker: Docker, asked: str, mirror: str | None) -> str:
    if asked == DEBOOTSTRAP:
        return base.make(docker, mirror=mirror)
    if not docker.has(asked):
        try:
            docker.pull(asked)
        except DockerFailed as error:
            raise base.NoBase(
                f"The base image {asked} is not there and can't be pulled. Name another by --base (Python 3.11 and "
                f"glibc 2.28 or newer), or have one made of Debian's packages: --base {DEBOOTSTRAP}\n{error}"
            ) from None
    return asked


def _context(recipe: Recipe, *, machine: str) -> tuple[Path, int]:
    """Lay out the folder that Docker gets; how many wheels are in it."""
    context = CONTEXTS / recipe.target
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    shutil.copy(DOCKERFILE, context / "Dockerfile")
    shutil.copy(recipe.lock, context / "requirements.lock")
    wheels = shutil.copytree(fetched(recipe.lock, machine=machine), context / "wheels")
    shutil.copytree(fetched(INSTALLER_LOCK, machine=machine), context / "installer")
    if recipe.with_project:
        build_project(REPOSITORY, context / "project")
    return context, sum(1 for _ in wheels.glob("*.whl"))


def _revision() -> dict[str, str]:
    asked = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    return {"org.opencontainers.image.revision": done.stdout.strip()} if done.returncode == 0 else {}


def _say(what: str, started: float) -> None:
    print(f"{what} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m images",
        description="Build the images of proxy, operator, gateway and simulated engine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "images", nargs="*", choices=[*RECIPES, []], metavar="IMAGE", help=f"of {', '.join(RECIPES)}; all unless named"
    )
    parser.add_argument(
        "--fetch-only",
        action="store_true",
        help="have the wheels for this machine; build nothing (needs no Docker)",
    )
    parser.add_argument("--base", default=PUBLIC_BASE, help="image to build on, or debootstrap (default: %(default)s)")
    parser.add_argument("--mirror", metavar="URL", help="where debootstrap gets Debian's packages (default: its own)")
    parser.add_argument("--registry", metavar="PREFIX", help="put before the images' names")
    parser.add_argument("--tag", help="the images' tag (default: the project's version)")
    parser.add_argument(
        "--host", metavar="ADDRESS", help="the Docker daemon (default: DOCKER_HOST, or the machine's own)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
