"""Where other proxies and gateways are installed: each as its lock says, apart from the project and from each other."""

from pathlib import Path
from typing import Final

from toolchain import environments

from benchmarks.rigs.processes import StartFailed

FOLDER: Final = Path(__file__).parent


def lock_of(name: str) -> Path:
    return FOLDER / f"{name}.lock"


def python_of(name: str) -> Path:
    """The interpreter of that environment, which is made at its first use. Raises StartFailed where it can't be."""
    try:
        return environments.python_of(lock_of(name), kind="peers")
    except environments.NotInstalled as error:
        raise StartFailed(str(error)) from None
