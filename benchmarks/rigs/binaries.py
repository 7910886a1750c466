"""The two Go programs of the rig, built when their sources are newer."""

import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
LOADGEN = FOLDER / "bin" / "loadgen"
STUB = FOLDER / "bin" / "stub"


class NoCompiler(Exception):
    """Go is not installed."""


def build() -> None:
    """Raises NoCompiler, or CalledProcessError with the compiler's words on stderr."""
    for binary in (LOADGEN, STUB):
        sources = FOLDER / binary.name
        newest = max(file.stat().st_mtime for file in [*sources.glob("*.go"), sources / "go.mod"])
        if binary.exists() and binary.stat().st_mtime > newest:
            continue
        if shutil.which("go") is None:
            raise NoCompiler("the load generator and the engine stub need Go 1.26 or newer (https://go.dev/dl)")
        subprocess.run(["go", "build", "-trimpath", "-o", str(binary), "."], cwd=sources, check=True)
