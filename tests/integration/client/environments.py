"""Python environments apart from the one that runs the tests."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.paths import ROOT
from tests.waiting import START

UV: Final = Path(sys.executable).with_name("uv")


def uv(*words: str | Path) -> None:
    """A command of uv in the project's folder."""
    done = subprocess.run([UV, *words, "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=START, check=False)
    assert not done.returncode, done.stderr


def empty(folder: Path) -> Path:
    """The interpreter of an environment without a package, of the Python that runs the tests."""
    uv("venv", "--no-project", "--python", sys.executable, folder)
    return folder / "bin" / "python"
