"""Where things stand that take long to make: outside the clone, in the user's cache, shared by all clones.

What is kept there is named by a hash of all that went into it, and appears whole or not at all.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
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
    """A folder to fill, which becomes `path` when the block ends well and is removed when it doesn't."""
    unfinished = path.with_name(path.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
