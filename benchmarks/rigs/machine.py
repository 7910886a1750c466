"""Where and with what a figure was measured."""

import os
import platform
import resource
import sqlite3
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolchain import go

from benchmarks.peers.environments import lock_of

PACKAGES = (
    *("rolloutfleet", "smg", "aiohttp", "uvicorn", "uvloop", "httptools", "starlette", "fastapi"),
    *("msgspec", "tokenizers", "renderers", "httpx", "kopf", "kubernetes"),
)
PEERS = {"litellm": "litellm", "sglang-router": "sglang_router"}
"""Packages with an environment of their own, and the names of their locks."""


def describe() -> dict[str, Any]:
    """Machine, cores, memory, the disk of the stores, and the versions of what ran."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field(Path("/proc/cpuinfo"), "model name"),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "store_filesystem": _filesystem(Path(tempfile.gettempdir())),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "load_before": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "go": _go(),
            "revision": revision(),
            **{name: found for name in PACKAGES if (found := _version(name)) is not None},
            **{name: _locked(name, lock_of(file)) for name, file in PEERS.items()},
        },
    }


def _field(file: Path, name: str) -> str:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _filesystem(folder: Path) -> str:
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    holding = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _locked(package: str, lock: Path) -> str:
    """The version in the lock of a peer, which has an environment of its own."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition("==")
        if name == package:
            return rest.split()[0]
    return "unknown"


def _go() -> str:
    return _said(str(go.folder() / "go"), "env", "GOVERSION")


def revision() -> str:
    """The commit that is checked out, `-dirty` where files were changed."""
    return _said("git", "describe", "--always", "--dirty")


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
