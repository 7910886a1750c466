"""Commands as a user runs them, and processes that stand still."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil

CLI = (sys.executable, "-m", "rolloutfleet")
Done = subprocess.CompletedProcess[str]


def ran(*command: str, timeout: float = 120, **options: Any) -> Done:
    """A process, to its end, and what it wrote."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """It and its children stand still meanwhile."""
    process = psutil.Process(pid)
    tree = [process, *process.children(recursive=True)]
    for each in tree:
        each.suspend()
    try:
        yield
    finally:
        for each in tree:
            each.resume()
