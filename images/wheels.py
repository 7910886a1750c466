"""The wheels that an image installs: those of its lock, by hash, for the image's platform and not for this machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from toolchain.cache import alone, appearing, cache_root, digest_of

PYTHON: Final = "3.11"
GLIBC: Final = 28
"""The images' C library is glibc 2.28 at the least, so wheels made for it or an older one will do."""
_OLD_NAMES: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class FetchFailed(Exception):
    """A wheel can't be had, or is not the one that the lock names."""


def fetched(lock: Path, *, machine: str) -> Path:
    """The folder with exactly the wheels of `lock` for `machine` (x86_64, aarch64).

    All clones share it: it is in the user's cache, by the lock's hash. Raises FetchFailed.
    """
    kept = cache_root() / "wheels"
    folder = kept / f"{lock.stem}-{digest_of(lock, machine)}"
    with alone(kept):
        if not folder.is_dir():
            with appearing(folder) as unfinished:
                _download(lock, unfinished, machine=machine)
    return folder


def build_project(repository: Path, into: Path) -> Path:
    """The project's own wheel, alone in the folder `into`. Raises FetchFailed."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    asked = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    _run(asked, "the project's wheel can't be built", cwd=repository)
    (wheel,) = into.glob("*.whl")
    return wheel


def platforms(machine: str) -> list[str]:
    """Platform tags of wheels that run there, the newest first."""
    tags = []
    for minor in range(GLIBC, 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in _OLD_NAMES:
            tags.append(f"{_OLD_NAMES[minor]}_{machine}")
    return tags


def _download(lock: Path, into: Path, *, machine: str) -> None:
    targets = [f"--platform={tag}" for tag in platforms(machine)]
    asked = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(into)),
        *("--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement", str(lock)),
        *(f"--python-version={PYTHON}", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none", *targets),
    ]
    _run(asked, f"the wheels of {lock.name} can't be had")


def _run(asked: list[str], failure: str, *, cwd: Path | None = None) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1577836800")}
    done = subprocess.run(
        asked, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FetchFailed(f"{failure}:\n{(done.stderr or done.stdout).strip()}")
