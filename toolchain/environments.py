"""Python environments apart from the project's, for what can't stand in it: each holds what its lock says."""

import subprocess
import sys
from pathlib import Path

from toolchain.cache import alone, appearing, cache_root, digest_of


class NotInstalled(Exception):
    """An environment could not be made; the message ends with what the installer said."""


def python_of(lock: Path, *, kind: str) -> Path:
    """The interpreter of the environment that the lock describes, made in the cache where it is not there.

    Raises NotInstalled where it can't be made.
    """
    folder = cache_root() / f"{kind}-{lock.stem}-{digest_of(lock, '.'.join(map(str, sys.version_info[:2])))}"
    with alone(cache_root()):
        if not folder.is_dir():
            with appearing(folder) as unfinished:
                _install(lock, into=unfinished)
    return folder / "bin" / "python"


def _install(lock: Path, *, into: Path) -> None:
    _uv(lock, "venv", "--no-project", "--relocatable", "--python", sys.executable, "--allow-existing", str(into))
    _uv(lock, "pip", "sync", "--require-hashes", "--python", str(into / "bin" / "python"), str(lock))


def _uv(lock: Path, *words: str) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    try:
        done = subprocess.run(
            [uv, *words, "--quiet"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
    except OSError as error:
        raise NotInstalled(f"{lock.name} could not be installed: {error}") from None
    if done.returncode:
        raise NotInstalled(f"{lock.name} could not be installed: {done.stderr.strip()}")
