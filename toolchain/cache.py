"""Where things stand that take long to make: outside the clone, in the user's cache, shared by all clones.

What is kept there is named by a hash of all that went into it, and appears whole or not at all.
"""

import contextlib
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def cache_root() -> Path:
    """`ROLLOUTFLEET_CACHE`, else `rolloutfleet` in the user's cache."""
    if chosen := os.environ.get("ROLLOUTFLEET_CACHE"):
        return Path(chosen).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user_cache).expanduser() / "rolloutfleet"


def digest_of(*parts: Path | str) -> str:
    """A short hash of files (name and content), folders (every file in them) and texts."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
        elif part.is_dir():
            digest.update(digest_of(*_files_in(part)).encode())
        else:
            digest.update(part.name.encode() + b"\0" + part.read_bytes())
    return digest.hexdigest()[:12]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One maker at a time; a second one waits and then finds everything made."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and is removed when it doesn't.

    It has a new name each time, so that nothing that a killed maker left behind blocks the next one: neither a mount
    that can't be undone nor a child of its that goes on writing.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.unfinished*"):
        remove(left)
    unfinished = path.with_name(f"{path.name}.unfinished-{secrets.token_hex(4)}")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(path)
    except BaseException:
        remove(unfinished)
        raise


def remove(folder: Path) -> None:
    """Remove as much of it as can be removed; what is mounted below it is unmounted, never emptied."""
    for place in _mounted_below(folder):
        subprocess.run(["umount", "--lazy", place], check=False)
    if not _mounted_below(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _mounted_below(folder: Path) -> list[str]:
    """The innermost first. debootstrap that is stopped half-way leaves /proc and /sys mounted."""
    mounts = Path("/proc/mounts")
    mounted = [line.split()[1] for line in mounts.read_text().splitlines()] if mounts.exists() else []
    return sorted((place for place in mounted if place.startswith(f"{folder.resolve()}/")), reverse=True)
