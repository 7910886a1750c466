"""Environments of agent frameworks, one each, outside the project's own: `python -m tests.agents.install [NAME]…`."""

import sys
from collections.abc import Iterable
from pathlib import Path

from toolchain import environments

LOCKS = Path(__file__).parent / "environments"


def names() -> list[str]:
    return sorted(file.stem for file in LOCKS.glob("*.lock"))


def python_of(name: str) -> Path:
    """The interpreter of a framework's environment, which holds what its lock says. Makes it where it is not there."""
    return environments.python_of(LOCKS / f"{name}.lock", kind="agents")


def main(asked: Iterable[str]) -> None:
    for name in asked:
        print(f"{name}: {python_of(name).parents[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or names())
