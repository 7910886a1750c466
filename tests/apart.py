"""A program in a process of its own: for what it takes in memory, loads or starts."""

import os
import subprocess
import sys
from collections.abc import Collection


def run(*lines: str, without: Collection[str] = ()) -> list[str]:
    """The words that it prints. It finds what tests find, but not the names of the environment in `without`."""
    program = "\n".join((f"import sys\nsys.path[:0] = {sys.path!r}", *lines))
    environment = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()
