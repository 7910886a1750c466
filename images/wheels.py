"""The wheels that an image installs: those of its lock, by hash, for the image's platform and not for this machine."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PYTHON: Final = "3.11"
GLIBC: Final = 28
"""The images' C library is glibc 2.28 at the least, so wheels made for it or an older one will do."""
_OLD_NAMES: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class FetchFailed(Exception):
    """A wheel can't be had, or is not the one that the lock names."""


def fetch(lock: Path, into: Path, *, machine: str) -> int:
    """Have exactly the wheels of `lock` in the folder `into`, for `machine` (x86_64, aarch64); how many they are.

    A folder that was made from this lock before is left as it is. Raises FetchFailed.
    """
    stamp = into.with_name(f"{into.name}.made-of")
    made_of = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {machine}"
    if not (into.is_dir() and stamp.is_file() and stamp.read_text() == made_of):
        stamp.unlink(missing_ok=True)
        unfinished = into.with_name(f"{into.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _download(lock, unfinished, machine=machine)
        shutil.rmtree(into, ignore_errors=True)
        unfinished.rename(into)
        stamp.write_text(made_of)
    return sum(1 for _ in into.glob("*.whl"))


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
