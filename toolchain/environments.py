"""Python environments apart from the project's, for what can't stand in it: each holds what its lock says."""

import subprocess
import sys
from pathlib import Path

from toolchain.cache import alone, appearing, cache_root, digest_of


def python_of(lock: Path, *, kind: str) -> Path:
    """The interpreter of the environment that the lock describes, made in the cache where it is not there.

    Raises CalledProcessError or OSError where it can't be made.
    """
    folder = cache_root() / f"{kind}-{lock.stem}-{digest_of(lock, '.'.join(map(str, sys.version_info[:2])))}"
    with alone(cache_root()):
        if not folder.is_dir():
            with appearing(folder) as unfinished:
                _install(lock, into=unfinished)
    return folder / "bin" / "python"


def _install(lock: Path, *, into: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    venv = ("venv", "--quiet", "--no-project", "--relocatable", "--python", sys.executable, "--allow-existing")
    subprocess.run([uv, *venv, str(into)], check=True)
    sync = ("pip", "sync", "--quiet", "--require-hashes", "--python", str(into / "bin" / "python"))
    subprocess.run([uv, *sync, str(lock)], check=True, stdin=subprocess.DEVNULL)
